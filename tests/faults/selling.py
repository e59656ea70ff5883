"""Orders at a strict vendor, end to end: the scenery of one test for each vendor.

One worker takes all of a table at once, over sockets. Each order has a seller of its own. When all is over,
the last event agrees with the facts at the vendor.
"""

import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.vendors.facts import OrderFacts
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.sellers import Sellers
from testkit.vendors.serving import Simulator
from testkit.vendors.way import Trouble, Way
from tests.faults.lab import FaultLab
from tests.server.lab import Server, serving

Json = dict[str, Any]
ACCEPTED, CANCELLED, REJECTED = ("order.accepted",), ("order.cancelled",), ("order.rejected",)
EXPIRED: Json = {"events": ("order.expired",), "first": "order.in_doubt"}
#: The key of callbacks, and the key that seals secrets.
KEY, SECRET = "a-key", "a passphrase that is long enough"
ADA = {"name": "Ada", "phone": "+12125550123"}
BURGER: Json = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
ADDRESS = {
    "line1": "1 Main St",
    "city": "Boston",
    "region": "MA",
    "postal_code": "02215",
    "country": "US",
}
ALLERGY = "n" * 586 + " allergy: nuts"
LATER = (datetime.now(UTC) + timedelta(days=2)).isoformat()
AT_A_TABLE: Json = {"order_type": "dine_in", "dine_in": {"table": "7", "guests": 2}}
TO_THE_DOOR: Json = {
    "order_type": "delivery",
    "delivery": {"address": ADDRESS, "instructions": "ring twice", "contactless": True},
}
#: 1700, less 100, plus 300 that are not taxed, plus a tax of 10 %.
CHARGED: Json = {
    "discounts": [{"name": "Ten off", "amount": 100}],
    "fees": [{"kind": "delivery", "name": "Courier", "amount": 300, "taxable": False}],
    "taxes": [{"name": "City tax", "amount": 160, "rate": "10"}],
    "total": 2060,
    "tip": 200,
}
COKE: Json = {
    "name": "Coke",
    "unit_price": 250,
    "notes": "cold",
    "modifiers": [{"name": "no ice"}],
}


def item(**fields: Any) -> Json:
    """The items of an order: one."""
    return {"items": [{**BURGER, **fields}]}


SIXTY = [{"name": f"m{number}", "unit_price": number} for number in range(60)]
SIXTY_MORE: Json = {**item(modifiers=SIXTY), "total": 1700 + 2 * sum(range(60))}
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
    #: Texts that the order has at the vendor.
    has: tuple[str, ...] = ()
    #: The vendor's settings for the seller, and the gateway's.
    knobs: Json = field(default_factory=dict)
    pos: Json = field(default_factory=dict)
    #: Those that change when the order is made.
    turns: Json = field(default_factory=dict)
    #: Troubles on the way, or, of an order cancelled after its acceptance, of the cancellation.
    troubles: tuple[Trouble, ...] = ()
    #: The backend cancels once the order is made, or once the order is accepted.
    cancels: Literal["before", "after"] | None = None
    #: An act of the shop's right after the payment, or once the order is accepted.
    shop: tuple[Literal["paid", "accepted"], str] | None = None
    #: The vendor does not call back: what the shop does is heard of by a poll.
    is_polled: bool = False
    #: The burger's id at the vendor, and whether the burger is sold out; None: no such item there.
    catalog: dict[str, bool | None] = field(default_factory=dict)
    #: An event that may come before its events: a slow machine undoes an order after its deliver_by.
    first: str = ""

    @property
    def total(self) -> int:
        """The order's."""
        return int(self.order.get("total", 1700))


