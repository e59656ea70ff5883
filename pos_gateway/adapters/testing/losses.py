"""Whatever is lost on the way: an order is made once, paid once, and never left unsaid."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.judge import contradicted, shown
from pos_gateway.adapters.testing.mishaps import LOSSES, LOST_AFTER, LOST_BEFORE
from pos_gateway.adapters.testing.stand import Run, Stand, attempt, numbered, without
from pos_gateway.adapters.testing.wire import Mishap
from pos_gateway.domain.outcome import Kind, Outcome

_DOUBT = frozenset({Kind.IN_DOUBT, Kind.RETRY})
_REMEDY = (
    "let TransportError pass; after a doubt a keyed step sends the same key, a queryable one finds by look_up "
    "what run has made"
)


class SurvivesLosses(Stand):
    """Requests and replies that are lost, then a look-up, then the rest of the order's way."""

    def test_a_request_without_a_reply_is_in_doubt(self) -> None:
        order, healthy, found = self.an_order(), self.healthy(), list[str]()
        for number, name in numbered(healthy):
            for loss in LOSSES:
                run = self.run(order, {number: loss})
                outcome, raised = attempt(partial(self.forward, run))
                may_be_there = healthy.wire.requests[number].changes and self.made(run) != []
                kinds = {Kind.IN_DOUBT} if loss.is_done and may_be_there else _DOUBT
                is_last = len(run.wire.requests) == number + 1
                if raised or outcome is None or (is_last and outcome.kind not in kinds):
                    found.append(f"{name}, {loss.name}: {raised or shown(outcome)}")
        demand(
            "An exchange without a reply is left to the gateway, which knows whether bytes have left.",
            found,
            "let TransportError pass: catch it nowhere",
        )

    def test_after_one_loss_the_order_is_there_once(self) -> None:
        healthy, found = self.healthy(), list[str]()
        for (number, name), loss in product(numbered(healthy), LOSSES):
            for asks in (False, True):
                where = f"{name}: {loss.name}, then {'looked up' if asks else 'sent again'}"
                found += [f"{where}: {each}" for each in self._after(healthy, {number: loss}, asks)]
        demand("After a loss an order is made once, and paid once.", found, _REMEDY)

    def test_after_two_losses_the_order_is_there_once(self) -> None:
        healthy, found = self.healthy(), list[str]()
        for (number, name), more in product(numbered(healthy), range(1, 5)):
            for second in (LOST_BEFORE, LOST_AFTER):
                mishaps = {number: LOST_AFTER, number + more: second}
                where = f"{name}: {LOST_AFTER.name}, and request {number + more + 1}: {second.name}"
                found += [f"{where}: {each}" for each in self._after(healthy, mishaps, False)]
        demand("After two losses an order is made once, and paid once.", found, _REMEDY)

    def test_an_order_in_doubt_can_be_cancelled(self) -> None:
        healthy, found = self.healthy(), list[str]()
        self._need_undo(healthy)
        count = len(healthy.wire.requests)
        for (number, name), loss in product(numbered(healthy), (LOST_BEFORE, LOST_AFTER)):
            if number >= count:
                break
            run = self.run(healthy.walker.order, {number: loss})
            _, raised = attempt(partial(self.forward, run))
            outcome, raised = (None, raised) if raised else attempt(partial(self.cancelled, run))
            found += [f"{name}, {loss.name}: {each}" for each in self._left(run, outcome, raised)]
        demand("A cancelled order stands nowhere, whatever was lost before.", found, _REMEDY)

    def test_after_a_loss_a_cancelled_order_stands_nowhere(self) -> None:
        healthy = self.healthy()
        before = len(healthy.wire.requests)
        self._need_undo(healthy)
        found = list[str]()
        for (number, name), loss in product(list(numbered(healthy))[before:], LOSSES):
            run = self.healthy()
            run.wire.mishaps[number] = loss
            outcome, raised = attempt(partial(self.cancelled, run))
            found += [f"{name}, {loss.name}: {each}" for each in self._left(run, outcome, raised)]
        demand(
            "An undo whose reply was lost can be repeated: CANCELLED, also if it was undone before.",
            found,
            _REMEDY,
        )

    def _need_undo(self, run: Run) -> None:
        if self.is_blind or self.cancelled(run).kind is not Kind.CANCELLED:
            raise without("the POS cancels nothing, or cannot be asked")

    def _after(self, healthy: Run, mishaps: Mapping[int, Mishap], asks: bool) -> Iterator[str]:
        """Findings once an order that met mishaps is decided."""
        run = self.run(healthy.walker.order, mishaps)
        outcome, raised = attempt(lambda: self.delivered(run, asks=asks))
        made, wanted = self.made(run), self.made(healthy)
        # A person ends an order that cannot be asked for, or that the POS has and does not decide.
        is_left = outcome is not None and (
            outcome.kind is Kind.PENDING or (self.is_blind and outcome.for_operator)
        )
        if raised or outcome is None or (outcome.kind is not Kind.ACCEPTED and not is_left):
            yield f"{raised or shown(outcome)} in the end, after {self.requests(run)}"
        elif made is not None and wanted is not None:
            yield from contradicted(outcome, made, run.walker.order.total)
            paid, once = (sum(each.payments for each in those) for those in (made, wanted))
            if len(made) > 1 or paid > once or (paid < once and not is_left):
                yield f"the POS has {len(made)} orders, {paid} payments and not {once}"
        yield from run.odd

    def _left(self, run: Run, outcome: Outcome | None, raised: str) -> Iterator[str]:
        """Findings after a cancellation."""
        made = self.made(run) or ()
        if raised or outcome is None or outcome.kind is not Kind.CANCELLED:
            yield f"{raised or shown(outcome)} in the end"
        elif left := [each for each in made if not each.is_cancelled or each.payments]:
            yield f"the POS still has {left}"
