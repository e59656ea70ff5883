"""One order's attempt, from its message to the decision. Read this file first.

A message comes from the queue (``worker/consumer.py``). Admission lets the order start before a
green thread is taken (``worker/dispatcher.py``). The green thread has ``Spine`` decide, commits
outcome and event (``Gateway.commit_outcome``), and acknowledges the message.

``Attempt`` has the facts. The ledger records each step at the POS before the first byte, for the
next attempt to know, whatever happens here.
"""

from typing import Any, Protocol

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.cancel import Cancel
from pos_gateway.attempt.content import UnreadMessage
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.poison import PoisonIsolation, Turn
from pos_gateway.attempt.submit import Submit
from pos_gateway.attempt.unreadable import Unreadable
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.events.repeating import Repeating
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Key


class _Action(Protocol):
    """The work that a message asks for."""

    def claim(self, attempt: Attempt[Any], turn: Turn) -> Outcome | None: ...
    def call(self, attempt: Attempt[Any]) -> Outcome: ...
    def decide(self, attempt: Attempt[Any]) -> Decision: ...
    def crashed(self, attempt: Attempt[Any], error: Exception) -> Outcome: ...
    def repeats(self, attempt: Attempt[Any]) -> bool: ...


class Spine:
    """Does as messages ask. Safe for any number of green threads at once."""

    def __init__(
        self,
        *,
        submit: Submit,
        cancel: Cancel,
        unreadable: Unreadable,
        isolation: PoisonIsolation,
        ledger: Ledger,
        repeating: Repeating,
    ) -> None:
        self._submit = submit
        self._cancel = cancel
        self._unreadable = unreadable
        self._isolation = isolation
        self._ledger = ledger
        self._repeating = repeating

    def decide(self, attempt: Attempt[Any]) -> Decision:
        """Attempt once to do as the message asks, and decide; every failure is an outcome.

        Raises:
            Exception: the attempt failed without a claim, and the database is unavailable, or the
                order's state is not known: the message must be requeued.
        """
        try:
            return self._decided(attempt)
        except BaseException:  # killed, say: the next attempt takes the claims over
            for number, claim in enumerate(attempt.claims):
                self._ledger.abandon(claim, sent=attempt.sent and number == 0)
            raise

    def _decided(self, attempt: Attempt[Any]) -> Decision:
        content = attempt.content
        action = self._action(content)
        try:
            # Suspects of having killed workers run one at a time.
            with self._isolation.turn() as turn:
                ended = action.claim(attempt, turn)
                attempt.outcome = ended or action.call(attempt)
            decision = action.decide(attempt)
            if attempt.ended is None or not action.repeats(attempt):
                return decision
            key = Key(content.merchant_id, content.order_id)
            return decision.repeating(self._repeating.ends(key))
        except Exception as error:  # noqa: BLE001  (ours: the order is neither lost nor left claimed)
            attempt.outcome = action.crashed(attempt, error)
        return action.decide(attempt)

    def _action(self, content: Order | CancelRequest | UnreadMessage) -> _Action:
        if isinstance(content, UnreadMessage):
            return self._unreadable
        return self._cancel if isinstance(content, CancelRequest) else self._submit
