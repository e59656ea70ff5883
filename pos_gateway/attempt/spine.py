"""One message's way, from the attempt to the acknowledgement. Read this file first.

A message comes from the queue (``worker/intake.py``). Admission lets the order start before a green thread is taken
(``worker/dispatcher.py``). The green thread decides and commits, and in between frees the order's slot
(``worker/in_flight.py``). A synchronous worker's process calls ``attempt``, message after message.

``Attempt`` has the facts. The ledger records each step at the POS before the first byte, for the next attempt to know,
whatever happens here.
"""

from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.cancel import Cancel
from pos_gateway.attempt.commit import Commit
from pos_gateway.attempt.content import UnreadMessage, read
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.submit import Submit
from pos_gateway.attempt.traced import traced
from pos_gateway.attempt.unreadable import Unreadable
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.outcome import Outcome
from pos_gateway.events.repeating import Repeating
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Key
from pos_gateway.merchants.directory import Directory

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Tracing


class _Action(Protocol):
    """The work requested by a message."""

    def claim(self, attempt: Attempt[Any]) -> Outcome | None: ...
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
        commit: Commit,
        ledger: Ledger,
        repeating: Repeating,
        directory: Directory,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._submit = submit
        self._cancel = cancel
        self._unreadable = unreadable
        self._commit = commit
        self._ledger = ledger
        self._repeating = repeating
        decide = self._decide
        self._decided = decide if tracing is None else traced(decide, tracing, directory)

    def attempt(self, attempt: Attempt[Any], *, timeout: float = inf) -> Decision | None:
        """Attempt once to do as a message asks; return once all consequences are durable.

        None: a different worker has the order. The message must be requeued: the worker may have come to
        the order by a different message, and may not end the order (a cancel request takes the order
        over, and releases the order).

        Raises:
            LedgerUnavailable, BrokerUnavailable: this process is stopping, or ``timeout`` seconds
                have passed; the message must be requeued.
            Exception: the attempt failed without a claim, and the database is unavailable, or the
                order's state is not known; the message must be requeued.
        """
        try:
            decision = self.decide(attempt)
            return decision if self.commit(attempt, decision, timeout=timeout) else None
        finally:
            self.leave(attempt)

    def decide(self, attempt: Attempt[Any]) -> Decision:
        """Attempt once to do as a message asks, and decide. ``leave`` follows, whatever happens."""
        return self._decided(attempt, self._read(attempt))

    def commit(self, attempt: Attempt[Any], follows: Decision, *, timeout: float = inf) -> bool:
        """Make the consequences of an attempt durable; False: a different worker has the order."""
        attempt.is_committed = self._commit(follows, timeout=timeout)
        return attempt.is_committed

    def leave(self, attempt: Attempt[Any]) -> None:
        """Abandon an uncommitted attempt's claims: the order's next attempt takes the claims over."""
        if not attempt.is_committed:  # killed, say
            for number, claim in enumerate(attempt.claims):
                self._ledger.abandon(claim, sent=attempt.sent and number == 0)

    def _read(self, attempt: Attempt[Any]) -> _Action:
        """Read the message, unless the message was read on arrival."""
        if attempt.content is None:
            attempt.content = read(attempt.message, attempt.action)
        attempt.span = attempt.message.trace
        attempt.began = perf_counter()  # reading is no part of the claim's time
        if attempt.received is not None:
            attempt.waited = attempt.began - attempt.received
        if isinstance(attempt.content, UnreadMessage):
            return self._unreadable
        return self._cancel if isinstance(attempt.content, CancelRequest) else self._submit

    def _decide(self, attempt: Attempt[Any], action: _Action) -> Decision:
        """Attempt once to do as the message asks, and decide; every failure is an outcome."""
        try:
            try:
                attempt.outcome = action.claim(attempt) or action.call(attempt)
            finally:
                if attempt.alone is not None:  # from here on the next suspect may run
                    attempt.alone.end()
            decision = action.decide(attempt)
            if attempt.ended is None or not action.repeats(attempt):
                return decision
            key = Key(attempt.content.merchant_id, attempt.content.order_id)
            return decision.repeating(self._repeating.ends(key))
        except Exception as error:  # noqa: BLE001  (ours: the order is neither lost nor left claimed)
            attempt.outcome = action.crashed(attempt, error)
        return action.decide(attempt)
