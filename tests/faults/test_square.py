"""Orders at a strict Square, end to end: one worker takes all of the table at once, over sockets.

Each order has a seller of its own. When all is over, the last event agrees with the facts at Square: one
order at most, paid once and as agreed while the kitchen has it; otherwise undone and refunded.
"""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from pprint import pformat
from typing import Any, Literal

from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.sellers import Sellers
from testkit.vendors.square import simulator
from testkit.vendors.square.access import SCOPES, Token
from testkit.vendors.way import Trouble, Way
from tests.faults.lab import FaultLab
from tests.server.lab import Server, serving

Json = dict[str, Any]
ACCEPTED, CANCELLED, REJECTED = ("order.accepted",), ("order.cancelled",), ("order.rejected",)
UNDONE = ACCEPTED + CANCELLED
#: The key of callbacks, and the key that seals secrets.
KEY, SECRET = "a-key", "a passphrase that is long enough"
ADA = {"name": "Ada", "phone": "+12125550123"}
BURGER: Json = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
SIXTY = [{"name": f"m{number}", "unit_price": number} for number in range(60)]
ALLERGY = "n" * 586 + " allergy: nuts"
PAYMENTS = "/v2/payments"
#: The requests of an order, and of the cancellation of a paid one: methods and patterns of paths.
FORWARD = [("POST", "/v2/orders"), ("POST", PAYMENTS), ("GET", "/v2/orders/[^/]+")]
BACK = [
    ("GET", "/v2/orders/[^/]+"),
    ("GET", f"{PAYMENTS}/[^/]+"),
    ("PUT", "/v2/orders/[^/]+"),
    ("POST", "/v2/refunds"),
]
UNPAID = (Trouble("before", "POST", PAYMENTS, times=1000, status=429),)
LOST: tuple[Literal["before", "after"], ...] = ("before", "after")


@dataclass(frozen=True)
class Case:
    """An order, what happens on its way, and how the order ends."""

    name: str
    order: Json = field(default_factory=dict)
    #: The types of the order's events.
    events: tuple[str, ...] = ACCEPTED
    #: Words in the last event's reason.
    reason: tuple[str, ...] = ()
    #: Texts that the order has at Square.
    has: tuple[str, ...] = ()
    #: Square's settings for the seller.
    knobs: Json = field(default_factory=dict)
    #: Troubles on the way, or, of an order cancelled after its acceptance, of the cancellation.
    troubles: tuple[Trouble, ...] = ()
    #: The backend cancels before the order is paid, or once the order is accepted.
    cancels: Literal["before", "after"] | None = None
    #: An act of the shop's right after the payment, or once the order is accepted.
    shop: tuple[Literal["paid", "accepted"], str] | None = None
    #: The burger's id at Square, and whether the burger is sold out; None: Square has no such item.
    catalog: dict[str, bool | None] = field(default_factory=dict)


def item(**fields: Any) -> Json:
    return {"items": [{**BURGER, **fields}]}


