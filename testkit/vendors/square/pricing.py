"""An order's prices as Square computes them: "Order price adjustments", "Order service charges".

*Document*: percentages round half to even ("bankers' rounding"), at each line; discounts first, in
the order percentage of a line, percentage of the order, amount of a line, amount of the order; then
service charges of the SUBTOTAL_PHASE, taxes, charges of the TOTAL_PHASE, which are never taxable.
INCLUSIVE taxes are inside the prices. ORDER scope reaches every line, LINE_ITEM scope the lines
whose ``applied_taxes`` or ``applied_discounts`` name it.

*Judgement*: each discount is of what earlier ones have left; a discount of an amount is spread over
lines by their share, the rest of a unit goes to the last ones; several inclusive taxes share a price
by their rates, and additive ones are of the price without them. A tip is part of ``total_money``.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from testkit.vendors.square.catalog import Catalog, Listed
from testkit.vendors.square.refusals import Refused

Json = dict[str, Any]


def rounded(amount: Fraction) -> int:
    """Half to even."""
    return round(amount)


def rate(percentage: str) -> Fraction:
    """A percentage as a factor."""
    return Fraction(Decimal(percentage)) / 100


def price(
    order: Json, catalog: Catalog, currency: str, tip: int, *, counts_modifiers: bool
) -> None:
    """Fill in names, prices, applied amounts and totals. Raises Refused.

    Args:
        order: a complete one, with a ``uid`` on each of its parts.
        catalog: the seller's.
        currency: the location's.
        tip: of the order's payments.
        counts_modifiers: a modifier's own quantity multiplies its price (see ``Knobs``).
    """

    def money(amount: int) -> Json:
        return {"amount": amount, "currency": currency}

    for number, tax in enumerate(order.get("taxes", ())):
        if tax.get("catalog_object_id") is not None:
            if tax["catalog_object_id"] not in catalog.taxes:
                field = f"order.taxes[{number}].catalog_object_id"
                raise Refused("NOT_FOUND", "no such tax is in the catalog", field)
            tax["percentage"] = catalog.taxes[tax["catalog_object_id"]]
    lines = order.setdefault("line_items", [])
    for number, line in enumerate(lines):
        path = f"order.line_items[{number}]"
        unit = _of_catalog(line, catalog.variations, path, money)
        quantity = Fraction(Decimal(line["quantity"]))
        whole = rounded(unit * quantity)
        line["variation_total_price_money"] = money(whole)
        for place, each in enumerate(line.get("modifiers", ())):
            cost = _of_catalog(each, catalog.modifiers, f"{path}.modifiers[{place}]", money)
            own = int(each.setdefault("quantity", "1")) if counts_modifiers else 1
            each["total_price_money"] = money(rounded(cost * own * quantity))
            whole += each["total_price_money"]["amount"]
        line["gross_sales_money"] = money(whole)
    left = _after_discounts(order, lines, money)
    charges = order.get("service_charges", [])
    for each in charges:
        each.pop("total_money", None)  # of an earlier version
        is_late = each.get("calculation_phase") == "TOTAL_PHASE"
        if not is_late:
            _charge(each, sum(left), money)
    taxed = _taxes(order, [*lines, *(each for each in charges if each.get("taxable"))], left, money)
    total = sum(line["total_money"]["amount"] for line in lines)
    total += sum(each["total_money"]["amount"] for each in charges if "total_money" in each)
    for each in charges:
        if "total_money" not in each:
            total += _charge(each, total, money)
    order["total_tax_money"] = money(taxed)
    discounted = sum(line["total_discount_money"]["amount"] for line in lines)
    order["total_discount_money"] = money(discounted)
    charged = sum(each["applied_money"]["amount"] for each in charges)
    order["total_service_charge_money"] = money(charged)
    order["total_tip_money"] = money(tip)
    order["total_money"] = money(total + tip)


def _of_catalog(part: Json, listed: Mapping[str, Listed], path: str, money: Any) -> int:
    """The price of one unit: the part's own, else the catalog's."""
    known_as = part.get("catalog_object_id")
    if known_as is not None:
        found = listed.get(known_as)
        if found is None:
            detail = f"no object {known_as} of this kind is in the catalog"
            raise Refused("NOT_FOUND", detail, f"{path}.catalog_object_id")
        part["name"] = found.name  # Square's name wins over the request's
        part.setdefault("base_price_money", money(found.price))
    for name in ("name", "base_price_money"):
        if part.get(name) in (None, ""):
            detail = f"an ad hoc part needs {name}"
            raise Refused("MISSING_REQUIRED_PARAMETER", detail, f"{path}.{name}")
    return int(part["base_price_money"]["amount"])


_APPLIED = {"tax_uid": "applied_taxes", "discount_uid": "applied_discounts"}


def _applies(name: str, each: Json, part: Json) -> bool:
    """Whether a tax or a discount reaches a line or charge; ``name``: of references to it."""
    named = {reference[name] for reference in part.get(_APPLIED[name], ())}
    return each.get("scope", "ORDER") == "ORDER" or each["uid"] in named


def _after_discounts(order: Json, lines: Sequence[Json], money: Any) -> list[int]:
    """What each line still costs."""
    left = [line["gross_sales_money"]["amount"] for line in lines]
    before = list(left)
    discounts: Iterable[Json] = order.get("discounts", ())
    for each in sorted(discounts, key=_discount_rank):
        on = [n for n, line in enumerate(lines) if _applies("discount_uid", each, line)]
        if "percentage" in each:
            parts = [rounded(left[n] * rate(each["percentage"])) for n in on]
        else:
            parts = _spread(each["amount_money"]["amount"], [left[n] for n in on])
        for n, part in zip(on, parts, strict=True):
            left[n] -= part
        each["applied_money"] = money(sum(parts))
    for line, was, now in zip(lines, before, left, strict=True):
        line["total_discount_money"] = money(was - now)
    return left


def _discount_rank(discount: Json) -> tuple[bool, bool]:
    return "percentage" not in discount, discount.get("scope", "ORDER") == "ORDER"


def _spread(amount: int, over: Sequence[int]) -> list[int]:
    """The amount in shares, none above its line."""
    whole = sum(over)
    amount, parts, passed, spent = min(amount, whole), [], 0, 0
    for each in over:
        passed += each
        parts.append(rounded(Fraction(amount * passed, whole or 1)) - spent)
        spent += parts[-1]
    return parts


def _charge(charge: Json, of: int, money: Any) -> int:
    """Fill in a charge without its taxes."""
    if charge.get("calculation_phase", "").startswith("APPORTIONED"):
        raise Refused("NOT_IMPLEMENTED", "apportioned service charges are not simulated")
    if "percentage" in charge:
        applied = rounded(of * rate(charge["percentage"]))
    else:
        applied = int(charge["amount_money"]["amount"])
    charge |= {"applied_money": money(applied), "total_money": money(applied)}
    charge["total_tax_money"] = money(0)
    return applied


def _taxes(order: Json, parts: Sequence[Json], left: Sequence[int], money: Any) -> int:
    """Fill in the taxes of lines and taxable charges, and the parts' totals; the taxes' sum."""
    taxes, sums = order.get("taxes", []), dict[str, int]()
    amounts = [*left, *(each["applied_money"]["amount"] for each in parts[len(left) :])]
    for part, amount in zip(parts, amounts, strict=True):
        on = [each for each in taxes if _applies("tax_uid", each, part)]
        inside = [each for each in on if each.get("type") == "INCLUSIVE"]
        share = 1 + sum(rate(each["percentage"]) for each in inside)
        of_each = {
            each["uid"]: rounded(amount * rate(each["percentage"]) / share) for each in inside
        }
        net = amount - sum(of_each.values())
        added = {
            each["uid"]: rounded(net * rate(each["percentage"]))
            for each in on
            if each not in inside
        }
        of_each |= added
        for uid, tax in of_each.items():
            sums[uid] = sums.get(uid, 0) + tax
        part["total_tax_money"] = money(sum(of_each.values()))
        part["total_money"] = money(amount + sum(added.values()))
        if of_each:
            part["applied_taxes"] = [
                {"uid": f"applied-{uid}", "tax_uid": uid, "applied_money": money(tax)}
                for uid, tax in of_each.items()
            ]
    for each in taxes:
        each["applied_money"] = money(sums.get(each["uid"], 0))
    return sum(sums.values())
