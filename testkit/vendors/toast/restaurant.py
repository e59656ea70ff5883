"""A Toast restaurant: what it has configured, and what Toast's APIs say of that.

Amounts are in cents; Toast's JSON has dollars.
"""

from dataclasses import dataclass, field
from decimal import Decimal

from testkit.vendors.toast.menu import Body, Group, published

_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
SCOPES = (
    "orders:read orders.channel:read orders.orders:write orders.channel:void orders.payments:write"
    " orders.delivery_info:write guest.pi:read delivery_info.address:read config:read menus:read"
    " stock:read restaurants:read"
)


@dataclass(frozen=True, slots=True)
class Charge:
    """A service charge, or a discount of a check.

    Attributes:
        kind: FIXED (cents), PERCENT, OPEN (each order gives the amount); of a discount OPEN_FIXED or
            OPEN_PERCENT.
        behaviors: dining behaviors that a service charge is for; empty: all.
    """

    name: str
    kind: str = "OPEN"
    amount: float = 0
    behaviors: tuple[str, ...] = ()
    is_taxed: bool = False

    @property
    def is_open(self) -> bool:
        return self.kind in ("OPEN", "OPEN_FIXED")


@dataclass(slots=True)
class Restaurant:
    """One location, and what Toast allows our client there. Tests change it at any time.

    Attributes:
        menu: by GUID of the group.
        dining_options: behaviors (DINE_IN, TAKE_OUT, DELIVERY) by GUID.
        payment_types, tables: names by GUID.
        service_charges, discounts: by GUID.
        tax: percent of each price; ``has_tax``: the menu's prices have it in them.
        hours: opening and closing time by day of the week; a day without is closed.
        auto_fires: a device approves orders and sends them to the kitchen; else staff does.
        is_online: that device works.
        archived: the restaurant is given up.
        stock: number left by GUID of an item that is sold out (0), or soon will be.
        scopes: of our client's token, blank-separated.
        duplicate_status: of the refusal of a second order with an external identifier.
        found_after: seconds until a new order is found by its external identifier.
        takes_payments: payments are applied to their checks; else nothing is paid.
        voids_begun: an order that was fired may be voided by the API.
        says_when: a request too many is answered with ``Retry-After``.
    """

    guid: str
    menu: dict[str, Group]
    dining_options: dict[str, str]
    payment_types: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    service_charges: dict[str, Charge] = field(default_factory=dict)
    discounts: dict[str, Charge] = field(default_factory=dict)
    tax: float = 0
    has_tax: bool = False
    currency: str = "USD"
    time_zone: str = "America/New_York"
    hours: dict[str, tuple[str, str]] = field(
        default_factory=lambda: dict.fromkeys(_DAYS, ("00:00:00.000", "23:59:59.000"))
    )
    prep_minutes: int = 20
    published: str = "2026-01-01T00:00:00.000+0000"
    auto_fires: bool = True
    is_online: bool = True
    archived: bool = False
    stock: dict[str, int] = field(default_factory=dict)
    scopes: str = SCOPES
    duplicate_status: int = 400
    found_after: float = 0
    takes_payments: bool = True
    voids_begun: bool = True
    says_when: bool = True

    @property
    def is_approving(self) -> bool:
        return self.auto_fires and self.is_online

    def configuration(self, kind: str) -> list[Body] | None:
        """``GET /config/v2/...``: the list of this kind; None: there is no such list."""
        charges = {"serviceCharges": self.service_charges, "discounts": self.discounts}
        named = {"alternatePaymentTypes": self.payment_types, "tables": self.tables}
        if kind == "diningOptions":
            return [
                {"guid": guid, "entityType": "DiningOption", "name": behavior, "behavior": behavior}
                for guid, behavior in self.dining_options.items()
            ]
        if kind in named:
            return [{"guid": guid, "name": name} for guid, name in named[kind].items()]
        if kind not in charges:
            return None
        amount = "amountType" if kind == "serviceCharges" else "type"
        return [
            {"guid": guid, "name": each.name, amount: each.kind}
            for guid, each in charges[kind].items()
        ]

    def menus(self) -> Body:
        return {**self.metadata(), "restaurantTimeZone": self.time_zone, **published(self.menu)}

    def metadata(self) -> Body:
        return {"restaurantGuid": self.guid, "lastUpdated": self.published}

    def inventory(self) -> list[Body]:
        """``GET /stock/v1/inventory``: what is sold out, or of which a number is left."""
        states = {0: "OUT_OF_STOCK"}
        return [
            {"guid": guid, "status": states.get(left, "QUANTITY"), "quantity": left or None}
            for guid, left in self.stock.items()
        ]

    def information(self) -> Body:
        """``GET /restaurants/v1/restaurants/{guid}``, as far as hours, currency and preparation."""
        times = {
            day: {"scheduleName": day, "openTime": opens, "closeTime": closes}
            for day, (opens, closes) in self.hours.items()
        }
        week = {day: day if day in times else None for day in _DAYS}
        return {
            "guid": self.guid,
            "general": {
                "timeZone": self.time_zone,
                "currencyCode": self.currency,
                "archived": self.archived,
            },
            "schedules": {"daySchedules": times, "weekSchedule": week},
            "onlineOrdering": {"enabled": True, "scheduling": True, "specialRequests": True},
            "prepTimes": dict.fromkeys(("takeoutPrepTime", "deliveryPrepTime"), self.prep_minutes),
        }

    def availability(self) -> Body:
        """``GET /restaurant-availability/v1/availability``: whether the device approves orders."""
        status = "ONLINE" if self.is_approving else "OFFLINE"
        return {
            "restaurantGuid": self.guid,
            "status": status,
            "reasonKey": f"AVAILABILITY_{status}",
        }


def dollars(cents: int | Decimal) -> float:
    return float(Decimal(cents) / 100)
