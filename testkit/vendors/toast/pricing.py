"""A check's amounts, computed from the restaurant's menu, charges, discounts and tax.

Of the definition and "Order prices": ``amount`` is without tax and ``totalAmount`` with it; a service
charge is computed before discounts, tax after them; each item's tax is rounded, then all are added;
a percentage of a discount is rounded half to even. Judgement: a tax is rounded half up, a modifier's
tax is in its item's, and a check's discount is spread over its items by their prices.
"""

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

from testkit.vendors.toast.menu import Body
from testkit.vendors.toast.restaurant import Charge, Restaurant, dollars
from testkit.vendors.toast.rules import Line, Refused, cents


def priced(check: Body, lines: Sequence[Line], place: Restaurant) -> Body:
    """The check as Toast answers with it, without what it numbers. Raises Refused."""
    rate = Decimal(0) if check.get("taxExempt") else Decimal(str(place.tax)) / 100
    prices = [_price(line) for line in lines]
    if min(prices, default=0) < 0:
        raise Refused("an item is negatively priced")
    discount = 0
    for each in check.get("appliedDiscounts") or ():
        charge = place.discounts[each["discount"]["guid"].lower()]
        discount = _amount(charge, each.get("discountAmount"), sum(prices), ROUND_HALF_EVEN)
    shares = _spread(min(discount, sum(prices)), prices)
    nets, taxes, selections = [], [], []
    for line, price, share in zip(lines, prices, shares, strict=True):
        net = price - share
        if place.has_tax:
            net = _rounded(net / (1 + rate))
        nets.append(net)
        taxes.append(price - share - net if place.has_tax else _rounded(net * rate))
        amounts = {"preDiscountPrice": price, "price": net, "tax": taxes[-1]}
        selections.append(_selection(line) | {key: dollars(each) for key, each in amounts.items()})
    for each in check.get("appliedServiceCharges") or ():
        charge = place.service_charges[each["serviceCharge"]["guid"].lower()]
        nets.append(_amount(charge, each.get("chargeAmount"), sum(prices), ROUND_HALF_UP))
        taxes.append(_rounded(nets[-1] * rate) if charge.is_taxed else 0)
    amount, tax = sum(nets), sum(taxes)
    return {
        **check,
        "entityType": "Check",
        "selections": selections,
        "amount": dollars(amount),
        "taxAmount": dollars(tax),
        "totalAmount": dollars(amount + tax),
    }


def _price(line: Line) -> int:
    """The price of a line with its modifiers, in cents."""
    if line.item is None:
        return 0
    each = line.item.price
    if each is None:
        each = cents(line.posted.get("openPriceAmount") or 0, "openPriceAmount")
    return line.quantity * each + sum(map(_price, line.modifiers))


def _selection(line: Line) -> Body:
    return {
        **line.posted,
        "entityType": "MenuItemSelection",
        "displayName": line.name,
        "quantity": line.quantity,
        "price": dollars(_price(line)),
        "modifiers": [_selection(each) for each in line.modifiers],
        "voided": False,
        "fulfillmentStatus": "NEW",
    }


def _amount(charge: Charge, given: float | None, subtotal: int, rounding: str) -> int:
    """A charge's cents. An order's own amount counts for one that is open alone."""
    if charge.is_open:
        return cents(given or 0, charge.name)
    amount = Decimal(str(charge.amount))
    return _rounded(amount if charge.kind == "FIXED" else subtotal * amount / 100, rounding)


def _spread(discount: int, prices: Sequence[int]) -> list[int]:
    """The discount's share of each price; the last one with a price has the remainder."""
    shares = [discount * price // max(1, sum(prices)) for price in prices]
    last = max((number for number, price in enumerate(prices) if price), default=None)
    if last is not None:
        shares[last] += discount - sum(shares)
    return shares


def _rounded(amount: Decimal, rounding: str = ROUND_HALF_UP) -> int:
    return int(amount.quantize(Decimal(1), rounding))
