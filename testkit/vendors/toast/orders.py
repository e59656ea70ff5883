"""An order at the restaurant: what Toast answers of it, and the facts that a test asks.

Of the definition and guides: with an auto-firing device an order is approved and sent to the kitchen
by itself, one for later when its preparation begins; without, or while the device is offline, staff
approves it; a voided order prints another ticket, and stays to be read; an order whose check is combined into another
order is deleted; a check is CLOSED if nothing of it is due. Judgement: an overpaid check is OPEN, as in the definition's own example, and so is
one of nothing without a payment; a new order is answered as RECEIVED, and fired afterwards, which puts
it IN_PREPARATION; a void leaves the amounts; a business day is UTC's; when an order is found by its
external identifier, and whether a fired one may be voided, is the restaurant's setting.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from testkit.vendors.toast.menu import Body
from testkit.vendors.toast.restaurant import Restaurant
from testkit.vendors.toast.rules import Line, Refused, cents, preparation, time_of


@dataclass(slots=True)
class PlacedOrder:
    """One order.

    Attributes:
        content: as ``GET /orders`` answers, for a client with all scopes.
        ticket: what the kitchen's ticket says, line by line.
        fires_at: when preparation begins.
        printed: tickets of the kitchen: ``ORDER`` and ``VOIDED``.
    """

    content: Body
    ticket: tuple[str, ...]
    fires_at: datetime
    printed: list[str] = field(default_factory=list)

    def facts(self) -> Body:
        """What tests ask, amounts in cents: ``due`` is what staff has to collect, or to give back."""
        total = sum(_cents(check["totalAmount"]) for check in self.content["checks"])
        payments = [each for each in self._payments() if not each["voidInfo"]]
        paid = sum(_cents(each["amount"]) for each in payments)
        names = [
            "guid",
            "externalId",
            "approvalStatus",
            "guestOrderStatus",
            "voided",
            "promisedDate",
        ]
        return {
            **{name: self.content[name] for name in names},
            "behavior": self.ticket[0],
            "printed": self.printed.count("ORDER"),
            "printed_void": self.printed.count("VOIDED"),
            "ticket": list(self.ticket[1:]),
            "total": total,
            "paid": paid,
            "due": total - paid,
            "tip": sum(_cents(each["tipAmount"]) for each in payments),
        }

    def tick(self, now: datetime, place: Restaurant) -> bool:
        """Do what the auto-firing device does by itself; whether something was done."""
        is_waiting = self.content["approvalStatus"] in ("FUTURE", "NEEDS_APPROVAL", "APPROVED")
        if self.printed or self.content["voided"] or not is_waiting or now < self.fires_at:
            return False
        if place.is_approving:
            self.fire(now)
            return True
        was, self.content["approvalStatus"] = self.content["approvalStatus"], "NEEDS_APPROVAL"
        return bool(was != "NEEDS_APPROVAL")

    def fire(self, now: datetime) -> None:
        """Approve the order, and have the kitchen print it: once more if it is fired again."""
        self.content["approvalStatus"] = "APPROVED"
        self.printed.append("ORDER")
        self._be("IN_PREPARATION", now, "SENT")

    def reject(self, now: datetime) -> None:
        """Staff does not approve the order."""
        self.content["approvalStatus"] = "NOT_APPROVED"
        self._be("RECEIVED", now)

    def ready(self, now: datetime) -> None:
        self._be("READY_FOR_PICKUP", now, "READY")

    def close(self, now: datetime) -> None:
        """The guest has the order. Payments are another matter."""
        self._be("CLOSED", now)

    def void(self, now: datetime) -> None:
        """Void the order with its payments, by staff or by the API."""
        if self.content["voided"]:
            raise Refused("Once an order has been voided, it can not be updated.")
        when = {"voided": True, "voidDate": stamp(now), "voidBusinessDate": _day(now)}
        self.content.update(when)
        for each in (*self.content["checks"], *self._selections()):
            each.update(when)
        for payment in self._payments():
            payment.update(paymentStatus="VOIDED", voidInfo={"voidDate": stamp(now)})
        self.printed.append("VOIDED")
        self._be("VOIDED", now)

    def combine(self, now: datetime) -> None:
        """Staff combine the order's check into another order: this one is deleted, and its food is made."""
        when = {"deleted": True, "deletedDate": stamp(now)}
        for each in (self.content, *self.content["checks"]):
            each.update(when)
        self.modified(now)

    def is_there(self, now: datetime, place: Restaurant) -> bool:
        """Whether the order is found by its external identifier."""
        since = now - time_of(self.content["createdDate"])
        return since >= timedelta(seconds=place.found_after)

    def payment(self, check: str, payment: str) -> Body | None:
        """One payment of a check; None: there is none with these GUIDs."""
        for each in self.content["checks"]:
            for found in each["payments"]:
                if (each["guid"], found["guid"]) == (check, payment):
                    assert isinstance(found, dict)
                    return found
        return None

    def modified(self, now: datetime) -> None:
        self.content["modifiedDate"] = stamp(now)

    def _be(self, status: str, now: datetime, items: str | None = None) -> None:
        self.content["guestOrderStatus"] = status
        for each in self._selections() if items else ():
            each["fulfillmentStatus"] = items
        self.modified(now)

    def _payments(self) -> Iterator[Body]:
        for check in self.content["checks"]:
            yield from check["payments"]

    def _selections(self) -> Iterator[Body]:
        for check in self.content["checks"]:
            yield from check["selections"]


