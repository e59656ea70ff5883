"""Orders at a strict Clover, end to end, whatever happens on the way: see ``selling.py``.

One order at most, paid once and as agreed and on paper once while the kitchen has it; else deleted and never paid,
or left to an operator.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pprint import pformat

from testkit.vendors.clover import Clover, simulator
from testkit.vendors.way import Trouble
from tests.faults.granting import GrantingShop, work_a_shift
from tests.faults.lab import FaultLab
from tests.faults.selling import (
    ACCEPTED,
    ADA,
    ADDRESS,
    ALLERGY,
    CANCELLED,
    CHARGED,
    COKE,
    EXPIRED,
    LATER,
    LOST,
    REJECTED,
    SIXTY,
    SIXTY_MORE,
    Case,
    Json,
    Seller,
    delivered,
    item,
)

#: Paid, and not on paper.
LEFT = ("order.pending", "order.in_doubt")
PAYMENTS, PRINTING = ".*/payments", ".*/print_event"
#: The requests of an order, but the one that prints, and of its deletion: methods and patterns of paths.
FORWARD = [
    ("POST", ".*/atomic_order/checkouts"),
    ("GET", ".*/tenders"),
    ("POST", ".*/atomic_order/orders"),
    ("GET", ".*/orders"),
    ("POST", PAYMENTS),
    ("GET", ".*/orders/[^/]+"),
]
BACK = [("GET", ".*/orders/[^/]+"), ("DELETE", ".*")]
UNPAID = Trouble("before", "POST", PAYMENTS, times=1000, status=429)

CASES = [
    Case("plain", has=(ADA["name"], ADA["phone"])),
    Case("delivery", {"fulfillment": "delivery"}, has=("delivery",)),
    Case("tip", {"tip": 200}),
    Case("a display id", {"display_id": "A 17"}, has=('"title": "A 17"',)),
    Case(
        "50 modifiers",
        {**item(modifiers=SIXTY[:50]), "total": 1700 + 2 * sum(range(50))},
        has=("m49",),
    ),
    Case("60 modifiers", SIXTY_MORE, REJECTED, ("text_too_long", "288 characters")),
    Case("a note of 600 characters", {"notes": ALLERGY}, has=(ALLERGY,)),
    Case("a note of 2,100 characters", {"notes": "n" * 2100}, REJECTED, ("text_too_long",)),
    Case("total 0", {**item(unit_price=0), "total": 0}),
    Case(
        "delivery to an address",
        {"order_type": "delivery", "delivery": {"address": ADDRESS, "instructions": "ring twice"}},
        has=("delivery 1 Main St, 02215 Boston MA, US ring twice",),
    ),
    Case("at a table", {"dine_in": {"table": "7", "guests": 2}}, has=("dine_in table 7 2 guests",)),
    Case(
        "a discount, a fee, a tax and a tip",
        {**CHARGED, "taxes": [{"name": "City tax", "amount": 190, "rate": "10"}], "total": 2090},
        has=("Courier",),
    ),
    Case(
        "a modifier of a modifier",
        {**item(modifiers=[COKE]), "total": 2 * (850 + 250)},
        has=("Coke: no ice, cold",),
    ),
    Case("for later", {"scheduled_for": LATER}, REJECTED, ("unsupported_field", "scheduled_for")),
    Case(
        "an order that is not paid",
        {"payment": {"status": "unpaid"}},
        REJECTED,
        ("unsupported_field", "payment.status"),
    ),
    Case(
        "a field without a place",
        {"delivery": {"zone": 3}},
        REJECTED,
        ("unsupported_field", "delivery.zone"),
    ),
    Case("a tax of the shop's own", {}, REJECTED, ("price_mismatch", "1853", "1700 EUR")),
    Case("another currency", {"currency": "USD"}, REJECTED, ("price_mismatch", "EUR", "USD")),
    Case(
        "sold out",
        {},
        REJECTED,
        ("item_unavailable", "BURGER"),
        knobs={"refuses_unavailable": True},
        catalog={"BURGER": True},
    ),
    Case("in the catalog", has=('"Burger"',), catalog={"BURGER": False}),
    Case("in no catalog", {}, REJECTED, ("item_unavailable", "NONE"), catalog={"NONE": None}),
    Case("closed", {}, REJECTED, ("store_closed",), pos={"closed_as": "REJECTED"}),
    Case("closed, and sent all the same"),
    Case("too many requests", knobs={"takes": 1}),
    Case("an offline device", {}, LEFT[:1], ("not_printed",), knobs={"is_online": False}),
    Case("a failed printer", {}, LEFT[1:], ("not_undone", "failed"), knobs={"printer_fails": True}),
    Case(
        "a refused print event",
        {},
        LEFT[1:],
        ("not_undone", "refund and delete it"),
        troubles=(Trouble("before", "POST", PRINTING, status=400),),
    ),
    Case(
        "a refused payment",
        {},
        REJECTED,
        ("payment_required",),
        troubles=(Trouble("before", "POST", PAYMENTS, status=400),),
    ),
    Case("made twice", troubles=(Trouble("twice", "POST", ".*/atomic_order/orders"),)),
    Case("cancelled before its payment", {}, CANCELLED, troubles=(UNPAID,), cancels="before"),
    Case(
        "cancelled once accepted",
        {"tip": 200},
        ACCEPTED * 2,
        ("not_cancelled", "refund and delete it"),
        cancels="after",
    ),
    Case("deleted by the shop at once", {}, CANCELLED, shop=("paid", "delete")),
    Case(
        "deleted by the shop",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "delete"),
    ),
    Case(
        "deleted by the shop, by a poll",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "delete"),
        is_polled=True,
    ),
    Case("expired before its payment", {"seconds": 6}, **EXPIRED, troubles=(UNPAID,)),
    *(
        Case(f"{what} of {method} {path}", {"tip": 200}, troubles=(Trouble(what, method, path),))
        for method, path in FORWARD
        for what in LOST
    ),
    Case("after of POST print_event", troubles=(Trouble("after", "POST", PRINTING),)),
    Case(
        "before of POST print_event",
        {},
        LEFT[:1],
        ("not_printed",),
        troubles=(Trouble("before", "POST", PRINTING),),
    ),
    *(
        Case(
            f"cancelled, {what} of {method} {path}",
            {},
            CANCELLED,
            troubles=(UNPAID, Trouble(what, method, path)),
            cancels="before",
        )
        for method, path in BACK
        for what in LOST
    ),
]
KILLED = [
    Case(f"a worker killed {when}")
    for when in ("before the payment", "before the ticket is asked for")
]


class CloverSeller(Seller):
    adapter, payments = "clover", "/payments"
    vendor: Clover

    def open(self) -> Clover:
        clover = simulator(lambda: datetime.now(UTC), merchant_id=self.id)
        clover.access.tokens[self.id] = None
        for known, is_sold_out in self.case.catalog.items():
            if is_sold_out:
                clover.shop.set_available(known, False)
        if "closed" in self.case.name:
            another_day = f"{datetime.now(UTC) + timedelta(days=3):%A}".lower()
            an_hour = {"elements": [{"start": 700, "end": 800}]}
            clover.shop.set_hours(**{another_day: an_hour})
        if "tax" in self.case.name:
            clover.shop.add_tax(10 if "taxes" in self.case.order else 9)
        return clover

    @property
    def pos(self) -> Mapping[str, str]:
        return {"merchant_id": self.id, "order_type": "PICKUP"}

    @property
    def facts(self) -> list[Json]:
        """Of the orders that stand, if there are any."""
        every = super().facts
        return [each for each in every if not each["is_deleted"]] or every

    def known_as(self, fact: Json) -> str:
        return str(fact["id"])

    def is_paid(self, fact: Json) -> bool:
        return bool(fact["payments"])

    def agrees(self, last: str, fact: Json) -> bool:
        total, paid = self.case.total, (fact["payments"], fact["tips"])
        agreed = ([total] * bool(total), self.case.order.get("tip", 0))
        seen = (fact["is_shown"], fact["is_deleted"], len(fact["tickets"]))
        if last in ACCEPTED or last in LEFT:
            return (seen, paid) == ((True, False, last in ACCEPTED), agreed)
        if self.case.shop is not None:  # the shop gives the guest's money back
            return (seen, paid) == ((False, True, self.case.shop[0] == "accepted"), agreed)
        return (seen, paid) == ((False, True, 0), ([], 0))


def test_each_order_ends_with_the_event_that_is_true_at_clover(
    lab: FaultLab, tmp_path: Path
) -> None:
    killed = [CloverSeller(case, number) for number, case in enumerate(KILLED, len(CASES))]
    others = [CloverSeller(case, number) for number, case in enumerate(CASES)]
    found = delivered(lab, tmp_path, others, killed)
    assert not found, pformat(found)


class CloverGrants(GrantingShop):
    adapter, tokens = "clover", "/oauth/v2/refresh"
    vendor: Clover

    def open(self) -> Clover:
        return simulator(lambda: datetime.now(UTC), merchant_id="M1")

    def grant(self) -> Json:
        issued = self.vendor.access.pair()
        return {
            "client_id": self.vendor.access.app_id,
            "access_token": issued["access_token"],
            "refresh_token": issued["refresh_token"],
            "expires_at": issued["access_token_expiration"],
            "refresh_expires_at": issued["refresh_token_expiration"],
        }

    def end_access(self) -> None:
        self.vendor.access.tokens.clear()

    def revoke(self) -> None:
        self.vendor.access.revoke()

    @property
    def pos(self) -> Mapping[str, str]:
        return {"merchant_id": "M1", "order_type": "PICKUP"}


def test_a_token_ends_mid_shift_and_a_revoked_grant_at_clover_makes_orders_wait(
    lab: FaultLab,
) -> None:
    work_a_shift(lab, CloverGrants())
