"""An order's prices, from "Order Price Adjustments", "Order Discounts", "Order Taxes", and "Order
Service Charges".

*Document*: half rounds to even ("bankers' rounding"); discounts first, in the order percentage of a
line, percentage of the order, amount of a line, amount of the order; then service charges of the
SUBTOTAL_PHASE, taxes, untaxed charges of the TOTAL_PHASE. LINE_ITEM scope is computed for each line
with a reference in ``applied_taxes`` or ``applied_discounts``; ORDER scope for the whole order, then
distributed. INCLUSIVE taxes are inside the prices. *Reported by integrators*: orders whose tax shows
that an ORDER tax is rounded once (forum 2354, 11179, 11705; see the tests).

*Judgement*: each discount is of the price after earlier discounts; several inclusive taxes share a
price by their rates, and additive taxes are of the price without inclusive taxes; a tip is part of
``total_money``.
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
        order: complete, each part with a ``uid``.
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
    """The price of a unit: the part's, else the catalog's."""
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
    """Whether a tax or a discount reaches a line or charge; ``name``: of a reference's field."""
    named = {reference[name] for reference in part.get(_APPLIED[name], ())}
    return _is_of_order(each) or each["uid"] in named


def _after_discounts(order: Json, lines: Sequence[Json], money: Any) -> list[int]:
    """The price of each line after discounts."""
    left = [line["gross_sales_money"]["amount"] for line in lines]
    before = list(left)
    discounts: Iterable[Json] = order.get("discounts", ())
    for each in sorted(discounts, key=_discount_rank):
        on = [n for n, line in enumerate(lines) if _applies("discount_uid", each, line)]
        whole = sum(left[n] for n in on) or 1
        if "percentage" in each:
            exact = [left[n] * rate(each["percentage"]) for n in on]
        elif _is_of_order(each):
            amount = min(each["amount_money"]["amount"], whole)
            exact = [Fraction(amount * left[n], whole) for n in on]
        else:
            exact = [Fraction(min(each["amount_money"]["amount"], left[n])) for n in on]
        shares = _shares(each, exact)
        for n, share in zip(on, shares, strict=True):
            left[n] -= share
        each["applied_money"] = money(sum(shares))
    for line, was, now in zip(lines, before, left, strict=True):
        line["total_discount_money"] = money(was - now)
    return left


def _discount_rank(discount: Json) -> tuple[bool, bool]:
    return "percentage" not in discount, _is_of_order(discount)


def _is_of_order(each: Json) -> bool:
    return bool(each.get("scope", "ORDER") == "ORDER")


def _shares(each: Json, exact: Sequence[Fraction]) -> list[int]:
    """Units of each part: of the order, rounded once and distributed; of lines, each rounded."""
    if not _is_of_order(each):
        return [rounded(part) for part in exact]
    shares, passed = [], Fraction()
    for part in exact:
        shares.append(rounded(passed + part) - rounded(passed))
        passed += part
    return shares


def _charge(charge: Json, of: int, money: Any) -> int:
    """Fill in a charge, untaxed."""
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
    taxes: Sequence[Json] = order.get("taxes", [])
    amounts = [*left, *(each["applied_money"]["amount"] for each in parts[len(left) :])]
    nets, of_parts = list(amounts), [dict[str, int]() for _ in parts]
    inside = [each for each in taxes if each.get("type") == "INCLUSIVE"]
    for each in [*inside, *(each for each in taxes if each not in inside)]:
        on = [n for n, part in enumerate(parts) if _applies("tax_uid", each, part)]
        factor = rate(each["percentage"])
        if each in inside:
            exact = [amounts[n] * factor / _with_inside(inside, parts[n]) for n in on]
        else:
            exact = [nets[n] * factor for n in on]
        for n, share in zip(on, _shares(each, exact), strict=True):
            of_parts[n][each["uid"]] = share
            nets[n] -= share if each in inside else 0
        each["applied_money"] = money(sum(of_part.get(each["uid"], 0) for of_part in of_parts))
    for part, net, of_part in zip(parts, nets, of_parts, strict=True):
        part["total_tax_money"] = money(sum(of_part.values()))
        part["total_money"] = money(net + sum(of_part.values()))
        if of_part:
            part["applied_taxes"] = [
                {"uid": f"applied-{uid}", "tax_uid": uid, "applied_money": money(tax)}
                for uid, tax in of_part.items()
            ]
    return sum(sum(of_part.values()) for of_part in of_parts)


def _with_inside(inside: Sequence[Json], part: Json) -> Fraction:
    """A part's price by its price without inclusive taxes."""
    on = [each for each in inside if _applies("tax_uid", each, part)]
    return 1 + sum((rate(each["percentage"]) for each in on), Fraction())
