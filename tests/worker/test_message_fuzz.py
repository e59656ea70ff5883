"""Messages that were orders, and were damaged: each ends in an event or in ``orders.dead``.

A few hundred go through one worker each time. ``FUZZ=100000 pytest
tests/worker/test_message_fuzz.py --timeout 3600`` sends that many, a few hundred at a time;
``SEED`` chooses others. The outcomes are read from the broker's queues and the merchants' records.
"""

import bz2
import json
import os
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from amqp import Message
from kombu import Connection, Queue

from pos_gateway.broker.bundle import BYTES_ALLOWED
from tests.mutations import MUTATIONS, mutated
from tests.orders import an_order
from tests.worker.lab import Lab, a_bundle, by_type

MESSAGES = int(os.environ.get("FUZZ", "400"))
SEED = os.environ.get("SEED", "1")
#: Messages in the queue at one time.
ROUND = 400
LIMIT = 256 * 1024
MERCHANT = "instant-1"
TASK = "pos_gateway.submit_order"
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
REPLIES = Queue("replies", durable=True)


@dataclass
class Sent:
    """A message, and the orders in it."""

    body: bytes
    headers: dict[str, Any]
    properties: dict[str, Any]
    number: str
    orders: int = 1
    #: Headers that the AMQP library would not write: their table in wire format.
    table: bytes | None = None
    is_bundle: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.is_bundle = self.orders > 1


class Raw(Message):  # type: ignore[misc]
    """A message whose table of headers is written verbatim."""

    def __init__(self, table: bytes, *arguments: Any, **properties: Any) -> None:
        super().__init__(*arguments, **properties)
        self._table = table

    def _serialize_properties(self) -> bytes:
        number = self.properties["message_id"].encode()
        # The flags of content_type, headers and message_id, and these.
        kind = b"application/json"
        parts = (bytes([len(kind)]), kind, struct.pack(">I", len(self._table)), self._table)
        return struct.pack(">H", 0xA080) + b"".join(parts) + bytes([len(number)]) + number


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 2**31, 2**40, -(2**62), 1.5),
    *("", "x", "x" * 300, "😀" * 64, "a\r\nb", "\0", "null", "gzip", TASK, "../..", b"\xff\xfe"),
    *([], [1, "a", [2]], {}, {"a": {"b": []}}, Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC)),
)  # fmt: skip
ODD_JSON: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x" * 5000, "\ud800", "\0"),
    *("😀" * 200, [], [[]], {}, {"__type__": "uuid", "__value__": 7}),
    *({"__type__": "datetime", "__value__": "x"}, {"__type__": "bytes", "__value__": "x"}),
    *({"__type__": "x", "__value__": "x"}, {"__type__": [], "__value__": 0}),
)
HEADERS = (
    *("task", "id", "lang", "x-attempts", "x-resolve", "eta", "expires", "retries"),
    *("timelimit", "group", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "shadow"),
    *("stamps", "stamped_headers", "ignore_result", "replaced_task_nesting", "group_index"),
    *("x-merchant-id", "x-orders", "x-deliver-by", "x-death", "x-delay", "ü" * 60),
)
#: Properties that RabbitMQ passes on whatever their type, and some of their values.
PROPERTIES: dict[str, tuple[Any, ...]] = {
    "content_type": (
        *(None, "", "application/x-python-serialize", "application/data", "text/plain", "x"),
        *("application/json; charset=utf-8", "application/x-yaml", b"\xff", "APPLICATION/JSON"),
    ),
    "content_encoding": (None, "", "binary", "utf-16", "gzip", "no-such", b"\xff\xfe"),
    "correlation_id": ("", "x" * 255, b"\xe9\xff", "😀"),
    "reply_to": ("replies", "orders", "amq.rabbitmq.reply-to.x", b"\xff", ""),
    "message_id": ("", "x" * 255, "😀" * 60, b"\xff\xfe"),
    "timestamp": (0, 2**33, 2**62, 2**64 - 1),
    "type": ("x", b"\xff"),
    "app_id": ("x" * 255,),
    "priority": (0, 9, 255),
    "delivery_mode": (1, 2),
    "user_id": ("guest",),
    "cluster_id": ("x",),
}
#: Headers of Celery, and of others; one of them names a list of ours.
TASKS = (
    *("celery.backend_cleanup", "celery.chord", "celery.chord_unlock", "celery.chain"),
    *("celery.map", "celery.starmap", "celery.chunks", "celery.group", "celery.accumulate"),
    *(
        "os.system",
        "",
        "pos_gateway.worker.tasks",
        "pos_gateway.submit_order ",
        "POS_GATEWAY.SUBMIT_ORDER",
    ),
)
#: Headers that the AMQP library cannot write, and RabbitMQ takes: name, type, value.
TABLES = (
    b"\4time" + b"T" + struct.pack(">Q", 2**62),
    b"\4time" + b"T" + struct.pack(">Q", 2**40),
    b"\3big" + b"l" + struct.pack(">q", 2**62),
    b"\3big" + b"l" + struct.pack(">q", -(2**62)),
    b"\2\xff\xfe" + b"S" + struct.pack(">I", 1) + b"x",
    b"\4deep" + b"F\0\0\0\0",
    b"\3dec" + b"D\xff" + struct.pack(">i", 7),
    b"\3byt" + b"x" + struct.pack(">I", 2) + b"\xff\0",
)


