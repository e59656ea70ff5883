"""CreateOrder, CalculateOrder, RetrieveOrder, BatchRetrieveOrders, SearchOrders, UpdateOrder.

*Document*: a COMPLETED or CANCELED order cannot be updated; an update is sparse and names the order's
version; a paid order cannot be cancelled; all fulfillments end before an order does.
*Reported by integrators*: UpdateOrder without a key answers 200 and changes nothing; lines of a paid
order cannot be modified. *Judgement*: Square takes an order for a sold-out item (only the catalog
says so), and refuses orders for an inactive location.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from testkit.vendors.square import pricing, rules, search
from testkit.vendors.square.access import moment
from testkit.vendors.square.refusals import Refused
from testkit.vendors.square.seller import ENDED, Json, Kept, Seller

#: Fields of an order that Square computes again.
_OWN = ("total_money", "tenders", "refunds", "net_amount_due_money")


def create_order(seller: Seller, given: Json) -> Json:
    """Make an order."""
    order = _new(seller, given.get("order"))
    now = moment(seller.clock())
    known = seller.new_id("order")
    made = {**order, "id": known, "version": 1, "created_at": now, "updated_at": now}
    for each in made.get("fulfillments", ()):
        each.setdefault("state", "PROPOSED")
    seller.orders[known] = kept = Kept(made)
    seller.due(kept)
    seller.notify_order("order.created", kept)
    reply = {"order": deepcopy(made)}
    seller.work(kept)
    return reply


def calculate_order(seller: Seller, given: Json) -> Json:
    """Price an order; nothing is kept."""
    order = _new(seller, given.get("order"))
    return {"order": {**order, "net_amount_due_money": order["total_money"]}}


def retrieve_order(seller: Seller, known: str) -> Json:
    """The current order."""
    return {"order": deepcopy(seller.kept(known).order)}


def batch_retrieve_orders(seller: Seller, given: Json) -> Json:
    """The known orders among these ids."""
    found = [seller.orders[each].order for each in given["order_ids"] if each in seller.orders]
    return {"orders": deepcopy(found)}


def search_orders(seller: Seller, given: Json) -> Json:
    """See ``search.found``."""
    if given.get("location_ids") != [seller.location_id]:
        raise Refused("INVALID_VALUE", "the seller has one location", "location_ids")
    return search.found((each.order for each in seller.orders.values()), given)


def update_order(seller: Seller, known: str, given: Json) -> Json:
    """Change an open order."""
    kept, change = seller.kept(known), _without_nulls(given.get("order") or {})
    order = kept.order
    if given.get("fields_to_clear"):
        raise Refused("NOT_IMPLEMENTED", "fields_to_clear is not simulated")
    if "version" not in change:
        raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "order.version")
    if change["version"] != order["version"]:
        detail = f"the order has version {order['version']}, not {change['version']}"
        raise Refused("VERSION_MISMATCH", detail, "order.version")
    if order["state"] in ("COMPLETED", "CANCELED"):
        raise Refused("BAD_REQUEST", f"a {order['state']} order cannot be updated", "order.state")
    if not given.get("idempotency_key"):
        return {"order": deepcopy(order)}
    if kept.is_paid and set(change) & {"line_items", "taxes", "discounts", "service_charges"}:
        raise Refused("BAD_REQUEST", "LineItems cannot be modified for finalized tenders.")
    before = {each["uid"]: each["state"] for each in order.get("fulfillments", ())}
    changed = _merged(order, change)
    _check_states(kept, before, changed)
    state = changed.pop("state")
    tip = sum(each["tip_money"]["amount"] for each in kept.payments)
    computed = _computed(seller, _requested(changed), tip)
    kept.order = order = {**changed, **computed, "state": state}
    if state in ("COMPLETED", "CANCELED"):
        order["closed_at"] = moment(seller.clock())
    seller.due(kept)
    seller.changed(kept, before)
    return {"order": deepcopy(order)}


def _check_states(kept: Kept, before: Mapping[str, str], changed: Json) -> None:
    states = set()
    for each in changed.get("fulfillments", ()):
        was = before.get(each.get("uid"), "PROPOSED")
        now = each.setdefault("state", "PROPOSED")
        states.add(now)
        if was in ENDED and now != was:
            detail = f"a fulfillment that is {was} cannot become {now}"
            raise Refused("BAD_REQUEST", detail, "order.fulfillments")
    if changed["state"] == "CANCELED":
        if kept.is_paid:
            raise Refused("BAD_REQUEST", "a paid order cannot be canceled", "order.state")
        if states - {"CANCELED", "FAILED"}:
            detail = "All fulfillments must have a state of CANCELED or FAILED."
            raise Refused("BAD_REQUEST", detail, "order.state")
    if changed["state"] == "COMPLETED" and (states - set(ENDED) or not kept.is_paid):
        detail = "All fulfillments must have a state of COMPLETED, CANCELED, or FAILED."
        raise Refused("BAD_REQUEST", detail, "order.state")


def _new(seller: Seller, given: Json | None) -> Json:
    """A new order, computed. Raises Refused."""
    if given is None:
        raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "order")
    if given["location_id"] != seller.location_id:
        raise Refused("NOT_FOUND", "no such location", "order.location_id")
    if not seller.knobs.is_active:
        raise Refused("INVALID_LOCATION", "the location is inactive", "order.location_id")
    if given.get("state") in ("COMPLETED", "CANCELED"):
        raise Refused("INVALID_VALUE", "a new order is OPEN or DRAFT", "order.state")
    return _computed(seller, given)


def _computed(seller: Seller, given: Json, tip: int = 0) -> Json:
    """The order with Square's own names and prices. Raises Refused."""
    order: Json = _without_nulls(deepcopy(given))
    order.setdefault("state", "OPEN")
    rules.check(order, seller.currency, needs_recipient=seller.knobs.needs_recipient)
    _name_parts(seller, order)
    asked = order.get("pricing_options", {}).get("auto_apply_taxes")
    if seller.knobs.shop_tax is not None and (asked or seller.knobs.adds_tax_unasked):
        tax = {"uid": "shop-tax", "name": "Sales tax", "percentage": seller.knobs.shop_tax}
        others = [each for each in order.get("taxes", ()) if each["uid"] != "shop-tax"]
        order["taxes"] = [*others, {**tax, "scope": "ORDER", "auto_applied": True}]
    counts = seller.knobs.counts_modifiers
    pricing.price(order, seller.catalog, seller.currency, tip, counts_modifiers=counts)
    return order


def _name_parts(seller: Seller, order: Json) -> None:
    """Square's own ``uid`` for each part without one."""
    for name in ("line_items", "taxes", "discounts", "service_charges", "fulfillments"):
        for each in order.get(name, ()):
            for part in (each, *each.get("modifiers", ())):
                if not part.get("uid"):
                    part["uid"] = seller.new_id("uid")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _merged(old: Any, new: Any) -> Any:
    """A sparse update: objects by field, lists of parts by ``uid``, everything else replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merged(old.get(name), each) for name, each in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and all(isinstance(n, dict) for n in new):
        by_uid = {each.get("uid"): each for each in new}
        kept = [_merged(each, by_uid.pop(each.get("uid"), {})) for each in old]
        return [*kept, *by_uid.values()]
    return deepcopy(new)


def _requested(order: Json) -> Json:
    """The order without fields that only Square may set."""
    return {name: each for name, each in order.items() if name not in _OWN}
