"""Cost of a message: how long a message, or a reply about it, holds the loop that all orders share.

The time between two turns of the loop is measured as CPU time of this thread, so a busy machine
doesn't matter; a measurement over its bound is repeated, and the shortest counts. A few dozen
adversaries are tried each time. ``FUZZ=20000 pytest tests/worker/test_cost.py --timeout 7200``
tries that many; ``SEED`` chooses others.
"""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from random import Random
from time import thread_time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from structlog.testing import capture_logs

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import BYTES_ALLOWED, PARKED_ORDERS, Bundle, ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.cli import jsonl
from pos_gateway.domain.catalog import MAX_ENTRIES, CatalogEntry
from pos_gateway.domain.errors import InvalidBundle, InvalidRecord
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.batch import Claiming
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, AttemptHistory, Claim
from pos_gateway.merchants.catalogs import as_text, of_text
from pos_gateway.runtime import green
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings
from pos_gateway.transport.exchange import ACKNOWLEDGEMENT, Reply, Request
from pos_gateway.worker.intake import MessageIntake
from pos_gateway.worker.request import OrderRequest, RequestState
from pos_gateway.worker.retries import Retries
from pos_gateway.worker.tasks import CancelTask, OrderTask
from tests.adapters.vendors import VENDORS, guid, known_as
from tests.events.test_hydration import a_row
from tests.mutations import MUTATIONS, mutated
from tests.orders import an_order

EXAMPLES = int(os.environ.get("FUZZ", "60"))
SEED = os.environ.get("SEED", "1")
#: Seconds of CPU between two turns; and of a whole look-up, however many pages it has.
LONGEST, LOOK_UP = 0.020, 0.250
#: Seconds of CPU for a line of the command line's files: no loop waits for it, but it must not grow
#: faster than the line does.
LINE = 1.0
#: How often a measurement over its bound is repeated.
AGAIN = 6
LIMIT = Settings.model_fields["max_order_bytes"].default
TASK = {"task": wire.SUBMIT_ORDER, "id": "o1"}