class Messages:
    """Messages, each damaged from a valid order."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._made = 0
        self._kinds: tuple[Callable[[], Sent], ...] = (
            *(self._bytes, self._field, self._shape, self._embed, self._header, self._property),
            *(self._compressed, self._foreign, self._long, self._protocol_1, self._bundle),
            *(self._bundle, self._table, self._nested),
        )

    def take(self, number: int) -> Iterator[Sent]:
        for _ in range(number):
            yield self._random.choice(self._kinds)()

    def _order(self) -> dict[str, Any]:
        self._made += 1
        return an_order(f"o-{SEED}-{self._made}", MERCHANT)

    def _sent(self, order: dict[str, Any], body: Any = None, **headers: Any) -> Sent:
        body = body if body is not None else [[order], {}, EMBED]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        number = str(order["order_id"])
        properties = {"content_type": "application/json", "content_encoding": "utf-8"}
        said = {"task": TASK, "id": number, "lang": "py", **headers}
        return Sent(data, said, {**properties, "message_id": number}, number)

    def _pick(self, options: Iterable[Any]) -> Any:
        return self._random.choice(tuple(options))

    def _damaged(self, data: bytes) -> bytes:
        random = self._random
        steps = [
            (
                random.choice(sorted(MUTATIONS)),
                random.randrange(len(data) + 1),
                random.randint(1, 20),
                self._pick((random.randbytes(3), b"\n", b",", b"[", b'"', b"\0", b"{}", b"null")),
            )
            for _ in range(random.randint(1, 3))
        ]
        return mutated(data, steps)

    def _bytes(self) -> Sent:
        sent = self._sent(self._order())
        sent.body = self._damaged(sent.body)
        return sent

    def _field(self) -> Sent:
        order = self._order()
        number = order["order_id"]
        place = self._pick((order, order["items"][0]))
        place[self._pick((*place, "customer", "notes", "new"))] = self._pick(ODD_JSON)
        return self._sent({"order_id": number}, [[order], {}, EMBED])

    def _nested(self) -> Sent:
        """As deep as can just be read but not written any more, or the other way round."""
        order = self._order()
        depth = self._random.randint(50, 1100)
        nested: Any = json.dumps(order).encode()
        deep = self._pick((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth))
        name = self._pick((b"new", b"customer", b"items", b"fulfillment"))
        nested = nested[:-1] + b',"' + name + b'":' + deep + b"}"
        return self._sent(order, b"[[" + nested + b"],{},{}]")

    def _shape(self) -> Sent:
        order = self._order()
        shapes: tuple[Any, ...] = (
            *([], {}, 0, "x", [[order]], [[order], {}], [[order], {}, {}, {}], [[order], {}, None]),
            *([[], {"order": order}, {}], [[], {"order": []}, {}], [[[[order]]], {}, {}], [order]),
            *(
                [{}, [], {}],
                b"",
                b"null",
                b"[" * 5000,
                b'{"a":' * 5000,
                b"\xef\xbb\xbf[[{}],{},{}]",
            ),
            *(json.dumps([[order], {}, {}]).encode("utf-16"), [[order, order], {}, {}]),
        )
        return self._sent(order, self._pick(shapes))

    def _embed(self) -> Sent:
        """With another order in a callback or errback."""
        order = self._order()
        another = {
            "task": TASK,
            "args": [an_order(f"foreign-{self._made}", MERCHANT)],
            "kwargs": {},
        }
        value = self._pick(([another], another, [[another]], 1, "x", [{}]))
        which = self._pick(("callbacks", "errbacks", "chain", "chord", "new"))
        return self._sent(order, [[order], {}, {**EMBED, which: value}])

    def _header(self) -> Sent:
        sent = self._sent(self._order())
        for _ in range(self._random.randint(1, 3)):
            sent.headers[self._pick(HEADERS)] = self._pick(ODD)
        if self._random.random() < 0.2:
            del sent.headers[self._pick(("task", "id"))]
        if self._random.random() < 0.3:
            sent.properties.pop("message_id")
        return sent

    def _property(self) -> Sent:
        sent = self._sent(self._order())
        for name in self._random.sample(sorted(PROPERTIES), self._random.randint(1, 3)):
            sent.properties[name] = self._pick(PROPERTIES[name])
        return sent

    def _compressed(self) -> Sent:
        order = self._order()
        pack = self._pick((zlib.compress, bz2.compress, bytes))
        body = pack(json.dumps([[order], {}, EMBED]).encode())
        if self._random.random() < 0.2:
            body = zlib.compress(b"[" + b" " * 50_000_000)
        how = self._pick(
            ("gzip", "application/x-gzip", "bzip2", "lzma", "zstd", "x", 7, [], "", True)
        )
        return self._sent(order, body, compression=how)

    def _foreign(self) -> Sent:
        order = self._order()
        foreign = an_order(f"foreign-{self._made}", MERCHANT)
        bodies: tuple[Any, ...] = (
            [[{"task": TASK}, [[foreign]]], {}, EMBED],
            [[], {"task": {"task": TASK}, "it": [[foreign]]}, EMBED],
            [[foreign], {}, EMBED],
        )
        return self._sent(order, self._pick(bodies), task=self._pick(TASKS))

    def _long(self) -> Sent:
        sent = self._sent(self._order())
        length = self._pick((LIMIT - 1, LIMIT, LIMIT + 1, BYTES_ALLOWED + 1, 3_000_000))
        sent.body += b" " * (length - len(sent.body))
        if self._random.random() < 0.3:
            del sent.headers["task"]
        return sent

    def _protocol_1(self) -> Sent:
        order = self._order()
        said = {"task": self._pick((TASK, [], {}, *TASKS)), "id": order["order_id"], "retries": 0}
        sent = self._sent(order, {**said, "args": [order], "kwargs": self._pick(({}, [], None))})
        sent.headers = self._pick(({}, {"id": sent.number}, {"eta": ""}))
        return sent

    def _bundle(self) -> Sent:
        random = self._random
        orders = [self._order() for _ in range(random.randint(2, 6))]
        good = a_bundle(MERCHANT, orders)
        body, headers = good.body, dict(good.headers)
        if random.random() < 0.4:
            body = self._damaged(body)
        if random.random() < 0.4:
            name = self._pick(("x-merchant-id", "x-orders", "x-deliver-by", "id"))
            headers[name] = self._pick(ODD)
        if random.random() < 0.1:
            body += b" " * BYTES_ALLOWED
        properties = {"content_type": "application/json", "message_id": good.message_id}
        return Sent(body, headers, properties, good.message_id, len(orders))

    def _table(self) -> Sent:
        sent = self._sent(self._order())
        sent.table = self._pick(TABLES)
        if self._random.random() < 0.7:
            for name in ("task", "id"):
                value = str(sent.headers[name]).encode()
                sent.table += bytes([len(name)]) + name.encode() + b"S"
                sent.table += struct.pack(">I", len(value)) + value
        return sent


class Account:
    """What was published, and the outcomes so far."""

    def __init__(self, sent: list[Sent]) -> None:
        self.sent = sent
        self.dead: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def expected(self) -> int:
        """Outcomes that there must be: a bundle that was dead-lettered as a whole has one."""
        whole = {letter["message_id"] for letter in self.dead}
        return sum(
            1 if each.is_bundle and each.number in whole else each.orders for each in self.sent
        )

    def ends(self) -> int:
        """Dead letters and accepted orders: a dead letter's event is not counted."""
        return len(self.dead) + len(self.accepted())

    def accepted(self) -> list[str]:
        return [each["order_id"] for each in self.events if each["type"] == "order.accepted"]

    def is_settled(self) -> bool:
        return self.ends() >= self.expected()

    def missing(self) -> list[str]:
        told = {each["order_id"] for each in self.events}
        told |= {str(letter["message_id"]) for letter in self.dead}
        return [each.number for each in self.sent if each.number not in told]


