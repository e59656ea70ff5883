"""The same order makes the same requests, is made once, found again and undone."""

from collections.abc import Iterator
from threading import Thread
from typing import Any

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.judge import contradicted, shown
from pos_gateway.adapters.testing.pos import HasOtherOrders
from pos_gateway.adapters.testing.stand import Run, Stand, attempt, numbered, without
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import Request

_NO_STATE = (
    "make requests of the order, merchant and facts alone: no clock, no random number, no attribute that "
    "a call changes"
)


class RepeatsItself(Stand):
    """An order without a mishap."""

    def test_an_order_is_accepted_and_the_pos_has_it_once(self) -> None:
        run = self.healthy()
        order, made = run.walker.order, self.made(run)
        demand(
            "An accepted order is at the POS once, complete, at its total.",
            contradicted(Outcome(Kind.ACCEPTED), made, order.total) if made is not None else (),
            "send the order once; compare the POS's total: lines.mispriced(order, theirs)",
        )

    def test_the_same_order_makes_the_same_requests(self) -> None:
        one = self.healthy()
        again = self.run(Order.parse_json(one.walker.order.source))
        self.delivered(again)
        demand(
            "The same order makes the same requests, byte for byte.",
            _differences(one.wire.requests, again.wire.requests),
            _NO_STATE,
        )

    def test_two_orders_in_two_threads_do_not_mix(self) -> None:
        alone = [self.healthy(number).wire.requests for number in (1, 2)]
        mixed: list[list[Request]] = []

        def another() -> None:
            run = self.run(self.an_order(2))
            self.delivered(run)
            mixed.append(run.wire.requests)

        def meanwhile() -> None:
            thread = Thread(target=another)
            thread.start()
            thread.join()

        run = self.run(self.an_order(1), meanwhile=meanwhile)
        self.delivered(run)
        found = [*_differences(alone[0], run.wire.requests)]
        for each in mixed:
            found += _differences(alone[1], each)
        demand("Any number of orders may be on their way at once.", found, _NO_STATE)

    def test_requests_go_to_the_merchant_and_can_be_sent(self) -> None:
        demand(
            "Every request goes to the merchant's base_url, and has a URL and headers in one line.",
            self._odd_requests(self.healthy()),
            "build URLs as f'{merchant.base_url}/…', ids in them with quote(id, safe='')",
        )

    def test_a_key_makes_one_order(self) -> None:
        step, run = self.steps[0], self.healthy()
        if step.guarantee is not Guarantee.KEYED:
            raise without("its first step is not keyed")
        order = run.walker.order
        send = self.run(order, pos=run.pos).wire
        again, raised = attempt(lambda: step.run(order, self.merchant, {}, send))
        made = self.made(run)
        found = [raised] if raised else []
        if again is not None and again.kind not in (Kind.ACCEPTED, Kind.PENDING):
            found.append(f"sent again, the order is {shown(again)}")
        if made is not None and len(made) != 1:
            found.append(f"sent twice, the POS has it {len(made)} times: {self.requests(run)}")
        demand(
            "A keyed adapter may send an order again: the POS makes one.",
            found,
            "send the POS's idempotency key, made of order.order_id; without one it is QUERYABLE",
        )

    def test_two_orders_are_two(self) -> None:
        one = self.healthy(1)
        two = self.run(self.an_order(2), pos=one.pos)
        outcome = self.delivered(two)
        known = [each.walker.look_up() for each in (one, two)]
        ids = [each.external_id for each in known if each is not None]
        found = [] if outcome.kind is Kind.ACCEPTED else [f"the second is {shown(outcome)}"]
        if len(ids) == 2 and ids[0] == ids[1] is not None:
            found.append(f"both are the POS's order {ids[0]}")
        demand("Two orders are two at the POS.", found, "make key and mark of order.order_id")

    def test_a_look_up_finds_the_order_that_was_made_and_no_other(self) -> None:
        demand(
            "A look-up returns what run returned, and None for an order never sent.",
            self._lost(self.an_order(), self.an_order(2)),
            "look up by the mark that run sends; compare it with the order's before believing a reply",
        )

    def test_a_look_up_finds_the_order_among_many(self) -> None:
        if self.is_blind or not isinstance(self.pos(self.an_order()), HasOtherOrders):
            raise without("the POS has no crowd(number), or cannot be asked")
        found = []
        for number in (30, 300):
            run = self.healthy()
            if isinstance(run.pos, HasOtherOrders):
                run.pos.crowd(number)
            known, raised = attempt(run.walker.look_up)
            if raised or known is None or known.kind is not Kind.ACCEPTED:
                found.append(f"behind {number} others: {raised or shown(known)}")
        demand(
            "A look-up finds the order, however many the POS has got since.",
            found,
            "ask by our id; else go through all pages of windows(order, skew)",
        )

    def test_an_order_is_cancelled_once_and_for_all(self) -> None:
        run = self.healthy()
        order, outcome = run.walker.order, self.cancelled(run)
        if outcome.kind in (Kind.REJECTED, Kind.FAILED):
            raise without(f"the POS cancels nothing: {shown(outcome)}")
        again, made = self.cancelled(run), self.made(run)
        found = [*run.odd]
        if outcome.kind is not Kind.CANCELLED:
            found.append(f"cancelled, the order is {shown(outcome)}")
        if again.kind not in (Kind.CANCELLED, Kind.REJECTED):
            found.append(f"cancelled twice, the order is {shown(again)}")
        found += contradicted(outcome, made, order.total) if made is not None else []
        known, raised = attempt(run.walker.look_up)
        if raised or (known is not None and known.kind in (Kind.ACCEPTED, Kind.PENDING)):
            found.append(f"looked up after that, the order is {raised or shown(known)}")
        if len(self.steps) == 1:
            found += self._never_sent(run)
        demand(
            "undo cancels the order at the POS, and says so again when asked again.",
            found,
            "return CANCELLED once the POS says so; rejected(Rejection.UNKNOWN_ORDER, …) if it has none",
        )

    def _never_sent(self, run: Run) -> Iterator[str]:
        """Of an adapter with one step: cancel an order that the POS does not have."""
        [step] = self.steps
        undo = step.undo
        if callable(undo):
            wire = self.run(self.an_order(2), pos=run.pos).wire
            never, raised = attempt(lambda: undo(self.an_order(2), self.merchant, {}, wire))
            code = never.reason.code if never is not None and never.reason is not None else ""
            if raised or never is None or code != Rejection.UNKNOWN_ORDER:
                yield f"cancelled, an order never sent is {raised or shown(never)}"

    def _lost(self, order: Order, never: Order) -> Iterator[str]:
        """Findings of a walk with a look-up before and after each step."""
        run, facts = self.run(order), dict[str, Any]()
        for step in self.steps:
            look_up = step.look_up
            if look_up is not None and step is self.steps[0]:
                for each in (order, never):
                    known = look_up(each, self.merchant, {}, run.wire)
                    if known is not None:
                        yield f"{step.name}: never sent, the order is {shown(known)}"
            outcome = step.run(order, self.merchant, dict(facts), run.wire)
            if look_up is not None:
                sent = len(run.wire.requests)
                known = look_up(order, self.merchant, dict(facts), run.wire)
                if known is None or known.kind is not outcome.kind:
                    yield f"{step.name}: run says {shown(outcome)}, the look-up {shown(known)}"
                elif known.external_id != outcome.external_id:
                    ids = (outcome.external_id, known.external_id)
                    yield f"{step.name}: run says the id {ids[0]}, the look-up {ids[1]}"
                if changing := [each for each in run.wire.requests[sent:] if each.changes]:
                    yield f"{step.name}: the look-up sends {changing[0].method} {changing[0].url}"
            facts |= outcome.facts or {}
        first = self.steps[0].look_up
        if first is not None and (known := first(never, self.merchant, {}, run.wire)) is not None:
            yield f"an order never sent is taken for the POS's: {shown(known)}"

    def _odd_requests(self, run: Run) -> Iterator[str]:
        base = self.merchant.base_url
        for number, name in numbered(run):
            each = run.wire.requests[number]
            if not each.url.startswith(f"{base}/"):
                yield f"{name} goes elsewhere than to {base}"
            texts = [each.method, each.url, *each.headers, *each.headers.values()]
            if not all(text.isascii() and text.isprintable() for text in texts) or " " in each.url:
                yield f"{name} has a URL or a header that cannot be sent: {each.url} {each.headers}"


def _differences(one: list[Request], two: list[Request]) -> Iterator[str]:
    if len(one) != len(two):
        yield f"once {len(one)} requests, once {len(two)}"
    for number, (mine, theirs) in enumerate(zip(one, two, strict=False)):
        if mine != theirs:
            names = ("method", "url", "headers", "body", "expects", "is_search")
            name = next(each for each in names if getattr(mine, each) != getattr(theirs, each))
            shows = [str(getattr(each, name))[:300] for each in (mine, theirs)]
            yield f"request {number + 1} has another {name}: {shows[0]} and {shows[1]}"
