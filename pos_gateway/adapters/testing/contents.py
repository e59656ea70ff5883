"""What the guest ordered arrives whole, at the agreed price, or the order is refused by name."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.judge import contradicted, shown
from pos_gateway.adapters.testing.orders import PRICES, changes, texts
from pos_gateway.adapters.testing.pos import AddsToTotals
from pos_gateway.adapters.testing.stand import Run, Stand, attempt, without
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome

#: What a POS of another price adds, in minor units.
_DEARER = 153


class KeepsContents(Stand):
    """An order's items, texts and money."""

    def test_no_field_of_an_order_is_dropped_silently(self) -> None:
        plain, found = self.healthy(), list[str]()
        sent = [(each.url, each.body, each.headers) for each in plain.wire.requests]
        for change in changes(self.item_of(), self.modifier):
            order = self._order(change.fields)
            run = self.run(order)
            outcome, raised = attempt(partial(self.forward, run))
            what = ", ".join(f"{name}: {value!r}" for name, value in change.fields.items())[:200]
            if raised or outcome is None:
                found.append(f"{what}: raises {raised}")
            elif outcome.kind in (Kind.REJECTED, Kind.FAILED):
                said = outcome.reason.message if outcome.reason is not None else ""
                if not any(name in said for name in change.names):
                    found.append(f"{what}: {shown(outcome)}, which names none of {change.names}")
                found += _unsaid(run, f"{what}: refused")
            elif [(each.url, each.body, each.headers) for each in run.wire.requests] == sent:
                found.append(f"{what}: the requests are those of an order without it")
            found += run.odd
        demand(
            "Each field of an order reaches the POS, or the order is refused and the field named.",
            found,
            "write the body in lines.request(order, limits, write), and every item, modifier and note in it",
        )

    def test_a_long_text_arrives_whole_or_is_refused(self) -> None:
        found = list[str]()
        for length in (60, 300, 1000, 4000):
            for path, text, fields in texts(length):
                run = self.run(self._order({"items": [{**self.item_of(), **fields}]}))
                outcome, raised = attempt(partial(self.forward, run))
                is_whole = any(text.encode() in (each.body or b"") for each in run.wire.requests)
                is_refused = outcome is not None and outcome.kind is Kind.REJECTED
                if raised or not (is_refused or is_whole):
                    found.append(f"{path} of {length} characters: {raised or shown(outcome)}")
        demand(
            "A kitchen never reads a part of a text.",
            found,
            "lines.text(value, limit, path) refuses a text that is too long; only cut what no cook reads",
        )

    def test_money_is_exact(self) -> None:
        found = list[str]()
        for price in PRICES:
            for quantity in (1, 3):
                priced = {**self.item_of(), "unit_price": price, "quantity": quantity}
                run = self.run(self._order({"items": [priced], "total": price * quantity}))
                outcome, raised = attempt(partial(self.delivered, run))
                where = f"{quantity} at {price}"
                if raised or outcome is None or outcome.kind is not Kind.ACCEPTED:
                    found.append(f"{where}: {raised or shown(outcome)}")
                elif (made := self.made(run)) is not None:
                    total = price * quantity
                    found += [f"{where}: {each}" for each in contradicted(outcome, made, total)]
        demand(
            "An order costs at the POS what the guest agreed to, to the cent.",
            found,
            "compute in minor units, and write decimals with Decimal(minor).scaleb(-2), never a float",
        )

    def test_no_currency_is_taken_for_hundredths(self) -> None:
        """The yen has no smaller unit, and a dinar has a thousand."""
        found = list[str]()
        for currency in ("JPY", "KWD"):
            fields = {
                "currency": currency,
                "items": [{**self.item_of(), "quantity": 1, "unit_price": 1701}],
            }
            run = self.run(self._order({**fields, "total": 1701}))
            _, raised = attempt(partial(self.forward, run))
            if raised or any(b"17.01" in (each.body or b"") for each in run.wire.requests):
                found.append(f"1701 {currency}: {raised or 'sent as 17.01'}")
        demand(
            "1701 JPY are 1701 yen, and 1701 KWD are 1.701 dinars.",
            found,
            "refuse currencies without hundredths, or write each with its own decimals",
        )

    def test_an_order_whose_items_do_not_come_to_its_total_is_not_accepted_at_another(self) -> None:
        found = list[str]()
        for off in (-1, 1, 1000):
            order = self._order({"total": self.an_order().total + off})
            run = self.run(order)
            outcome, raised = attempt(partial(self.delivered, run))
            made = self.made(run)
            if raised or outcome is None:
                found.append(f"{off:+}: raises {raised}")
            elif made is not None:
                found += [f"{off:+}: {each}" for each in contradicted(outcome, made, order.total)]
        demand(
            "No order is accepted at another total than its own.",
            found,
            "write the body in lines.request(order, limits, write), which adds up",
        )

    def test_an_order_that_the_pos_prices_otherwise_is_refused_and_stands_nowhere(self) -> None:
        order = self.an_order()
        pos = self.pos(order)
        if not isinstance(pos, AddsToTotals):
            raise without("the POS has no dearer(minor)")
        pos.dearer(_DEARER)
        run = self.run(order, pos=pos)
        outcome, raised = attempt(partial(self.delivered, run))
        demand(
            "An order at another price than the agreed one is refused with both, and stands nowhere.",
            self._mispriced(run, outcome, raised),
            "lines.mispriced(order, theirs) is the reason; undo the order at the POS before you reject it",
        )

    def _mispriced(self, run: Run, outcome: Outcome | None, raised: str) -> Iterator[str]:
        if raised or outcome is None or outcome.reason is None:
            yield raised or shown(outcome)
            return
        order, made = run.walker.order, self.made(run) or ()
        if (outcome.kind, outcome.reason.code) != (Kind.REJECTED, Rejection.PRICE_MISMATCH):
            yield f"{shown(outcome)}, and not {Rejection.PRICE_MISMATCH}"
        elif str(order.total) not in outcome.reason.message:
            yield f"{shown(outcome)}, which does not name {order.total}"
        if standing := [each for each in made if not each.is_cancelled]:
            yield f"the POS has {standing}"

    def item_of(self) -> Mapping[str, Any]:
        """The item of the suite's orders."""
        [item] = self.an_order().items
        return item.model_dump(exclude_none=True, exclude={"modifiers"})

    def _order(self, fields: Mapping[str, Any]) -> Order:
        return self.an_order(1, **fields)


def _unsaid(run: Run, what: str) -> Iterator[str]:
    """A finding of a refused order that was sent before."""
    if changing := [each.url for each in run.wire.requests if each.changes]:
        yield f"{what}, after {changing}"