class Seller(OrderFacts, ABC):
    """A case's seller at the vendor, and merchant of the gateway.

    Args:
        case: the order.
        number: of the seller, which is the seller's access token, too.
    """

    adapter: ClassVar[str]
    #: The end of a payment's path.
    payments: ClassVar[str]
    #: Where a worker is killed, and after how many of these places the order is not paid.
    failpoint: ClassVar[str] = "step.done"
    unpaid: ClassVar[int] = 1
    #: The gateway's, once it serves.
    server: Server

    def __init__(self, case: Case, number: int) -> None:
        self.case, self.id = case, f"m{number}"
        self.vendor: Simulator = self.open()
        super().__init__(self.vendor)
        for name, value in case.knobs.items():
            setattr(self.vendor.knobs, name, value)
        self.way = Way(self)
        if case.cancels != "after":
            self.meet_troubles()

    @abstractmethod
    def open(self) -> Simulator:
        """The vendor with this seller, who takes ``self.id`` as a token."""

    @property
    @abstractmethod
    def pos(self) -> Mapping[str, str]:
        """The merchant's ``pos``."""

    @abstractmethod
    def known_as(self, fact: Json) -> str:
        """The vendor's id of the order with these facts."""

    @abstractmethod
    def is_paid(self, fact: Json) -> bool:
        """Whether any payment of the order was recorded."""

    @abstractmethod
    def agrees(self, last: str, fact: Json) -> bool:
        """Whether an order's facts agree with the last event's type."""

    def meet_troubles(self) -> None:
        """Have the case's troubles on the way."""
        self.way.troubles += [replace(each) for each in self.case.troubles]

    def answer(self, request: VendorRequest) -> VendorReply:
        """As the vendor does; after a payment the shop may act."""
        reply = self.vendor.answer(request)
        is_payment = request.method == "POST" and request.path.endswith(self.payments)
        if is_payment and self.case.shop and self.case.shop[0] == "paid":
            self.act()
        return reply

    def act(self) -> None:
        """Do the shop's act."""
        assert self.case.shop is not None
        self.vendor.acts[self.case.shop[1]](self.known_as(self.fact))

    def has_order(self) -> bool:
        """Whether any order was made."""
        return bool(self.facts)

    def merchant(self, base_url: str) -> Merchant:
        """The gateway's record of the seller."""
        auth = {"type": "bearer", "token": self.id, **self.signed}
        own = {"id": self.id, "base_url": base_url, "auth": auth, "request_timeout": 5}
        pos = {**self.pos, **self.case.pos, **({"poll": "ON"} if self.case.is_polled else {})}
        return Merchant.parse({"adapter": self.adapter, "pos": pos, **own})

    @property
    def signed(self) -> Mapping[str, str]:
        """The key of callbacks, if there are any."""
        return {} if self.case.is_polled else {"webhook_signature_key": KEY}

    def call_back(self) -> None:
        """Do the shop's act, and deliver what the vendor says of the act, unless the vendor is polled."""
        if self.case.is_polled:
            self.act()
            return
        webhooks = self.vendor.webhooks
        path = f"/v1/callbacks/{self.adapter}/{self.id}"
        webhooks.key, webhooks.url = KEY, f"https{self.server.url.removeprefix('http')}{path}"
        self.act()
        for each in webhooks.take():
            reply = self.server.post(path, data=each.body, headers=dict(each.headers))
            assert reply.ok, reply.text


def wrong(seller: Seller, events: list[Json]) -> list[Any]:
    """Everything that is not as the case says."""
    case, facts, reason = seller.case, seller.facts, json.dumps(events[-1].get("reason"))
    types = tuple(event["type"] for event in events)
    if types[0] == case.first:
        types = types[1:]
    accepted = [event["external_id"] for event in events if event["type"] in ACCEPTED]
    return [
        *([types] if types != case.events else []),
        *([facts] if len(facts) > 1 else []),
        *({*accepted} - {seller.known_as(fact) for fact in facts}),
        *(each for each in case.reason if each not in reason),
        *(each for each in case.has if each not in json.dumps(facts)),
        *(fact for fact in facts if not seller.agrees(types[-1], fact)),
        *(each for each in seller.way.troubles if each.times == 1),
    ]


def delivered(
    lab: FaultLab, folder: Path, sellers: Sequence[Seller], killed: Sequence[Seller]
) -> dict[str, list[Any]]:
    """Deliver every seller's order; what is wrong in the end, by the case's name.

    Args:
        lab: broker and database.
        folder: for logs.
        sellers: their orders go at once.
        killed: a worker each is killed before: after the first step, after the second, and so on.
    """
    every, market = [*killed, *sellers], Sellers()
    market.ways |= {each.id: each.way for each in every}

    secret = {"POS_GATEWAY_SECRET_KEY": SECRET}
    with (
        market.served() as url,
        serving(lab.broker_url, lab.database_url, folder / "http.log", secret) as server,
    ):
        engine = open_database(lab.database_url)
        store = MerchantStore(engine, vault=Vault(SECRET))
        store.put(each.merchant(url) for each in every)
        engine.dispose()
        for each in sellers:
            for known in each.case.catalog:
                lab.import_catalog(each.id, burger=known)
        for each in every:
            each.server = server
        for number, each in enumerate(killed, 1):
            lab.place(each.id, each.id, **{"customer": ADA, **each.case.order})
            point = f"{each.failpoint}=kill:{number}"
            with lab.worker(failpoints=point, secret_key=SECRET) as worker:
                assert worker.wait() == -signal.SIGKILL, worker.log[-2000:]
            assert each.is_paid(each.fact) is (number > each.unpaid)
        with lab.worker(secret_key=SECRET, poll_every=15):
            lab.wait_for_worker()
            for each in sellers:
                lab.place(each.id, each.id, **{"customer": ADA, **each.case.order})
            for each in sellers:
                if each.case.cancels == "before":
                    market.wait(each.has_order)
                    lab.backend.cancel(each.id, each.id)
            for each in every:
                lab.wait_for_events(each.id, 1)
            with market.changed:
                for each in sellers:
                    if each.case.cancels == "after":
                        each.meet_troubles()
                        lab.backend.cancel(each.id, each.id)
                    elif each.case.shop and each.case.shop[0] == "accepted":
                        each.call_back()
            for each in every:
                lab.wait_for_event(each.id, each.case.events[-1])
    found = {each.case.name: wrong(each, lab.backend.events(each.id)) for each in every}
    return {name: said for name, said in found.items() if said}
