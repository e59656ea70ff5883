"""Orders at a strict HubRise, end to end, whatever happens on the way: see ``selling.py``.

One order at most, paid as agreed and printed once while the shop has it; else cancelled, or rejected by the shop.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from pprint import pformat

from pos_gateway.domain.merchant import Merchant
from testkit.vendors.hubrise import HubRise, simulator
from testkit.vendors.way import Trouble
from tests.faults.lab import FaultLab
from tests.faults.selling import (
    ACCEPTED,
    ALLERGY,
    AT_A_TABLE,
    CANCELLED,
    CHARGED,
    COKE,
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

PENDING, IN_DOUBT = ("order.pending",), ("order.in_doubt",)
CANCELLED_BY_POS = ("order.cancelled_by_pos",)
ORDERS, ORDER = ".*/orders", ".*/orders/[^/]+"
#: The EPOS has not answered the order yet.
NEW = {"arrives": "new"}
SIXTY = [{"name": f"m{number}"} for number in range(60)]

CASES = [
    Case("pickup", {"fulfillment": "pickup"}, has=('"collection"', "Ada", "+12125550123")),
    Case("no type, no guest", {"customer": None}, has=('"collection"',)),
    Case(
        "dine-in",
        AT_A_TABLE,
        has=('"eat_in"', "table 7 / 2 guests"),
    ),
    Case(
        "delivery",
        TO_THE_DOOR,
        has=('"delivery"', "1 Main St", "ring twice / contactless"),
    ),
    Case("curbside", {"order_type": "curbside", "display_id": "A-17"}, has=("curbside", "A-17")),
    Case("for later", {"scheduled_for": LATER}, has=(LATER,)),
    Case("no utensils", {"utensils": False, "notes": "hot"}, has=("no utensils / hot",)),
    Case(
        "a discount, a fee, a tax and a tip", CHARGED, has=("Ten off", "Courier", "City tax", "Tip")
    ),
    Case(
        "modifiers of modifiers, three burgers",
        {**item(quantity=3, modifiers=[COKE, *SIXTY]), "total": 3 * 1100},
        has=("Coke: no ice", "Coke: cold", "m59"),
    ),
    Case("a note of 600 characters", {"notes": ALLERGY}, has=(ALLERGY,)),
    Case(
        "a note that HubRise cuts",
        {"notes": ALLERGY},
        REJECTED,
        ("text_too_long", "customer_notes has 600 characters; the POS keeps 255"),
        knobs={"cuts": 255},
    ),
    Case("total 0", {**item(unit_price=0), "total": 0}),
    Case("an order that is not paid", {"payment": {"status": "unpaid"}}),
    Case(
        "another price", {}, REJECTED, ("price_mismatch", "1853", "1700 EUR"), knobs={"adds": 153}
    ),
    Case(
        "another price, and the kitchen is too fast",
        {},
        IN_DOUBT,
        ("price_mismatch", "it stands at the POS as"),
        knobs={"adds": 153, "arrives": "in_preparation"},
    ),
    Case("another currency", {"currency": "USD"}, REJECTED, ("invalid_order", "must be EUR")),
    Case(
        "a field without a place",
        {"delivery": {"zone": 3}},
        REJECTED,
        ("unsupported_field", "delivery.zone"),
    ),
    Case("in the catalog", has=('"sku_ref": "BUR-1"',), catalog={"BUR-1": False}),
    Case("taken by the EPOS", {}, PENDING + ACCEPTED, knobs=NEW, shop=("accepted", "received")),
    Case(
        "sold out, or closed",
        {},
        PENDING + REJECTED,
        ("rejected at HubRise",),
        knobs=NEW,
        shop=("accepted", "rejected"),
    ),
    Case(
        "in preparation before it was taken",
        {},
        (*PENDING, *ACCEPTED, "order.preparing"),
        knobs=NEW,
        shop=("accepted", "in_preparation"),
    ),
    Case("ready", {}, (*ACCEPTED, "order.ready"), shop=("accepted", "awaiting_collection")),
    Case("with the guest", {}, (*ACCEPTED, "order.completed"), shop=("accepted", "completed")),
    Case("cancelled by the shop", {}, ACCEPTED + CANCELLED_BY_POS, shop=("accepted", "cancelled")),
    *(
        Case(f"{act}, by a poll", {}, (*ACCEPTED, event), shop=("accepted", act), is_polled=True)
        for act, event in (
            ("in_preparation", "order.preparing"),
            ("awaiting_collection", "order.ready"),
            ("completed", "order.completed"),
            ("cancelled", "order.cancelled_by_pos"),
            ("rejected", "order.cancelled_by_pos"),
        )
    ),
    Case(
        "rejected by the shop later", {}, ACCEPTED + CANCELLED_BY_POS, shop=("accepted", "rejected")
    ),
    Case(
        "not delivered",
        {},
        ACCEPTED + CANCELLED_BY_POS,
        ("delivery_failed",),
        shop=("accepted", "delivery_failed"),
    ),
    Case("cancelled before it is taken", {}, PENDING + CANCELLED, knobs=NEW, cancels="after"),
    Case("cancelled once accepted", {"tip": 200}, ACCEPTED + CANCELLED, cancels="after"),
    Case(
        "cancelled too late",
        {},
        ACCEPTED * 2,
        ("not_cancelled", "completed at HubRise"),
        knobs={"arrives": "completed"},
        cancels="after",
    ),
    Case("an EPOS that never answers", {"seconds": 6}, IN_DOUBT, knobs=NEW),
    Case(
        "expired before it is made",
        {"seconds": 6},
        ("order.expired",),
        troubles=(Trouble("before", "POST", ORDERS, times=1000, status=429),),
    ),
    Case("too many requests", troubles=(Trouble("before", "POST", ORDERS, status=429),)),
    Case("made twice on the way", troubles=(Trouble("twice", "POST", ORDERS),)),
    Case(
        "not found at once",
        knobs={"found_after": 10},
        troubles=(Trouble("after", "POST", ORDERS),),
    ),
    *(
        Case(f"{what} of the create", {"tip": 200}, troubles=(Trouble(what, "POST", ORDERS),))
        for what in LOST
    ),
    *(
        Case(
            f"cancelled, {what} of {method}",
            {"tip": 200},
            ACCEPTED + CANCELLED,
            troubles=(Trouble(what, method, ORDER),),
            cancels="after",
        )
        for method in ("GET", "PATCH")
        for what in LOST
    ),
]
KILLED = Case("a worker killed after the create", {"tip": 200})


class HubRiseSeller(Seller):
    adapter, payments, failpoint, unpaid = "hubrise", "/orders", "outcome.before", 0
    vendor: HubRise

    def open(self) -> HubRise:
        return simulator(lambda: datetime.now(UTC), location_id=f"{self.id}-1", token=self.id)

    @property
    def pos(self) -> Mapping[str, str]:
        return {"location_id": f"{self.id}-1", "taxes_as": "CHARGE"}

    def merchant(self, base_url: str) -> Merchant:
        auth = {"type": "api_key", "header": "X-Access-Token", "key": self.id}
        changed = {"auth": {**auth, **self.signed}, "base_url": f"{base_url}/v1"}
        plain = super().merchant(base_url).model_dump(exclude={"auth", "base_url"})
        return Merchant.parse({**plain, **changed})

    def known_as(self, fact: Json) -> str:
        return str(fact["id"])

    def is_paid(self, fact: Json) -> bool:
        return bool(fact["paid"])

    def agrees(self, last: str, fact: Json) -> bool:
        due = self.case.total + self.case.order.get("tip", 0)
        if last in REJECTED + CANCELLED + CANCELLED_BY_POS:
            return fact["status"] in ("cancelled", "rejected", "delivery_failed")
        if last in IN_DOUBT:  # an operator is named the order, or asks for an EPOS that is away
            return fact["total"] != due or (fact["status"], fact["printed"]) == ("new", 0)
        paid = 0 if "payment" in self.case.order else due
        seen = (fact["total"], fact["paid"], fact["printed"], fact["status"] == "cancelled")
        return seen == (due, paid, 1, False)


def test_each_order_ends_with_the_event_that_is_true_at_hubrise(
    lab: FaultLab, tmp_path: Path
) -> None:
    killed, *others = [HubRiseSeller(case, number) for number, case in enumerate([KILLED, *CASES])]
    found = delivered(lab, tmp_path, others, [killed])
    assert not found, pformat(found)