class Loop:
    """A worker's loop in one thread: records what runs between two turns."""

    def __init__(self) -> None:
        self.longest = self.total = 0.0
        self._since = thread_time()

    def turn(self) -> None:
        """Yield to others; their time is not counted."""
        passed = thread_time() - self._since
        self.longest, self.total = max(self.longest, passed), self.total + passed
        self._since = thread_time()

    def waits(self, do: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that it yields first."""

        def turned(*arguments: Any, **named: Any) -> Any:
            self.turn()
            try:
                return do(*arguments, **named)
            finally:
                self._since = thread_time()

        return turned


#: The CPU time of this reading on the machine that the bounds are for. On shared cores the same
#: work takes more CPU time; a bound is scaled by that.
YARDSTICK, NOMINAL = json.dumps([{"a": [1.5, "b"]}] * 8000), 0.0026


def latency() -> float:
    """How much slower this machine is at present than that one; at least 1."""
    shortest = inf
    for _ in range(5):
        since = thread_time()
        json.loads(YARDSTICK)
        shortest = min(shortest, thread_time() - since)
    return max(1.0, shortest / NOMINAL)


def cost(do: Callable[[Loop], object], bound: float = LONGEST) -> tuple[float, float]:
    """The longest stretch between two turns, and the total: the least of some runs if too long.

    The machine's speed is read beside each run, since a shared core's doubles within a second.
    """
    longest = total = inf
    for _ in range(AGAIN):
        loop = Loop()
        do(loop)
        loop.turn()
        fits = loop.longest <= bound and loop.total <= max(bound, LOOK_UP)
        slower = 1.0 if fits else latency()
        longest, total = min(longest, loop.longest / slower), min(total, loop.total / slower)
        if longest <= bound and total <= max(bound, LOOK_UP):
            break
    return longest, total


@pytest.fixture(autouse=True, scope="module")
def _as_in_a_worker() -> Iterator[None]:
    """As ``worker/gc_tuning.py`` sets it: no garbage collection per order."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 5, 5)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


#: Halfway between two floats of the smallest: more than 40 digits of it take fifty times as long to read
#: as those of others.
HALFWAY = b"2.2250738585072011360574097967091319759348195463516456480234"
UNITS: tuple[bytes, ...] = (
    *(b"{}", b"[]", b"[[]]", b"[{}]", b'{"a":0}', b"null", b"true", b'""', b'"x"', b"1", b"-0.0", b"1e1"),
    *(b"1e999", b"NaN", b"9" * 4299, b"9" * 5000, b"0." + b"1" * 3000, b"1.5", b'"a\\u00e9"', b'"\xc3\xa9"'),
    *(HALFWAY[:most] + b"e-308" for most in (18, 35, 44, 60)), b"1.55", b"1.5e100", b'"NaN"', b'{"a":1.23456}',
    *(b'"' + each * (4096 // len(each.decode())) + b'"' for each in (b"\x7f", b"\xc2\x85", b"x ")),
    *(b'"' + b"\\u0001" * 600 + b'"', b'"' + b"x" * 5000 + b'"', b'"' + b"x" * 200_000 + b'"'),
    b'{"name":"x"}',
    b'{"name":"x","sku":"s","quantity":2,"unit_price":1}',
    b'{"name":1,"sku":1,"quantity":"x","unit_price":"x"}',
    b'{"sku":"s","name":"n","quantity":1,"unit_price":1}',
    b'{"sku":"s","name":"n","quantity":1,"unit_price":1,"notes":"\xc2\x85"}',
    b'{"sku":"s","name":"n","quantity":9,"unit_price":1,"modifiers":[{"name":"x","sku":"s"}]}',
    b'{"sku":1,"name":1,"quantity":"x","unit_price":"x","modifiers":1,"notes":1}',
    b'{"sku":"s","name":"n","quantity":1,"unit_price":1,"modifiers":' + b"[" + b",".join([b'{"name":"x"}'] * 5) + b"]}",
    b'{"sku":"s","name":"n","quantity":1,"unit_price":1,"modifiers":' + b"[" + b",".join([b'{"name":"x"}'] * 250) + b"]}",
    b'{"order_id":"o","merchant_id":"m"}',
    b'{"id":"x","state":"OPEN","metadata":{"order_id":"o"},"note":"[x]","total":1}',
)  # fmt: skip


def filled(units: list[bytes], size: int, most: int = 10**9) -> bytes:
    """A list of these units, in turn, of at most ``size`` bytes."""
    whole: list[bytes] = []
    left = size - 2
    while len(whole) < most and (left := left - len(units[len(whole) % len(units)]) - 1) >= 0:
        whole.append(units[len(whole) % len(units)])
    return b"[" + b",".join(whole) + b"]"


def keyed(units: list[bytes], size: int) -> bytes:
    """An object with these units."""
    whole, left = [], size - 2
    while True:
        member = b'"%x":' % len(whole) + units[len(whole) % len(units)]
        left -= len(member) + 1
        if left < 0:
            return b"{" + b",".join(whole) + b"}"
        whole.append(member)


def deep(units: list[bytes], size: int) -> bytes:
    """Nested lists, as deep as the parser reads, many of them."""
    depth = 150
    return filled([b"[" * depth + units[0] + b"]" * depth, *units], size)


SHAPES = (filled, filled, keyed, deep, lambda units, size: units[0])
ITEM = {"sku": "s", "name": "n", "quantity": 1, "unit_price": 1}


class Adversary:
    """Makes orders, and bodies that are no orders, up to the size limit of a message."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def pick(self, options: Any) -> Any:
        return self.random.choice(tuple(options))

    def units(self) -> list[bytes]:
        return [self.pick(UNITS) for _ in range(self.pick((1, 1, 2, 3)))]

    def value(self, size: int) -> bytes:
        value: bytes = self.pick(SHAPES)(self.units(), size)
        return value

    def order(self, size: int) -> bytes:
        order: dict[str, Any] = an_order("o1", self.pick(VENDORS))
        place = self.pick(("items", "modifiers", "item", "modifier", "new", "new", "keys", *order))
        hole = b'"\xff"'
        if place == "modifiers":
            order["items"] = [{**ITEM, "modifiers": "\xff"}]
        elif place == "item":
            order["items"] = [{**ITEM, "new": "\xff"}]
        elif place == "modifier":
            order["items"] = [{**ITEM, "modifiers": [{"name": "x", "new": "\xff"}]}]
        elif place != "keys":
            order[place] = "\xff"
        text = json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode("latin-1")
        if place == "keys":
            return text[:-1] + b"," + keyed(self.units(), size - len(text))[1:]
        return text.replace(hole, self.value(size - len(text)))

    def body(self, size: int = LIMIT) -> bytes:
        around = self.pick((b"[[%s],{},{}]", b"[[ %s ], {}, {} ]", b'[[],{"order":%s},{}]'))
        argument = self.order(size - len(around))
        match self.random.randrange(12):
            case 0:
                argument = self.value(size - len(around))
            case 1:
                argument = argument.ljust(size - len(around))
            case 2:
                return self._damaged(around % argument)[:size]
            case 3:
                return b"[[%s],{},%s]" % (b"{}", keyed([b"null"], size - 20))
        return around % argument

    def _damaged(self, body: bytes) -> bytes:
        place = self.random.randrange(len(body))
        return mutated(body, [(self.pick(sorted(MUTATIONS)), place, 9, b"\xff,")])

    def reply(self, size: int) -> Reply:
        names = ("error", "errors", "orders", "elements", "checks", "fulfillments", "note", "a")
        around = {
            "order_id": "o1",
            "status": self.pick(("accepted", "rejected", "pending", "x")),
            "id": "x",
            "currency": "EUR",
            **dict.fromkeys(self.pick(((), ("order",)))),
        }
        text = json.dumps(around).encode()[:-1]
        name = self.pick(names).encode()
        end = b"}"
        if self.random.random() < 0.3:
            name, end = b'error":{"code":"x","message', b"}}"
        if self.random.random() < 0.2:
            name, end = b'order":{"id":"x","state":"OPEN","metadata":{"order_id":"o1"},"x', b"}}"
        text += b',"' + name + b'":'
        text += self.value(size - len(text) - len(end)) + end
        status = self.pick((200, 200, 200, 201, 202, 400, 404, 409, 409, 410, 422, 429, 503))
        headers = {"retry-after": "1" * 999, "location": "http://" + "x" * 5000}
        return Reply(status, headers if self.random.random() < 0.1 else {}, text)


def merchant(name: str) -> Merchant:
    catalog = {sku: known_as(sku) for sku in ("s", "burger", "n", guid("i"))}
    found: Merchant = VENDORS[name].merchant.with_catalog(catalog)
    return found


MERCHANTS = {name: merchant(name) for name in VENDORS}
Pos = Callable[[Request], Reply]


def most_of(status: int, request: Request) -> int:
    """Bytes of a reply that the gateway reads."""
    return request.expects if status < 400 else min(request.expects, ACKNOWLEDGEMENT)


class Worker:
    """A green worker's code from a message's arrival to its outcome, without servers."""

    def __init__(self) -> None:
        self._gate = Gateway(Settings(database_url="sqlite://"))
        self._offered: list[OrderRequest] = []
        app = Celery(set_as_current=False)
        app.register_task(OrderTask())
        app.register_task(CancelTask())
        consumer = SimpleNamespace(
            app=app,
            dispatcher=SimpleNamespace(offer=self._offered.append),
            hostname="worker@here",
            event_dispatcher=None,
            connection_errors=(OSError,),
            channel_errors=(),
        )
        gate: Any = SimpleNamespace(settings=SimpleNamespace(max_order_bytes=LIMIT))
        dead_letter: Any = lambda *_: None  # noqa: E731
        self._handle = MessageIntake(consumer, gate, dead_letter, None).handle
        self._hydration = Hydration(Payloads(Vault()))

    def take(
        self,
        loop: Loop,
        body: bytes,
        pos: Pos,
        *,
        action: Action = Action.SUBMIT,
        **history: Any,
    ) -> None:
        """Take a message, start it, and write its outcome."""
        gate: Any = self._gate
        directory = SimpleNamespace(get=lambda name: MERCHANTS.get(name, MERCHANTS["rest"]))
        gate.spine._submit.directory = gate.spine._cancel.directory = directory
        gate.ledger._commit = loop.waits(lambda asked, **_: self._granted(asked, **history))
        gate.ledger.order = loop.waits(lambda _: Order.parse(an_order("o1", "m")).source)
        gate.ledger.lease.holds = lambda _: True
        gate.caller.exchange = loop.waits(
            lambda request, *, fence, **_: self._said(pos, request, fence)
        )
        gate.commit._store = loop.waits(lambda *_, **__: None)
        loop.turn()
        message = SimpleNamespace(
            body=body,
            headers=dict(TASK),
            properties={},
            content_type="application/json",
            delivery_info={"routing_key": "orders"},
        )
        self._handle(message)
        loop.turn()
        if not self._offered:
            wire.named_in(body)
            return
        request = self._offered.pop()
        attempt: Attempt[Any] = Attempt(request.order, request.raw, action)
        gate.spine.attempt(attempt, timeout=1)
        loop.turn()
        if (source := wire.text_in(request.raw.body)) is not None:
            self._hydration.message(a_row(payload=source.decode()))

    @staticmethod
    def _granted(asked: Any, **history: Any) -> Any:
        if not isinstance(asked, Claiming):
            return True
        return Claim(asked.key, "worker", 1, asked.ticket, AttemptHistory(**history), asked.send)

    @staticmethod
    def _said(pos: Pos, request: Request, fence: Callable[[], None]) -> Reply:
        fence()
        reply = pos(request)
        return Reply(reply.status, reply.headers, reply.body[: most_of(reply.status, request)])


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    loops: list[Loop] = []
    made = Loop.__init__

    def remembered(loop: Loop) -> None:
        made(loop)
        loops[:] = [loop]

    monkeypatch.setattr(Loop, "__init__", remembered)
    monkeypatch.setattr(green.time, "sleep", lambda _: loops[0].turn())
    with capture_logs():
        yield Worker()


def fast(_request: Request) -> Reply:
    return Reply(200, {}, b'{"status":"accepted","id":"x","checks":[]}')


def item(**fields: Any) -> dict[str, Any]:
    return {**ITEM, **fields}


def body_of(**fields: Any) -> bytes:
    order = an_order("o1", "rest", **fields)
    return wire.body_of(json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode())


#: Inputs that were slow once, and the largest that the bounds allow.
KNOWN: dict[str, bytes] = {
    "errors": body_of(items=[item(modifiers=[{}] * 80_000)]),
    "items' errors": body_of(items=[item(quantity=0, unit_price="x", name=1, notes=1)] * 1000),
    "modifiers' errors": body_of(items=[item(modifiers=[{"name": 1, "sku": 1}] * 5)] * 1000),
    "most modifiers": body_of(items=[item(modifiers=[{"name": "x"}] * 5)] * 1000, total=1000),
    "most in one": body_of(items=[item(modifiers=[{"name": "x"}] * 250)] * 20, total=20),
    "floats": wire.body_of(b'{"x":' + filled([b"1e1"], LIMIT - 300) + b"}"),
    "one infinity": body_of(x=0).replace(b'"x":0', b'"x":[1e999,' + filled([b"1e1"], LIMIT - 500)[1:]),
    "objects": wire.body_of(b'{"x":' + filled([b"{}"], LIMIT - 100) + b"}"),
    "digits": body_of(x=0).replace(b'"x":0', b'"x":' + filled([b"9" * 4299], LIMIT - 500)),
    "long text": body_of(items=[item(name="\x7f" * 4096)] * 8, x="x" * 200_000),
    "blanks": b"[" + b" " * (LIMIT - 10),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("vendor", VENDORS)
def test_inputs_that_were_slow_once_are_fast(worker: Worker, name: str, vendor: str) -> None:
    body = KNOWN[name].replace(b'"rest"', b'"%s"' % vendor.encode())
    assert len(body) <= LIMIT
    longest, _ = cost(lambda loop: worker.take(loop, body, fast))
    assert longest <= LONGEST


def test_no_message_blocks_the_loop(worker: Worker) -> None:
    adversary = Adversary(SEED)
    dearest = 0.0
    for number in range(EXAMPLES):
        body = adversary.body()
        assert len(body) <= LIMIT + 300
        action = Action.CANCEL if number % 8 == 0 else Action.SUBMIT
        longest, _ = cost(lambda loop: worker.take(loop, body, fast, action=action))  # noqa: B023
        dearest = max(dearest, longest)
        assert longest <= LONGEST, (number, len(body), body[:300], body[-100:])
    print(f"at most {dearest * 1000:.1f} ms in one go")


@pytest.mark.parametrize("vendor", VENDORS)
def test_no_reply_blocks_the_loop(worker: Worker, vendor: str) -> None:
    """About an order that is created, looked up or cancelled; small ones, and the largest."""
    adversary = Adversary(f"{SEED} {vendor}")
    items = [item(name="x" * 100)] * 150
    orders = [
        wire.body_of(json.dumps(an_order("o1", vendor, **fields)).encode())
        for fields in ({"items": [item()], "total": 1}, {"items": items, "total": 150})
    ]
    dearest = 0.0
    for number in range(EXAMPLES):
        replies: list[Reply] = []

        def pos(request: Request) -> Reply:
            if len(replies) < 3:  # noqa: B023
                replies.append(adversary.reply(request.expects))  # noqa: B023
            return replies[-1]  # noqa: B023

        body, action = adversary.pick(orders), adversary.pick(Action)
        history = adversary.pick(({}, {"pending": True}, {"doubt_since": 1.0}))
        longest, total = cost(
            lambda loop: worker.take(loop, body, pos, action=action, **history)  # noqa: B023
        )
        dearest = max(dearest, longest)
        assert longest <= LONGEST, (number, replies[0].status, replies[0].body[:300])
        assert total <= LOOK_UP, (number, replies[0].status, replies[0].body[:300])
    print(f"at most {dearest * 1000:.1f} ms in one go")


#: Replies that were slow once: numbers that are hard to read, beside a text for which they are read
#: a second time, and invalid texts, which are quoted in the reason.
HARD: dict[str, tuple[bytes, bytes]] = {
    "numbers": (b'{"code":1,"message":"NaN","a":[', HALFWAY[:44] + b"e-308"),
    "numbers of ordinary length": (b'{"code":1,"message":"NaN","a":[', HALFWAY[:35] + b"e-308"),
    "objects": (b'{"code":1,"x":"NaN","a":[', b'{"a":1.23456}'),
    "message": (b'{"code":1,"x":"NaN","message":[', b'{"a":1.23456}'),
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("vendor", VENDORS)
def test_no_reply_is_slow_to_read(worker: Worker, vendor: str, status: int, name: str) -> None:
    """The create's: an invalid decision, or a refusal, after which the order is looked up."""
    items = [item(name="x" * 100, sku=guid("i"))] * 150
    order = an_order("o1", vendor, items=items, total=150)
    head, unit = HARD[name]

    def pos(request: Request) -> Reply:
        if request.url.endswith("/prices"):
            return Reply(200, {}, b'{"checks":[{"amount":1.5,"totalAmount":1.5}]}')
        if request.method == "GET" or "search" in request.url:
            return Reply(404, {}, b"{}")
        number = (most_of(status, request) - len(head) - 2) // (len(unit) + 1)
        return Reply(status, {}, head + b",".join([unit] * number) + b"]}")

    body = wire.body_of(json.dumps(order).encode())
    longest, _ = cost(lambda loop: worker.take(loop, body, pos))
    assert longest <= LONGEST


def test_a_look_up_with_endless_pages_is_cut_off(worker: Worker) -> None:
    """A POS that says "conflict" and answers the look-up with page after page."""

    def pos(request: Request) -> Reply:
        if request.method == "POST" and "search" not in request.url:
            return Reply(409, {}, b"{}")
        size = request.expects - 40
        page = filled([b'{"note":"[x]"}', b'{"note":"%s"}' % (b"x" * 9000)], size, 20)
        text = b'{"cursor":"x","orders":' if "search" in request.url else b'{"elements":'
        return Reply(200, {}, text + page + b"}")

    for vendor in VENDORS:
        body = wire.body_of(json.dumps(an_order("o1", vendor, items=[item()], total=1)).encode())
        longest, total = cost(lambda loop: worker.take(loop, body, pos))  # noqa: B023
        assert longest <= LONGEST, vendor
        assert total <= LOOK_UP, vendor


def test_no_bundle_blocks_the_loop() -> None:
    adversary = Adversary(SEED)
    for number in range(max(20, EXAMPLES // 4)):
        body = adversary.body(BYTES_ALLOWED // 8)
        few = adversary.pick((1, 2, 8))
        parked = [ParkedOrder(Message("", "orders", body, "o1", TASK), 1.0)] * few
        sent = Bundle.of("m", "orders", parked)
        lines = sent.lines
        orders: Any = few
        match adversary.random.randrange(5):
            case 0:
                lines, orders = b",\n" * (BYTES_ALLOWED // 2 - 100), 256
            case 1:
                said = b'{"message_id":"o","headers":%s}' % adversary.value(BYTES_ALLOWED // 2)
                lines, orders = said + b",\n{}", 1
            case 2:
                said = b'{"message_id":"o","headers":%s}' % keyed([b'"x"'], 1900)
                lines, orders = b",\n".join([said, b"x"] * 256), 256
            case 3:
                lines = adversary.value(BYTES_ALLOWED - 300)
        headers = {"task": PARKED_ORDERS, "id": "1", "x-merchant-id": "m", "x-orders": orders}
        whole = b"[[[\n" + lines + b"\n]],{}," + wire.NO_EMBED + b"]"

        def go(_loop: Loop) -> None:
            with suppress(InvalidBundle):
                Bundle.read(headers, whole, "orders").open()  # noqa: B023

        longest, _ = cost(go)
        assert longest <= LONGEST, (number, whole[:200])


def test_retries_that_are_due_together_are_parsed_in_turns() -> None:
    """Hundreds of large orders, each for its retry."""
    body = body_of(x=0).replace(b'"x":0', b'"x":' + keyed([b"0"], LIMIT - 500))
    message = SimpleNamespace(
        body=body, headers=dict(TASK), delivery_info={"routing_key": "orders"}
    )
    again = Message("orders", "orders", body, "o1", {wire.ATTEMPTS: 1})
    task, consumer = (
        SimpleNamespace(action=Action.SUBMIT, name=""),
        SimpleNamespace(event_dispatcher=None),
    )

    def a_request() -> OrderRequest:
        request = OrderRequest(message, [[{}], {}, {}], task, consumer, 0.0)
        request.state = RequestState.RETRY_WAITING
        return request

    def go(loop: Loop) -> None:
        retries, read = Retries(20), 0
        for _ in range(20):
            retries.keep(a_request(), again, 0.0)
        while due := retries.due(0.0):
            read += len(due)
            loop.turn()
        assert read == 20

    longest, _ = cost(go)
    assert longest <= LONGEST


def test_reading_a_line_of_a_file_takes_linear_time() -> None:
    adversary = Adversary(SEED)
    kinds: tuple[Callable[[Any], object], ...] = (Order.parse, Merchant.parse, CatalogEntry.parse)
    twice = b"{" + b",".join([b'"%d":0' % (n // 2) for n in range(25_000)]) + b"}"
    unique = b"{" + b",".join([b'"%d":0' % n for n in range(25_000)]) + b',"24999":0}'
    for line in (twice, unique, *(adversary.order(LIMIT) for _ in range(EXAMPLES // 6))):
        for parse in kinds:

            def go(_loop: Loop) -> None:
                try:
                    parse(jsonl.decode(line))  # noqa: B023
                except InvalidRecord as error:
                    str(error)

            longest, _ = cost(go, LINE)
            assert longest <= LINE, line[:300]


def test_the_largest_catalog_is_read_within_the_bound() -> None:
    text = as_text({f"{n:0256}": "x" * 192 for n in range(MAX_ENTRIES)})
    longest, _ = cost(lambda _: of_text(text))
    assert longest <= LONGEST


def test_the_measurement_finds_a_blocked_loop_and_no_other() -> None:
    """A blocked loop is found; a loop that yields is not."""

    def busy(loop: Loop, every: int) -> None:
        """As much work as takes five times the bound, with a turn after `every` pieces of it."""
        for number in range(round(5 * LONGEST / NOMINAL)):
            json.loads(YARDSTICK)
            if number % every == 0:
                loop.turn()

    assert cost(lambda loop: busy(loop, 1000))[0] > LONGEST
    assert cost(lambda loop: busy(loop, 1))[0] <= LONGEST