def publish(lab: Lab, messages: Iterable[Sent]) -> None:
    """Each is confirmed: a message that the broker refuses is a bug in this test."""
    with Connection(lab.broker_url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.default_channel
        for sent in messages:
            if sent.table is not None:
                message = Raw(sent.table, sent.body, message_id=sent.number)
            else:
                message = Message(sent.body, application_headers=sent.headers, **sent.properties)
            channel.basic_publish(message, exchange="orders", routing_key="orders")


@pytest.fixture
def deep_events() -> Iterator[None]:
    """A body that the worker could read is not too deep for this process either."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5 * before)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deep_events")
def test_every_message_ends_in_an_event_or_a_dead_letter_and_the_worker_survives(lab: Lab) -> None:
    lab.open_merchants(MERCHANT)
    lab.client.connect()
    with Connection(lab.broker_url) as connection:
        REPLIES.bind(connection.default_channel).declare()
    messages, sent, accepted = Messages(SEED), 0, list[str]()
    with lab.worker() as worker:
        while sent < MESSAGES:
            account = Account(list(messages.take(min(ROUND, MESSAGES - sent))))
            publish(lab, account.sent)
            with suppress(TimeoutError):  # the assertions below name the missing ones
                lab.outcomes(account.events, account.dead, account.is_settled)
            assert account.ends() == account.expected(), account.missing()
            judge_compressed(account)
            sent += len(account.sent)
            accepted += account.accepted()
        lab.submit(MERCHANT, "good")
        last = Account([])
        lab.outcomes(last.events, last.dead, lambda: "good" in last.accepted())
        assert (last.accepted(), last.dead) == (["good"], [])
        assert worker.process.poll() is None
        assert worker.stop() == 0
        assert "Traceback" not in worker.log
        assert "crashed" not in worker.log
    # A failed order has its dead letter first, and its event perhaps only now.
    assert set(by_type(lab.events(lab.queued("order-events")))) <= {"order.failed", "order.expired"}
    left = {name: lab.queued(name) for name in ("orders", "orders.dead", "order-events", "replies")}
    assert (left, lab.delayed()) == (dict.fromkeys(left, 0), 0)
    made = [order["order_id"] for order in lab.merchants.orders() if order["creates"]]
    # Messages that damage gave the same id are the same order: created once, with an event for
    # each.
    assert sorted({*accepted, "good"}) == sorted(made)
    assert lab.merchants.doubled() == []
    assert not any("foreign" in order_id for order_id in made)


def judge_compressed(account: Account) -> None:
    """Refused by name, and dead-lettered unchanged."""
    letters = {letter["message_id"]: letter for letter in account.dead}
    for each in account.sent:
        if "compression" in each.headers:
            letter = letters[each.number]
            assert letter["headers"]["x-reason-code"] == "compressed"
            assert "compression" in letter["headers"]["x-reason"]
            assert letter["body"] == each.body.decode("latin-1")
