"""Orders at a strict Square, end to end, whatever happens on the way: see ``selling.py``.

One order at most, paid once and as agreed while the kitchen has it; otherwise undone and refunded.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pprint import pformat

from testkit.vendors.square import simulator
from testkit.vendors.square.access import SCOPES, Token
from testkit.vendors.square.simulator import Square
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
    SIXTY_MORE,
    Case,
    Json,
    Seller,
    delivered,
    item,
)

UNDONE = ACCEPTED + CANCELLED
PAYMENTS = "/v2/payments"
#: The requests of an order, and of the cancellation of a paid one: methods and patterns of paths.
FORWARD = [("POST", "/v2/orders"), ("POST", PAYMENTS), ("GET", "/v2/orders/[^/]+")]
BACK = [
    ("GET", "/v2/orders/[^/]+"),
    ("GET", f"{PAYMENTS}/[^/]+"),
    ("PUT", "/v2/orders/[^/]+"),
    ("POST", "/v2/refunds"),
]
#: An hour of another day.
CLOSED = {
    "day_of_week": f"{datetime.now(UTC) + timedelta(days=3):%a}".upper(),
    "start_local_time": "07:00:00",
    "end_local_time": "08:00:00",
}
UNPAID = (Trouble("before", "POST", PAYMENTS, times=1000, status=429),)


CASES = [
    Case("pickup", {"fulfillment": "pickup"}, has=(ADA["name"], ADA["phone"], "PICKUP")),
    Case("no type"),
    Case("dine-in", {"fulfillment": "dine_in"}, has=("dine_in",)),
    Case("delivery", {"fulfillment": "delivery"}, has=("delivery",)),
    Case("tip", {"tip": 200}),
    Case("60 modifiers", SIXTY_MORE, has=("m59",)),
    Case("a note of 600 characters", {"notes": ALLERGY}, has=(ALLERGY,)),
    Case("a note of 2,100 characters", {"notes": "n" * 2100}, REJECTED, ("notes has 2100",)),
    Case("total 0", {**item(unit_price=0), "total": 0}),
    Case(
        "delivery to an address",
        {"order_type": "delivery", "delivery": {"address": ADDRESS, "instructions": "ring twice"}},
        has=("delivery", "1 Main St", "ring twice"),
    ),
    Case("at a table", {"dine_in": {"table": "7", "guests": 2}}, has=("table 7 2 guests",)),
    Case("for later", {"scheduled_for": LATER}, has=("SCHEDULED",)),
    Case("an e-mail address", {"customer": {**ADA, "email": "ada@example.com"}}, has=("ada@ex",)),
    Case("a discount, a fee, a tax and a tip", CHARGED, has=("Ten off", "Courier", "City tax")),
    Case(
        "a modifier of a modifier",
        {**item(modifiers=[COKE]), "total": 2 * (850 + 250)},
        has=("no ice", "parent_modifier_uid", "Coke: cold"),
    ),
    Case(
        "a tax without a rate",
        {"taxes": [{"name": "City tax", "amount": 70}], "total": 1770},
        REJECTED,
        ("unsupported_field", "taxes[0] has no rate"),
    ),
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
    Case(
        "a tax of the shop's own",
        {},
        REJECTED,
        ("price_mismatch", "1853 EUR", "1700 EUR"),
        knobs={"shop_tax": "9", "adds_tax_unasked": True},
    ),
    Case("sold out", has=('"catalog_object_id": "V1"',), catalog={"V1": True}),
    Case("in no catalog", {}, ("order.failed",), ("NOT_FOUND", "V2"), catalog={"V2": None}),
    Case(
        "closed",
        {},
        REJECTED,
        ("store_closed",),
        knobs={"hours": [CLOSED]},
        pos={"closed_as": "REJECTED"},
    ),
    Case("closed, and sent all the same", knobs={"hours": [CLOSED]}),
    Case("too many requests", knobs={"per_second": 2}),
    Case("cancelled before its payment", {}, CANCELLED, troubles=UNPAID, cancels="before"),
    Case("cancelled once accepted", {"tip": 200}, UNDONE, cancels="after"),
    Case("rejected by the shop", {}, REJECTED, ("failed at Square",), shop=("paid", "reject")),
    Case(
        "cancelled by the shop",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "cancel"),
    ),
    *(
        Case(f"{act}, by a poll", {}, (*ACCEPTED, event), shop=("accepted", act), is_polled=True)
        for act, event in (
            ("accept", "order.preparing"),
            ("ready", "order.ready"),
            ("complete", "order.completed"),
            ("cancel", "order.cancelled_by_pos"),
            ("reject", "order.cancelled_by_pos"),
        )
    ),
    Case("expired before its payment", {"seconds": 6}, **EXPIRED, troubles=UNPAID),
    *(
        Case(f"{what} of {method} {path}", {"tip": 200}, troubles=(Trouble(what, method, path),))
        for method, path in FORWARD
        for what in LOST
    ),
    *(
        Case(
            f"cancelled, {what} of {method} {path}",
            {"tip": 200},
            UNDONE,
            troubles=(Trouble(what, method, path),),
            cancels="after",
        )
        for method, path in BACK
        for what in LOST
    ),
]
KILLED = Case("a worker killed between the steps")


class SquareSeller(Seller):
    adapter, payments = "square", PAYMENTS
    vendor: Square

    def open(self) -> Square:
        square = simulator(lambda: datetime.now(UTC), location_id=self.id, currency="EUR")
        square.access.access[self.id] = Token(None, frozenset(SCOPES))
        for known, is_sold_out in self.case.catalog.items():
            if is_sold_out is not None:
                square.acts["list_item"](known, name="B", price=1, is_sold_out=is_sold_out)
        return square

    @property
    def pos(self) -> Mapping[str, str]:
        return {"location_id": self.id}

    def known_as(self, fact: Json) -> str:
        return str(fact["order"]["id"])

    def is_paid(self, fact: Json) -> bool:
        return bool(fact["is_paid"])

    def agrees(self, last: str, fact: Json) -> bool:
        total, paid = self.case.total, (fact["payments"], fact["paid"], fact["tips"])
        agreed = (bool(total), total, self.case.order.get("tip", 0))
        if last in (*ACCEPTED, "order.preparing", "order.ready", "order.completed"):
            due = fact["order"]["net_amount_due_money"]["amount"]
            seen = (fact["shown"], fact["prints"], fact["cancelled"], due)
            return (seen, paid) == ((True, 1, False, 0), agreed)
        states = {each["state"] for each in fact["order"]["fulfillments"]}
        is_shops = (
            bool(self.case.shop) and self.case.shop[0] == "accepted"
        )  # the shop refunds the guest then
        is_refunded = is_shops or fact["refunded"] == fact["paid"] + fact["tips"]
        return states <= {"CANCELED", "FAILED"} and is_refunded and paid in (agreed, (0, 0, 0))


def test_each_order_ends_with_the_event_that_is_true_at_square(
    lab: FaultLab, tmp_path: Path
) -> None:
    killed, *others = [SquareSeller(case, number) for number, case in enumerate([KILLED, *CASES])]
    found = delivered(lab, tmp_path, others, [killed])
    assert not found, pformat(found)


class SquareGrants(GrantingShop):
    adapter, tokens = "square", "/oauth2/token"
    vendor: Square

    def open(self) -> Square:
        return simulator(lambda: datetime.now(UTC), location_id="L1", currency="EUR")

    def grant(self) -> Json:
        access = self.vendor.access
        issued = access.grant()
        names = ("access_token", "refresh_token", "expires_at")
        client = {"client_id": access.client_id, "client_secret": access.client_secret}
        return {**client, **{name: issued[name] for name in names}}

    def end_access(self) -> None:
        self.vendor.access.expire()

    def revoke(self) -> None:
        self.vendor.access.revoke()

    @property
    def pos(self) -> Mapping[str, str]:
        return {"location_id": "L1"}


def test_a_token_ends_mid_shift_and_a_revoked_grant_at_square_makes_orders_wait(
    lab: FaultLab,
) -> None:
    work_a_shift(lab, SquareGrants())
