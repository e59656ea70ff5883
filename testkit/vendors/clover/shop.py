"""A Clover merchant's own records, as the REST API serves them, and how this Clover behaves."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from testkit.vendors.clover.refusal import Body

DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


def item(item_id: str, name: str, price: int, *groups: str, **fields: Any) -> Body:
    """An item of the inventory, with the merchant's default taxes."""
    known = {"priceType": "FIXED", "available": True, "defaultTaxRates": True, "itemStock": None}
    groups_of_it = {"modifierGroups": list(groups)}
    return {"id": item_id, "name": name, "price": price, **known, **groups_of_it, **fields}


def modifier(modifier_id: str, name: str, price: int) -> Body:
    """A modifier of the inventory."""
    return {"id": modifier_id, "name": name, "price": price, "available": True}


def tender(tender_id: str, kind: str, label: str) -> Body:
    """A way to pay; ``kind`` ends Clover's own key."""
    key = {"labelKey": f"com.clover.tender.{kind}", "enabled": True, "visible": True}
    return {"id": tender_id, "label": label, **key}


def _by_id(*records: Body) -> dict[str, Body]:
    return {each["id"]: each for each in records}


class Shop:
    """One merchant: records by id, in Clover's form. A test changes them as the merchant would.

    Args:
        currency: ISO 4217.
        is_vat: prices include their taxes, and none is added.
        merchant_id: ``mId``.
    """

    def __init__(
        self, currency: str = "EUR", is_vat: bool = False, merchant_id: str = "M1"
    ) -> None:
        self.currency, self.is_vat, self.merchant_id = currency, is_vat, merchant_id
        self.timezone = "America/New_York"
        extras = [modifier("CHEESE", "Cheese", 50), modifier("NOONIONS", "No onions", 0)]
        self.modifier_groups = _by_id({"id": "EXTRAS", "name": "Extras", "modifiers": extras})
        burger, coke = item("BURGER", "Burger", 850, "EXTRAS"), item("COKE", "Coke", 250)
        self.items = _by_id(burger, coke, item("NUTS", "Nuts", 2000, priceType="PER_UNIT"))
        self.order_types = _by_id(
            {"id": "PICKUP", "label": "Pick up", "isHidden": False, "isDefault": True},
            {"id": "DELIVERY", "label": "Delivery", "isHidden": False, "isDefault": False},
        )
        external, card = ("EXTERNAL", "external_payment", "Online"), ("CARD", "credit_card", "Card")
        self.tenders = _by_id(tender(*external), tender(*card))
        charge = {"id": "SERVICE", "name": "Service", "percentageDecimal": 50_000}  # 5 %
        self.service_charges = _by_id(charge)
        self.tax_rates: dict[str, Body] = {}
        self.set_hours(**{each: {"elements": [{"start": 0, "end": 2400}]} for each in DAYS})

    def set_hours(self, **hours: Body) -> None:
        """The merchant opens at these hours only, by weekday."""
        closed = {each: {"elements": list[Body]()} for each in DAYS}
        self.opening_hours = _by_id({"id": "HOURS", **closed, **hours})

    def add_tax(self, percent: float, rate_id: str = "TAX") -> None:
        """The merchant adds a tax on all that has the default taxes."""
        record = {"id": rate_id, "name": f"Tax {percent:g} %", "rate": round(percent * 100_000)}
        self.tax_rates[rate_id] = {**record, "isDefault": True}

    def set_available(self, record_id: str, available: bool) -> None:
        """The kitchen has run out of an item or a modifier, or has it again."""
        record = self.items.get(record_id) or self.modifiers[record_id]
        record["available"] = available

    def hide_order_type(self, type_id: str, hidden: bool = True) -> None:
        """The merchant hides an order type, or shows it again."""
        self.order_types[type_id]["isHidden"] = hidden

    @property
    def modifiers(self) -> dict[str, Body]:
        """Of all groups."""
        groups = self.modifier_groups.values()
        return _by_id(*(each for group in groups for each in group["modifiers"]))

    def rates_of(self, known: Body | None) -> list[Body]:
        """Tax rates of an item; an ad hoc one has the default ones (judgement)."""
        if known is None or known["defaultTaxRates"]:
            return [each for each in self.tax_rates.values() if each["isDefault"]]
        return [self.tax_rates[each] for each in known.get("taxRates", ())]


@dataclass(slots=True)
class Knobs:
    """What no document says, and what befalls real merchants. Each default is the likely one.

    Args:
        cuts_texts: cut a text that is too long, silently; else refuse it, as the Android SDK does.
        own_prices: charge the inventory's prices, whatever price an inventory item comes with.
        taxes_each_line: round taxes for each line; see ``pricing``.
        hides_stateless: an atomic order without a state is hidden (documented for orders of several
            calls); else open (a recorded reply).
        takes_reference: keep an atomic order's ``externalReferenceId``; else drop it, silently.
        ignored_filters: fields whose filters do nothing, silently.
        refuses_unavailable: refuse what is sold out; no document says that Clover looks.
        refuses_hidden: refuse order types that are hidden.
        loses_note: orders are made without their notes.
        oldest_first: lists begin with the oldest order.
        lists_after: seconds until lists have a new order, which is found by its id at once.
        spelling: of states and currencies in replies, as ``{"open": "OPEN"}``.
        payment_result: of each payment that is asked for; FAIL takes no money, and the order stays open.
        hides_payments: replies show no payment.
        is_online: whether the device that prints is.
        prints_after: seconds from a request to print until the ticket is out.
        printer_fails: printing ends in FAILED.
        takes: seconds for which a request is in progress, for the limits at once.
    """

    cuts_texts: bool = False
    own_prices: bool = False
    taxes_each_line: bool = False
    hides_stateless: bool = False
    takes_reference: bool = True
    ignored_filters: Collection[str] = ()
    refuses_unavailable: bool = False
    refuses_hidden: bool = False
    loses_note: bool = False
    oldest_first: bool = False
    lists_after: float = 0
    spelling: Mapping[str, str] = field(default_factory=dict)
    payment_result: str = "SUCCESS"
    hides_payments: bool = False
    is_online: bool = True
    prints_after: float = 0
    printer_fails: bool = False
    takes: float = 0
