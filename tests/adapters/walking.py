"""Takes an order's steps at a POS as an engine does, at the public seam, with facts that outlive attempts."""

from collections.abc import Sequence

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.steps import COVERED, Step, steps_of
from pos_gateway.domain.facts import facts_json, read_facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Send


class Walker:
    """One order's way.

    Args:
        adapter: of the POS.
        order: to deliver.
        merchant: the order's.
        send: to the POS.
    """

    def __init__(self, adapter: Adapter, order: Order, merchant: Merchant, send: Send) -> None:
        self.order = order
        self._steps, self._merchant, self._send = steps_of(adapter), merchant, send
        self._done, self._is_in_doubt = 0, False
        self._facts = "{}"
        #: Why the order is being undone.
        self._because: Outcome | None = None

    @property
    def facts(self) -> dict[str, str | int]:
        """The durable facts."""
        return read_facts(self._facts)

    def forward(self, *, asks: bool = False) -> Outcome:
        """An attempt: take the steps that are left; a step in doubt again, or as a look-up finds.

        Args:
            asks: look a step in doubt up: the POS may have forgotten its key.
        """
        if self._because is not None:
            return self._back(self._because)
        outcome = Outcome(Kind.ACCEPTED)
        while self._done < len(self._steps):
            outcome = self._taken(self._steps[self._done], asks=asks)
            self._is_in_doubt = outcome.kind in (Kind.IN_DOUBT, Kind.PENDING)
            if outcome.kind is not Kind.ACCEPTED:
                break
            self._keep(outcome)
            self._done += 1
        if outcome.kind in (Kind.REJECTED, Kind.FAILED):
            self._keep(outcome)
            self._done += bool(outcome.facts)
            return self._back(outcome)
        return outcome

    def cancel(self) -> Outcome:
        """Undo every step that was taken."""
        return self._back(Outcome(Kind.CANCELLED))

    def look_up(self) -> Outcome | None:
        """The last step, as the POS has it."""
        step = self._steps[max(self._done - 1, 0)]
        assert step.look_up is not None
        return step.look_up(self.order, self._merchant, self.facts, self._send)

    def _taken(self, step: Step, *, asks: bool) -> Outcome:
        arguments = (self.order, self._merchant, self.facts, self._send)
        try:
            if asks and self._is_in_doubt and step.look_up is not None:
                known = step.look_up(*arguments)
                if known is not None:
                    return known
            return step.run(*arguments)
        except NotSent:
            return Outcome(Kind.RETRY)
        except NoValidReply:
            return Outcome(Kind.IN_DOUBT)

    def _back(self, because: Outcome) -> Outcome:
        """The outcome once the steps are undone, the last first; until then, what the POS says."""
        self._because = because
        for step in reversed(self._standing()):
            if step.undo in (COVERED, None):
                continue
            assert callable(step.undo)
            try:
                outcome = step.undo(self.order, self._merchant, self.facts, self._send)
            except NoValidReply:
                return Outcome(Kind.IN_DOUBT)
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
        known_as = outcome.external_id or self.order.external_id
        assert known_as or outcome.kind is not Kind.ACCEPTED
