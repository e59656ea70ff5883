"""Every statement and message of a release: played to be recorded.

A release's folder under ``releases/`` has both, and this plays the same with the current code.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine

from pos_gateway.audit.note import By
from pos_gateway.broker import topology
from pos_gateway.broker.bundle import Bundle, ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import ATTEMPTS, RESOLVE, cancel_message, dead_letter, submit_message
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.events.outbox import Outbox
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import countable, prune
from pos_gateway.ledger.states import Action, Entry, Key, State
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import Clock, Worker, an_entry, claimed, without_event

MERCHANT = "m"
#: When it is played (Unix time), and its orders' deadline: in the far future.
BEGAN, DELIVER_BY = 1_780_000_000.0, 4_000_000_000.0
#: Orders of a dead worker, one that waits for a retry, and a pending one.
LEFT = ("sending", "new", "pending")


class _Clock(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.of_day = BEGAN


def key(order_id: str, action: Action = Action.SUBMIT) -> Key:
    return Key(MERCHANT, order_id, action)


def an_order(order_id: str) -> dict[str, Any]:
    return {
        "order_id": order_id,
        "merchant_id": MERCHANT,
        "placed_at": datetime.fromtimestamp(BEGAN, UTC).isoformat(),
        "deliver_by": datetime.fromtimestamp(DELIVER_BY, UTC).isoformat(),
        "currency": "EUR",
        "items": [{"sku": "soup", "name": "Süppchen", "quantity": 2, "unit_price": 850}],
        "total": 1700,
    }


def _json(order_id: str) -> bytes:
    return Order.parse(an_order(order_id)).to_json()


def play_on_database(engine: Engine) -> None:
    """Merchants, orders with every outcome, their events, an operator; ``LEFT`` is left open."""
    clock = _Clock()
    _keep_merchants(engine, clock)
    _deliver(engine, clock)
    _publish(engine, clock)
    _operate(engine, clock)


def _keep_merchants(engine: Engine, clock: Clock) -> None:
    store, admin = MerchantStore(engine, clock), MerchantAdmin(engine, Vault(), lambda _: [], clock)
    store.put(
        Merchant.parse({"id": each, "base_url": "https://pos.example.com", "max_concurrency": 3})
        for each in (MERCHANT, "other")
    )
    admin.pause(["other"], By("kim"), paused=True)
    store.get([MERCHANT])
    store.edited_since(BEGAN)
    list(store.all())


def _deliver(engine: Engine, clock: Clock) -> None:
    one = Worker(engine, clock)
    one.beat()

    def begin(ledger: Ledger, order_id: str, *, send: bool = True) -> Any:
        by = DELIVER_BY
        return claimed(ledger.claim(key(order_id), send=send, deliver_by=by, order=_json(order_id)))

    one.finish(begin(one, "accepted"), _entry("accepted", Kind.ACCEPTED, external_id="pos-1"))
    refused = Reason("store_closed", "The kitchen is closed.")
    one.finish(begin(one, "rejected"), _entry("rejected", Kind.REJECTED, reason=refused))
    one.finish(begin(one, "new"), without_event())
    one.finish(begin(one, "pending"), _entry("pending", Kind.PENDING, pending=True))
    doubt: Any = one.sending(begin(one, "doubt", send=False))
    one.finish(doubt, _entry("doubt", Kind.IN_DOUBT, doubt_since=BEGAN))
    one.claim(key("accepted"), send=True)  # it is redelivered, and terminal
    wish = key("accepted", Action.CANCEL)
    one.finish(claimed(one.claim(wish, send=False, deliver_by=DELIVER_BY)), without_event())
    one.record_event(
        key("nonsense"), _entry("nonsense", Kind.FAILED, reason=refused), b'{"order_id": 7}'
    )
    for order_id in ("sending", "taken-over"):
        begin(one, order_id)
    # It stops renewing, and another worker takes over its orders.
    two = Worker(engine, clock)
    two.beat()
    clock.advance(10)
    two.beat()
    two.finish(begin(two, "taken-over"), _entry("taken-over", Kind.ACCEPTED, attempts=2))
    two.order(key("accepted"))
    two.close()


def _entry(order_id: str, kind: Kind, **fields: Any) -> Entry:
    return an_entry(kind, key=key(order_id), at=BEGAN, **fields)


def _publish(engine: Engine, clock: Clock) -> None:
    outbox, ledger = Outbox(engine), Worker(engine, clock)
    ledger.beat()
    lease = ledger.lease.id
    vacant, _ = outbox.look()
    term = outbox.take(lease, vacant.epoch)
    assert term is not None
    helped = outbox.chunk(lease, [lease], most=2, behind=1)
    outbox.write((row.id, "hydrated") for row in helped)
    given = outbox.assign(term, 3)
    assert given is not None
    assert [row.position for row in outbox.read(0, 10)] == [1, 2, 3]
    outbox.prune(BEGAN - 1, 10)
    outbox.resign(replace(given, published=given.assigned))
    outbox.leases()
    outbox.close()
    ledger.close()


def _operate(engine: Engine, clock: Clock) -> None:
    order_admin = OrderAdmin(engine, Payloads(Vault()), clock)
    assert {each.order_id for each in order_admin.orders(states=[State.IN_DOUBT])} == {"doubt"}
    order_admin.count(State.IN_DOUBT)
    seen = order_admin.one(key("doubt"))
    assert seen is not None
    entry = _entry("doubt", Kind.ACCEPTED)
    order_admin.change(seen, entry, operator="me", what="resolve", details="--accepted")
    order_admin.note(key("doubt"), operator="me", what="note", details="asked by telephone")
    order_admin.events(key("doubt"))
    order_admin.audit(key("doubt"))
    countable(engine, BEGAN - 1)
    list(prune(engine, BEGAN - 1))


def messages() -> Iterator[tuple[str, Message]]:
    """Every kind of message on ``orders``, ``orders.canary`` and ``orders.dead``."""
    queue = topology.ORDERS_KEY
    yield "submit", submit_message("fresh", _json("fresh"), routing_key=queue)
    # As a backend in another language may publish it: two headers and no more.
    for order_id in LEFT:
        again = {ATTEMPTS: 1, RESOLVE: order_id == "pending"}
        yield (
            f"again {order_id}",
            submit_message(order_id, _json(order_id), routing_key=queue, headers=again),
        )
    wish = CancelRequest.parse(
        {
            "order_id": "accepted",
            "merchant_id": MERCHANT,
            "deliver_by": an_order("accepted")["deliver_by"],
        }
    )
    yield "cancel", cancel_message("accepted", wish.to_json(), routing_key=queue)
    parked = [
        ParkedOrder(submit_message(each, _json(each), routing_key=queue), DELIVER_BY)
        for each in ("parked-1", "parked-2")
    ]
    yield "bundle", Bundle.of(MERCHANT, queue, parked).message()
    yield (
        "canary",
        submit_message("canary", _json("canary"), routing_key=topology.CANARY_KEY),
    )
    spoilt = submit_message("dead", _json("dead"), routing_key=queue)
    yield "dead letter", dead_letter(spoilt, code="unknown_merchant", reason="It is not known.")