def placed(
    order: Body,
    checks: Sequence[Sequence[Line]],
    place: Restaurant,
    guid: Callable[[], str],
    now: datetime,
) -> PlacedOrder:
    """The order that the restaurant makes of a request with amounts.

    Args:
        guid: makes the next one.
    """
    prepare = preparation(order.get("requiredPrepTime") or "")
    prepare = prepare or timedelta(minutes=place.prep_minutes)
    promised = order.get("promisedDate")
    fires_at = max(now, time_of(promised) - prepare) if promised else now
    approved = "APPROVED" if place.is_approving else "NEEDS_APPROVAL"
    content = {
        "openedDate": stamp(now),
        "deliveryInfo": None,
        "promisedDate": None,
        "externalId": None,
        **order,
        "guid": guid(),
        "approvalStatus": "FUTURE" if fires_at > now else approved,
        "guestOrderStatus": "RECEIVED",
        "source": "API",
        "deleted": False,
        "createdDate": stamp(now),
        "modifiedDate": stamp(now),
        "businessDate": _day(now),
        "estimatedFulfillmentDate": promised or stamp(now + prepare),
    }
    for check in content["checks"]:
        check.update(guid=guid(), voided=False)
        for each in check["selections"]:
            each["guid"] = guid()
        posted = check.get("payments") or () if place.takes_payments else ()
        check["payments"] = [_payment(each, guid(), now) for each in posted]
        paid = sum(_cents(each["amount"]) for each in check["payments"])
        is_closed = check["payments"] and paid == _cents(check["totalAmount"])
        check["paymentStatus"] = "CLOSED" if is_closed else "OPEN"
    return PlacedOrder(content, tuple(_ticket(order, checks, place)), fires_at)


def _payment(posted: Body, guid: str, now: datetime) -> Body:
    state = {"paymentStatus": "CAPTURED", "refundStatus": "NONE", "voidInfo": None}
    return {"paidDate": stamp(now), **posted, "entityType": "OrderPayment", "guid": guid, **state}


def _ticket(order: Body, checks: Sequence[Sequence[Line]], place: Restaurant) -> Iterator[str]:
    """The dining behavior, the table, how the guest is found, and what is to be cooked."""
    yield place.dining_options[order["diningOption"]["guid"].lower()]
    if order.get("table"):
        yield place.tables[order["table"]["guid"].lower()]
    for where in ("deliveryInfo", "curbsidePickupInfo"):
        for name, value in (order.get(where) or {}).items():
            yield f"{name}: {value}"
    for check, lines in zip(order["checks"], checks, strict=True):
        guest = check.get("customer") or {}
        yield check.get("tabName") or f"{guest.get('firstName')} {guest.get('lastName')}"
        yield from _words(lines)


def _words(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        yield f"{line.quantity} x {line.name}" if line.item else line.name
        yield from _words(line.modifiers)


def _cents(dollars: Any) -> int:
    return cents(dollars, "amount")


def stamp(when: datetime) -> str:
    """A time in Toast's form, in UTC."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "+0000"


def _day(when: datetime) -> int:
    return int(f"{when.astimezone(UTC):%Y%m%d}")