CASES = [
    Case("pickup", {"fulfillment": "pickup"}, has=(ADA["name"], ADA["phone"], "PICKUP")),
    Case("no type"),
    Case("dine-in", {"fulfillment": "dine_in"}, has=("dine_in",)),
    Case("delivery", {"fulfillment": "delivery"}, has=("delivery",)),
    Case("tip", {"tip": 200}),
    Case(
        "60 modifiers", {**item(modifiers=SIXTY), "total": 1700 + 2 * sum(range(60))}, has=("m59",)
    ),
    Case("a note of 600 characters", {"notes": ALLERGY}, has=(ALLERGY,)),
    Case("a note of 2,100 characters", {"notes": "n" * 2100}, REJECTED, ("notes has 2100",)),
    Case("total 0", {**item(unit_price=0), "total": 0}),
    Case(
        "a field without a place",
        {"delivery": {"address": {"line1": "1 Main St"}}},
        REJECTED,
        ("unsupported_field", "delivery"),
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
    Case("too many requests", knobs={"per_second": 2}),
    Case("cancelled before its payment", {}, CANCELLED, troubles=UNPAID, cancels="before"),
    Case("cancelled once accepted", {"tip": 200}, UNDONE, cancels="after"),
    Case("rejected by the shop", {}, REJECTED, ("failed at Square",), shop=("paid", "reject")),
    Case(
        "cancelled by the shop",
        events=(*ACCEPTED, "order.cancelled_by_pos"),
        shop=("accepted", "cancel"),
    ),
    Case("expired before its payment", {"seconds": 6}, ("order.expired",), troubles=UNPAID),
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


class Seller:
    """A case's seller at Square, and merchant of the gateway."""

    def __init__(self, case: Case, number: int) -> None:
        self.case, self.id = case, f"m{number}"
        self.square = simulator(lambda: datetime.now(UTC), location_id=self.id, currency="EUR")
        self.square.access.access[self.id] = Token(None, frozenset(SCOPES))
        for name, value in case.knobs.items():
            setattr(self.square.knobs, name, value)
        for known, is_sold_out in case.catalog.items():
            if is_sold_out is not None:
                self.square.acts["list_item"](known, name="B", price=1, is_sold_out=is_sold_out)
        self.way = Way(self)
        if case.cancels != "after":
            self.meet_troubles()

    def meet_troubles(self) -> None:
        self.way.troubles += [replace(each) for each in self.case.troubles]

    def answer(self, request: VendorRequest) -> VendorReply:
        reply = self.square.answer(request)
        if request.path == PAYMENTS and self.case.shop and self.case.shop[0] == "paid":
            self.act()
        return reply

    def act(self) -> None:
        """Do the shop's act."""
        assert self.case.shop is not None
        self.square.acts[self.case.shop[1]](self.fact["order"]["id"])

    @property
    def facts(self) -> list[Json]:
        return list(self.square.facts()["orders"].values())

    @property
    def fact(self) -> Json:
        [fact] = self.facts
        return fact

    def has_order(self) -> bool:
        return bool(self.facts)

    def merchant(self, base_url: str) -> Merchant:
        auth = {"type": "bearer", "token": self.id, "webhook_signature_key": KEY}
        own = {"id": self.id, "base_url": base_url, "auth": auth, "request_timeout": 5}
        return Merchant.parse({"adapter": "square", "pos": {"location_id": self.id}, **own})

    def call_back(self, server: Server) -> None:
        """Do the shop's act, and deliver what Square says of the act."""
        webhooks = self.square.webhooks
        path = f"/v1/callbacks/square/{self.id}"
        webhooks.key, webhooks.url = KEY, f"https{server.url.removeprefix('http')}{path}"
        self.act()
        for each in webhooks.take():
            reply = server.post(path, data=each.body, headers=dict(each.headers))
            assert reply.ok, reply.text


def wrong(seller: Seller, events: list[Json]) -> list[Any]:
    """Everything that is not as the case says."""
    case, facts, reason = seller.case, seller.facts, json.dumps(events[-1].get("reason"))
    types = tuple(event["type"] for event in events)
    accepted = [event["external_id"] for event in events if event["type"] in ACCEPTED]
    return [
        *([types] if types != case.events else []),
        *([facts] if len(facts) > 1 else []),
        *({*accepted} - {fact["order"]["id"] for fact in facts}),
        *(each for each in case.reason if each not in reason),
        *(each for each in case.has if each not in json.dumps(facts)),
        *(fact for fact in facts if not agrees(types[-1], seller, fact)),
        *(each for each in seller.way.troubles if each.times == 1),
    ]


def agrees(last: str, seller: Seller, fact: Json) -> bool:
    """Whether an order's facts at Square agree with the last event."""
    order, total = seller.case.order, seller.case.order.get("total", 1700)
    paid = (fact["payments"], fact["paid"], fact["tips"])
    agreed = (bool(total), total, order.get("tip", 0))
    if last in ACCEPTED:
        due = fact["order"]["net_amount_due_money"]["amount"]
        seen = (fact["shown"], fact["prints"], fact["cancelled"], due)
        return (seen, paid) == ((True, 1, False, 0), agreed)
    states = {each["state"] for each in fact["order"]["fulfillments"]}
    is_shops = seller.case.shop == ("accepted", "cancel")  # the shop refunds the guest then
    is_refunded = is_shops or fact["refunded"] == fact["paid"] + fact["tips"]
    return states <= {"CANCELED", "FAILED"} and is_refunded and paid in (agreed, (0, 0, 0))


def test_each_order_ends_with_the_event_that_is_true_at_square(
    lab: FaultLab, tmp_path: Path
) -> None:
    killed, *others = [Seller(case, number) for number, case in enumerate([KILLED, *CASES])]
    square = Sellers()
    square.ways |= {each.id: each.way for each in (killed, *others)}

    def wait(events: Callable[[Case], int]) -> None:
        """Wait until each order has as many events."""
        for each in (killed, *others):
            lab.wait_for_events(each.id, events(each.case))

    secret = {"POS_GATEWAY_SECRET_KEY": SECRET}
    with (
        square.served() as url,
        serving(lab.broker_url, lab.database_url, tmp_path / "http.log", secret) as server,
    ):
        engine = open_database(lab.database_url)
        store = MerchantStore(engine, vault=Vault(SECRET))
        store.put(each.merchant(url) for each in (killed, *others))
        engine.dispose()
        for each in others:
            for known in each.case.catalog:
                lab.import_catalog(each.id, burger=known)
        lab.place(killed.id, killed.id, customer=ADA)
        with lab.worker(failpoints="step.done=kill", secret_key=SECRET) as worker:
            assert worker.wait() == -signal.SIGKILL, worker.log[-2000:]
        assert not killed.fact["is_paid"]
        with lab.worker(secret_key=SECRET):
            lab.wait_for_worker()
            for each in others:
                lab.place(each.id, each.id, **{"customer": ADA, **each.case.order})
            for each in others:
                if each.case.cancels == "before":
                    square.wait(each.has_order)
                    lab.backend.cancel(each.id, each.id)
            wait(lambda _: 1)
            with square.changed:
                for each in others:
                    if each.case.cancels == "after":
                        each.meet_troubles()
                        lab.backend.cancel(each.id, each.id)
                    elif each.case.shop and each.case.shop[0] == "accepted":
                        each.call_back(server)
            wait(lambda case: len(case.events))
    found = {each.case.name: wrong(each, lab.backend.events(each.id)) for each in (killed, *others)}
    found = {name: said for name, said in found.items() if said}
    assert not found, pformat(found)
