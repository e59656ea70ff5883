"""Orders at a strict Toast, end to end, whatever happens on the way: see ``selling.py``.

One order at most, paid once and as agreed while the kitchen has it; otherwise voided, with its payment.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from pprint import pformat
from typing import Any

from testkit.patience import PATIENCE
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.toast import simulator
from testkit.vendors.toast.api import Toast
from testkit.vendors.way import Trouble
from tests.adapters.vendors import guid
from tests.faults.granting import (
    GrantingShop,
    place_and_wait,
    serving,
    wait_for_another_grant,
)
from tests.faults.lab import FaultLab
from tests.faults.selling import (
    ACCEPTED,
    ADDRESS,
    ALLERGY,
    AT_A_TABLE,
    CANCELLED,
    EXPIRED,
    LATER,
    LOST,
    REJECTED,
    TO_THE_DOOR,
    Case,
    Json,
    Seller,
    delivered,
    item,
)
from tests.testkit.toast_place import (
    BURGER,
    CATCH,
    COURIER_FEE,
    DELIVERY,
    DINE_IN,
    DRESSINGS,
    MAINS,
    MAYO,
    PAID,
    PICKUP,
    RANCH,
    RESTAURANT,
    SALAD,
    SAUCES,
    SIDES,
    VOUCHER,
)

UNKNOWN = "00000000-0000-0000-0000-000000000000"
PENDING, IN_DOUBT, FAILED = ("order.pending",), ("order.in_doubt",), ("order.failed",)
UNDONE = ACCEPTED + CANCELLED
#: Hours of a day that is neither today nor tomorrow anywhere.
CLOSED = {f"{datetime.now(UTC) + timedelta(days=3):%A}".lower(): ("07:00:00.000", "08:00:00.000")}
SKU = f"{MAINS}/{BURGER}"
MODIFIERS = [
    {"sku": f"{SAUCES}/{MAYO}", "name": "Mayo", "quantity": 2, "unit_price": 50},
    {
        "sku": f"{SIDES}/{SALAD}",
        "name": "Salad",
        "unit_price": 200,
        "notes": "on the side",
        "modifiers": [{"sku": f"{DRESSINGS}/{RANCH}", "name": "Ranch", "unit_price": 25}],
    },
    *({"name": f"m{number}"} for number in range(60)),
]
CREATE, PRICES, VOID = "/orders/v2/orders", "/orders/v2/prices", "/orders/v2/orders/.*/void"
LOOKS = ("/restaurants/v1/restaurants/.*", "/stock/v1/inventory")
#: Staff fires the orders.
BY_STAFF = {"auto_fires": False}


def case(name: str, order: Json | None = None, *rest: Any, **fields: Any) -> Case:
    """A case with a burger that Toast knows."""
    return Case(name, {**item(sku=SKU), **(order or {})}, *rest, **fields)


CASES = [
    case("pickup", {"fulfillment": "pickup"}, has=("Ada", "TAKE_OUT")),
    case("no type, no guest", {"customer": None}, has=("TAKE_OUT",)),
    case(
        "dine-in",
        AT_A_TABLE,
        has=("DINE_IN", "Table 7"),
    ),
    case(
        "delivery",
        TO_THE_DOOR,
        has=("DELIVERY", "address1: 1 Main St", "ring twice / contactless"),
    ),
    case("no utensils", {"utensils": False, "notes": "hot"}, has=("no utensils / hot",)),
    case("curbside", {"order_type": "curbside", "display_id": "A-17"}, has=("Curbside", "A-17")),
    case("for later", {"scheduled_for": LATER}, has=("FUTURE",)),
    case("tip", {"tip": 200}),
    case(
        "modifiers of modifiers, three burgers",
        {**item(sku=SKU, quantity=3, modifiers=MODIFIERS), "total": 3 * (850 + 100 + 225)},
        has=("3 x Ranch", "on the side", "m59"),
    ),
    case("a note of 600 characters", {"notes": ALLERGY}, has=(ALLERGY,)),
    case("a note of 1,100 characters", {"notes": "n" * 1100}, REJECTED, ("notes has 1100",)),
    case("total 0", {**item(sku=f"{MAINS}/{CATCH}", unit_price=0), "total": 0}),
    case("a tax", {"taxes": [{"name": "Sales", "amount": 170}], "total": 1870}, knobs={"tax": 10}),
    case(
        "a fee and a discount",
        {
            "order_type": "delivery",
            "delivery": {"address": ADDRESS},
            "fees": [{"name": "Courier", "amount": 300}],
            "discounts": [{"name": "Voucher", "amount": 500}],
            "total": 1500,
        },
    ),
    case(
        "a tax of the shop's own",
        {},
        REJECTED,
        ("price_mismatch", "1853", "1700 EUR"),
        knobs={"tax": 9},
    ),
    case(
        "a price that rises before the order is made",
        {},
        REJECTED,
        ("price_mismatch", "1853", "1700 EUR"),
        turns={"tax": 9},
    ),
    case(
        "a price that rises, and the kitchen is too fast",
        {},
        IN_DOUBT,
        ("price_mismatch", "it stands at the POS as"),
        turns={"tax": 9, "voids_begun": False},
    ),
    case("a payment that is not taken", {}, REJECTED, ("OPEN",), knobs={"takes_payments": False}),
    case(
        "a field without a place",
        {"payment": {"status": "unpaid"}},
        REJECTED,
        ("unsupported_field", "payment"),
    ),
    Case("in the catalog", catalog={SKU: False}),
    Case("in no catalog", {}, REJECTED, ("invalid_order", "'burger'")),
    case(
        "an item that Toast does not have",
        item(sku=f"{MAINS}/{UNKNOWN}"),
        REJECTED,
        ("item_unavailable", f"MenuItem {UNKNOWN} was not found"),
    ),
    case(
        "a required option that is missing",
        {
            **item(
                sku=SKU,
                modifiers=[{"sku": f"{SIDES}/{SALAD}", "name": "Salad", "unit_price": 200}],
            ),
            "total": 2100,
        },
        REJECTED,
        (DRESSINGS,),
    ),
    case(
        "a dining option that Toast does not have",
        {},
        FAILED,
        ("http_404", "pos.dining_option: ", f"DiningOption {PICKUP} was not found"),
        knobs={"dining_options": {DINE_IN: "DINE_IN"}},
    ),
    case(
        "sold out",
        item(sku=SKU, quantity=2),
        REJECTED,
        ("item_unavailable", "'Burger'", "1 left"),
        knobs={"stock": {BURGER: 1}},
    ),
    case("closed", {}, REJECTED, ("store_closed", "New_York"), knobs={"hours": CLOSED}),
    case("another currency", {}, REJECTED, ("price_mismatch", "USD"), knobs={"currency": "USD"}),
    *(
        case(
            f"closed and sold out, {what} of the looks",
            knobs={"hours": CLOSED, "stock": {BURGER: 0}},
            troubles=tuple(Trouble(what, "GET", path) for path in LOOKS),
        )
        for what in LOST
    ),
    case("too many requests for prices", troubles=(Trouble("before", path=PRICES, status=429),)),
    case("too many creates", troubles=(Trouble("before", path=CREATE, status=429),)),
    case(
        "a webhook earlier than the reply", {}, (*ACCEPTED, "order.ready"), shop=("paid", "ready")
    ),
    case("made twice on the way", troubles=(Trouble("twice", "POST", CREATE),)),
    case(
        "not found at once",
        knobs={"found_after": 10},
        troubles=(Trouble("after", "POST", CREATE),),
    ),
    case(
        "a price that rises, and no reply",
        {},
        REJECTED,
        ("price_mismatch",),
        knobs=BY_STAFF,
        turns={"tax": 9},
        troubles=(Trouble("after", "POST", CREATE),),
    ),
    case(
        "approved by staff",
        {},
        (*PENDING, *ACCEPTED, "order.preparing"),
        knobs=BY_STAFF,
        shop=("accepted", "fire"),
    ),
    case("not approved", {}, PENDING + REJECTED, knobs=BY_STAFF, shop=("accepted", "reject")),
    case("cancelled before its approval", {}, PENDING + CANCELLED, knobs=BY_STAFF, cancels="after"),
    case("cancelled once accepted", {"tip": 200}, UNDONE, cancels="after"),
    case(
        "cancelled too late",
        {},
        ACCEPTED * 2,
        ("not_cancelled", "the kitchen has begun"),
        knobs={"voids_begun": False},
        cancels="after",
    ),
    case(
        "cancelled by the shop",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "void"),
    ),
    case(
        "cancelled by the shop, by a poll",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "void"),
        is_polled=True,
    ),
    case(
        "with the guest, by a poll",
        events=(*ACCEPTED, "order.completed"),
        shop=("accepted", "close"),
        is_polled=True,
    ),
    case("with the guest", events=(*ACCEPTED, "order.completed"), shop=("accepted", "close")),
    case(
        "expired before it is made",
        {"seconds": 6},
        **EXPIRED,
        troubles=(Trouble("before", path=PRICES, times=1000, status=429),),
    ),
    *(
        case(f"{what} of {path}", {"tip": 200}, troubles=(Trouble(what, "POST", path),))
        for path in (PRICES, CREATE)
        for what in LOST
    ),
    *(
        case(
            f"cancelled, {what} of {method} {path}",
            {"tip": 200},
            UNDONE,
            troubles=(Trouble(what, method, path),),
            cancels="after",
        )
        for method, path in (("GET", f"{CREATE}/.*"), ("POST", VOID))
        for what in LOST
    ),
]
KILLED = case("a worker killed after the create", {"tip": 200})


SETTINGS = {
    "dining_option": PICKUP,
    "delivery_dining_option": DELIVERY,
    "dine_in_dining_option": DINE_IN,
    "naming_authority": "GATEWAY",
    "payment": PAID,
    "customer_email": "guests@example.com",
    "customer_phone": "2125550100",
    "service_charge": COURIER_FEE,
    "discount": VOUCHER,
}


class ToastSeller(Seller):
    adapter, payments, failpoint, unpaid = "toast", CREATE, "outcome.before", 0
    vendor: Toast

    def open(self) -> Toast:
        toast = simulator(
            lambda: datetime.now(UTC),
            **{**RESTAURANT, "guid": self.pos["restaurant"], "currency": "EUR"},
        )
        toast.tokens.give(self.id)
        return toast

    @property
    def pos(self) -> Mapping[str, str]:
        return {"restaurant": guid("restaurant", self.id), **SETTINGS}

    def answer(self, request: VendorRequest) -> VendorReply:
        is_create = (request.method, request.path) == ("POST", CREATE)
        for name, value in self.case.turns.items() if is_create else ():
            setattr(self.vendor.knobs, name, value)
        reply = self.vendor.answer(request)
        if is_create and self.case.shop and self.case.shop[0] == "paid":
            self.call_back()
        return reply

    def known_as(self, fact: Json) -> str:
        return str(fact["guid"])

    def is_paid(self, fact: Json) -> bool:
        return bool(fact["paid"])

    def agrees(self, last: str, fact: Json) -> bool:
        total, tip = self.case.total, self.case.order.get("tip", 0)
        if last in REJECTED + CANCELLED + ("order.cancelled_by_pos",):
            is_unapproved = fact["approvalStatus"] == "NOT_APPROVED" and not fact["printed"]
            return is_unapproved or (fact["voided"], fact["paid"], fact["tip"]) == (True, 0, 0)
        if last in IN_DOUBT:  # an operator is named the order
            return not fact["voided"] and fact["total"] != total
        is_later = "scheduled_for" in self.case.order
        seen = (fact["printed"], fact["voided"], fact["due"], fact["paid"], fact["tip"])
        return seen == (int(not is_later), False, 0, total, tip)


def test_each_order_ends_with_the_event_that_is_true_at_toast(
    lab: FaultLab, tmp_path: Path
) -> None:
    killed, *others = [ToastSeller(case, number) for number, case in enumerate([KILLED, *CASES])]
    found = delivered(lab, tmp_path, others, [killed])
    assert not found, pformat(found)


class ToastLogin(GrantingShop):
    adapter, kind, tokens = "toast", "toast", "/authentication/v1/authentication/login"
    order = item(sku=SKU)
    vendor: Toast

    def open(self) -> Toast:
        known = {**RESTAURANT, "guid": self.pos["restaurant"], "currency": "EUR"}
        return simulator(lambda: datetime.now(UTC), **known)

    def grant(self) -> Json:
        client_id, client_secret = self.vendor.tokens.client
        return {"client_id": client_id, "client_secret": client_secret}

    def end_access(self) -> None:
        self.vendor.tokens.end()

    def revoke(self) -> None:
        """Toast issues another secret."""
        self.vendor.tokens.client = (self.grant()["client_id"], "another secret")

    @property
    def pos(self) -> Mapping[str, str]:
        return {"restaurant": guid("restaurant", "m1"), **SETTINGS}


def test_a_token_of_toast_ends_mid_shift(lab: FaultLab) -> None:
    """The next login comes before the token's end, and no order meets an ended one."""
    toast, numbers = ToastLogin(), count()
    toast.vendor.tokens.lifetime = timedelta(seconds=50)
    with serving(lab, toast):
        until = time.monotonic() + PATIENCE
        while toast.asked < 2:
            assert time.monotonic() < until, "no second login"
            place_and_wait(lab, toast, f"o{next(numbers)}")


def test_a_login_that_toast_refuses_makes_orders_wait(lab: FaultLab) -> None:
    toast = ToastLogin()
    with serving(lab, toast) as renew:
        wait_for_another_grant(lab, toast, renew)
    assert toast.asked == 2
