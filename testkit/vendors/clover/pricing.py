"""Totals of a Clover order, as "Calculate order totals" has them.

Documented: modifiers are added to a line's price; then the line's discounts, percentages before
amounts; then the order's, likewise; a service charge on the rest, untaxed; taxes on the rest without
the charge. Tax rates are percent times 100,000, service charges percent times 10,000. Half a cent is
rounded up. About taxes the document contradicts itself: the words sum all lines of one rate and round
once, the last table rounds each line. ``each_line`` chooses.

Judgement: several percentages are of the same amount; nothing falls below 0; taxes see an order's
discount in cents spread over the lines in proportion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from testkit.vendors.clover.refusal import Body


@dataclass(frozen=True, slots=True)
class Totals:
    """The price of an order, in minor units. ``taxes``: rates, each with its ``amount``."""

    subtotal: int
    service_charge: int
    taxes: Sequence[Body]
    is_vat: bool

    @property
    def tax(self) -> int:
        """All taxes: with VAT, those within the prices."""
        return sum(each["amount"] for each in self.taxes)

    @property
    def total(self) -> int:
        return self.subtotal + self.service_charge + (0 if self.is_vat else self.tax)


def totals(
    lines: Sequence[Body],
    discounts: Sequence[Body] = (),
    charge: int = 0,
    *,
    is_vat: bool = False,
    each_line: bool = False,
) -> Totals:
    """The price of these lines.

    Args:
        lines: with ``price``, ``modifications``, ``discounts``, ``taxRates``, perhaps ``unitQty``.
        discounts: of the order.
        charge: the service charge, percent times 10,000.
        is_vat: prices include their taxes.
        each_line: round taxes for each line.
    """
    prices = [_less_percent(line_price(line), discounts) for line in lines]
    before = sum(prices)
    subtotal = max(0, before + _amount(discounts))
    rates: dict[str, Body] = {}
    parts: dict[str, list[Fraction]] = {}
    for line, price in zip(lines, prices, strict=True):
        taxed = Fraction(price * subtotal, before) if before else Fraction(0)
        for rate in line["taxRates"]:
            part = Fraction(rate["rate"], 10_000_000)
            rates[rate["id"]] = rate
            tax = taxed * (part / (1 + part) if is_vat else part)
            parts.setdefault(rate["id"], []).append(tax)
    amounts = {
        name: sum(map(_half_up, of_it)) if each_line else _half_up(sum(of_it, Fraction(0)))
        for name, of_it in parts.items()
    }
    taxes = [{**rates[name], "amount": amount} for name, amount in amounts.items()]
    return Totals(subtotal, _half_up(Fraction(subtotal * charge, 1_000_000)), taxes, is_vat)


def line_price(line: Body) -> int:
    """A line with its modifiers, less its own discounts."""
    price = _half_up(Fraction(line["price"] * line.get("unitQty", 1000), 1000))
    whole = price + sum(each["amount"] for each in line["modifications"])
    return max(0, _less_percent(whole, line["discounts"]) + _amount(line["discounts"]))


def _amount(discounts: Sequence[Body]) -> int:
    return sum(each.get("amount") or 0 for each in discounts)


def _less_percent(amount: int, discounts: Sequence[Body]) -> int:
    percent = sum(each.get("percentage") or 0 for each in discounts)
    return max(0, amount - _half_up(Fraction(amount * percent, 100)))


def _half_up(amount: Fraction) -> int:
    return floor(amount + Fraction(1, 2))
