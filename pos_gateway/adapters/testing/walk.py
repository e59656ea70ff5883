"""Takes an order's steps at a POS as the gateway does, with facts that outlive attempts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.replies import after_refusal
from pos_gateway.adapters.steps import COVERED, Step, steps_of
from pos_gateway.domain.facts import facts_json, read_facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Send

#: Gets each outcome of a step, with the step and what was called: run, look_up or undo.
Heard = Callable[[Step, str, Outcome | None], None]


class Walker:
    """One order's way.

    Args:
        adapter: of the POS.
        order: to deliver.
        merchant: the order's.
        send: to the POS.
        heard: called with each outcome of a step.
    """

    def __init__(
        self,
        adapter: Adapter,
        order: Order,
        merchant: Merchant,
        send: Send,
        heard: Heard = lambda *_: None,
    ) -> None:
        self.order = order
        self._steps, self._merchant, self._send = steps_of(adapter), merchant, send
        self._heard = heard
        self._done, self._is_in_doubt = 0, False
        self._facts = "{}"
        #: Whether the POS has refused to undo a refused order: an operator's.
        self.is_left = False
        #: Why the order is being undone.
        self._because: Outcome | None = None

    @property
    def facts(self) -> dict[str, str | int]:
        """The durable facts."""
        return read_facts(self._facts)

    @property
    def is_between_steps(self) -> bool:
        """Whether the POS has some steps, and not all."""
        return 0 < self._done < len(self._steps)

    def forward(self, *, asks: bool = False) -> Outcome:
        """An attempt: take the steps that are left; a step in doubt again, or as a look-up finds.

        Args:
            asks: look a step in doubt up: the POS may have forgotten its key.
        """
        if self._because is not None:
            return self._undone(self._because)
        outcome = Outcome(Kind.ACCEPTED)
        while self._done < len(self._steps):
            outcome = self._taken(self._steps[self._done], asks=asks)
            self._is_in_doubt = outcome.kind in (Kind.IN_DOUBT, Kind.PENDING) or (
                self._is_in_doubt and outcome.kind is Kind.RETRY
            )
            if outcome.kind is not Kind.ACCEPTED:
                if outcome.kind is Kind.PENDING:
                    self._keep(outcome)
                break
            self._keep(outcome)
            self._done += 1
        if outcome.kind in (Kind.REJECTED, Kind.FAILED):
            self._keep(outcome)
            self._done += bool(outcome.facts)
            self._is_in_doubt = False
            return self._undone(outcome)
        return outcome

    def cancel(self) -> Outcome:
        """Undo every step that was taken."""
        step = self._steps[0]
        if self._is_in_doubt and not self.facts and len(self._steps) > 1 and step.look_up:
            try:  # an undo of several steps starts from facts
                known = self._call(step, "look_up", step.look_up)
            except NoValidReply:
                return Outcome(Kind.IN_DOUBT)
            if known is not None and known.kind in (Kind.IN_DOUBT, Kind.RETRY):
                return known
            self._is_in_doubt = False
            if known is not None:
                self._keep(known)
                self._done = int(known.kind is not Kind.CANCELLED)
        return self._back(Outcome(Kind.CANCELLED))

    def look_up(self) -> Outcome | None:
        """The last step at the POS; None: not there, or without a look-up."""
        step = self._steps[max(self._done - 1, 0)]
        return None if step.look_up is None else self._call(step, "look_up", step.look_up)

    def _call(self, step: Step, name: str, do: Callable[..., Outcome | None]) -> Outcome | None:
        outcome = do(self.order, self._merchant, self.facts, self._send)
        self._heard(step, name, outcome)
        return outcome

    def _taken(self, step: Step, *, asks: bool) -> Outcome:
        """The outcome of a step; one in doubt is looked up where its guarantee or ``asks`` says so."""
        in_doubt, was_asked = self._is_in_doubt, False
        if in_doubt and step.look_up is None:
            return Outcome(Kind.IN_DOUBT, for_operator=True)
        try:
            is_asked = asks or step.guarantee is Guarantee.QUERYABLE
            if in_doubt and is_asked and step.look_up is not None:
                known, was_asked = self._call(step, "look_up", step.look_up), True
                if known is not None:
                    return known
            outcome = self._call(step, "run", step.run)
            assert outcome is not None  # noqa: S101  (``heard`` refuses None)
            if outcome.kind is Kind.REJECTED and in_doubt and not was_asked and step.look_up:
                # An earlier attempt may have taken the step: a POS may refuse before checking the key.
                look_up = step.look_up
                known = after_refusal(lambda: self._call(step, "look_up", look_up))
                outcome = known or replace(outcome, not_found=True)
        except NotSent:
            return Outcome(Kind.RETRY)
        except NoValidReply:
            return Outcome(Kind.IN_DOUBT)
        return outcome

    def _undone(self, because: Outcome) -> Outcome:
        """The outcome of an order that is refused after a step, or why a step is not undone."""
        outcome = self._back(because)
        self.is_left = outcome is not because and outcome.kind in (Kind.REJECTED, Kind.FAILED)
        return outcome

    def _back(self, because: Outcome) -> Outcome:
        """The outcome once the steps are undone, the last first; until then, what the POS says."""
        self._because = because
        for step in reversed(self._standing()):
            if step.undo is COVERED or step.undo is None:
                continue
            try:
                outcome = self._call(step, "undo", step.undo)
            except NotSent:
                return Outcome(Kind.RETRY)
            except NoValidReply:
                return Outcome(Kind.IN_DOUBT)
            assert outcome is not None  # noqa: S101  (``heard`` refuses None)
            code = outcome.reason and outcome.reason.code
            if outcome.kind is Kind.REJECTED and code == Rejection.UNKNOWN_ORDER:
                continue
            if outcome.kind is not Kind.CANCELLED:
                return outcome
            because = because if outcome.reason is None else outcome
        return because

    def _standing(self) -> Sequence[Step]:
        """The steps that may be at the POS."""
        return self._steps[: self._done + self._is_in_doubt]

    def _keep(self, outcome: Outcome) -> None:
        self._facts = facts_json({**self.facts, **(outcome.facts or {})})
