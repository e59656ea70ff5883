"""Round trip of size: a valid order of any size up to the limit stays what it was, byte for byte,
through retry, parking, bundling, dead-lettering, replay, event and resubmission.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import cycle
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.administration.replay import Replay
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.attempt.submit import Submit
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import Bundle, ParkedOrder, joined
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import PARTS, Malformed, RawMessage
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.domain.split import Split
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import AttemptHistory, Claim, ClaimResult, Key
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.settings import Settings
from pos_gateway.worker.intake import known_headers, read
from tests.events.test_hydration import a_row
from tests.gate import deliver
from tests.orders import an_order
from tests.worker.lab import Lab

LIMIT = Settings.model_fields["max_order_bytes"].default
TASK = {"task": wire.SUBMIT_ORDER, "id": "o1"}
ITEM = {"sku": "s", "name": "n", "quantity": 1, "unit_price": 1}

#: How backends frame the body of an order.
BODIES: dict[str, Callable[[bytes], bytes]] = {
    "ours": wire.body_of,
    "short": lambda order: b"[[" + order + b"],{},{}]",
    "python": lambda order: b"[[" + order + b'], {}, {"callbacks": null, "chain": null}]',
    "blanks": lambda order: b" [ [\n" + order + b"\r\n ] ,\t{ } , { } ]\n ",
}


def lasting(**fields: Any) -> dict[str, Any]:
    """An order that outlasts the tests, however late they run after collection."""
    return an_order("o1", "m", seconds=86_400, **fields)


def text_of(**fields: Any) -> bytes:
    return json.dumps(lasting(**fields), separators=(",", ":")).encode()


def grown(text: bytes, size: int) -> bytes:
    """An order's text with another field that makes it this long."""
    missing = size - len(text) - len(b',"pad":""')
    assert missing >= 0
    return text[:-1] + b',"pad":"' + b"a" * missing + b'"}'


#: Orders that grow when they are parsed and serialized again: by defaults, escapes, numbers,
#: blanks.
TEXTS: dict[str, bytes] = {
    "defaults": text_of(items=[{**ITEM, "modifiers": [{"name": "x"}] * 250}] * 20),
    "items": text_of(items=[ITEM] * 1000),
    "text": text_of(notes="x"),
    "unicode": json.dumps(lasting(x=["é🍔\x7f\u2028"] * 9000), ensure_ascii=False).encode(),
    "escapes": text_of(x=["\x01\"\\\x1f/"] * 9000),
    "odd escapes": text_of()[:-1] + b',"x":"' + rb"\u0061\/\ud83c\udf55" * 9000 + b'"}',
    "numbers": text_of()[:-1] + b',"x":[' + b",".join([b"1e2", b"1.10", b"-0", b"-0.0"] * 9000) + b"]}",
    "exact": text_of()[:-1] + b',"x":[0.1000000000000000055511151231257827,' + b"9" * 4000 + b"]}",
    "nested": text_of(x={"a": [{"b": [[], {}] * 20}] * 90}),
    "keys": text_of(**{format(n, "x"): n for n in range(5_000)}),
    "lines": json.dumps(lasting(x=list(range(15_000))), indent=1).encode(),
}  # fmt: skip

#: With a random key: to stretch a passphrase takes a tenth of a second.
SEALING = Vault(new_key())


#: Each order in one of the frames, and one of them in each.
PAIRS = [
    *zip(TEXTS, cycle(BODIES)),
    *(("defaults", body) for body in BODIES),
]


@pytest.fixture(params=PAIRS, ids="-".join)
def bodies(request: pytest.FixtureRequest) -> list[tuple[bytes, bytes]]:
    """An order's text and body: unchanged, and at the limit and just under it."""
    name, around = request.param
    text, body = TEXTS[name], BODIES[around]
    most = LIMIT - len(body(b""))
    whole = (text, grown(text, most - 1), grown(text, most))
    return [(each, body(each)) for each in whole]


def taken(body: bytes, headers: Any = TASK, limit: int = LIMIT) -> SimpleNamespace:
    """A message as a worker has it that accepts it as an order."""
    message = SimpleNamespace(
        body=body, headers=known_headers(dict(headers)), content_type="application/json"
    )
    read(message, limit)
    return message


GATE = Gateway(Settings(database_url="sqlite://"))


class Away(Submit):
    """Attempts that all raise."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            directory=GATE.directory, adapters={}, caller=GATE.caller, ledger=GATE.ledger
        )
        self._error = error

    def claim(self, attempt: Attempt[Order]) -> Outcome | None:
        raise self._error

    def _claim(self, attempt: Attempt[Order], **_: Any) -> ClaimResult:  # type: ignore[override]
        self.kept = attempt.content.source
        claim = Claim(Key("m", "o1"), "worker", 1, 1, AttemptHistory(), sending=False)
        attempt.claims.append(claim)
        return claim


def decided(error: Exception, body: bytes, headers: Any = TASK) -> Any:
    GATE.spine._submit = Away(error)
    return deliver(GATE, RawMessage.of(body, headers, "orders"))


def test_a_retry_has_the_bytes_of_its_message(bodies: list[tuple[bytes, bytes]]) -> None:
    for _, body in bodies:
        message = taken(body)
        for attempt in (1, 2, 3):
            decision = decided(LedgerUnavailable("away"), message.body, message.headers)
            again: Message = decision.again
            assert again.body == body
            message = taken(again.body, {**TASK, **again.headers})
            assert message.headers[wire.ATTEMPTS] == attempt


def test_a_dead_letter_and_its_replay_have_the_bytes_of_their_message(
    bodies: list[tuple[bytes, bytes]],
) -> None:
    published: list[Message] = []
    for text, body in bodies:
        decision = decided(ZeroDivisionError(), body)
        [dead] = decision.messages
        assert dead.body == body
        assert GATE.spine._submit.kept == text  # type: ignore[attr-defined]
        replaying(published.append).replay(letter(dead))
        again = published.pop()
        assert again.body == body
        taken(again.body, {**TASK, **again.headers})


def test_a_replay_with_a_new_deadline_changes_nothing_else(
    bodies: list[tuple[bytes, bytes]],
) -> None:
    published: list[Message] = []
    until = datetime.now(UTC) + timedelta(hours=3, microseconds=7)
    for text, body in bodies:
        [dead] = decided(ZeroDivisionError(), body).messages
        replaying(published.append, until).replay(letter(dead))
        again = published.pop()
        taken(again.body, {**TASK, **again.headers})
        before = json.loads(text)["deliver_by"].encode()
        new = wire.read(again.body)[1]
        assert new == text.replace(before, until.isoformat().encode())


def test_parked_orders_keep_their_bytes(bodies: list[tuple[bytes, bytes]]) -> None:
    parked = [ParkedOrder(Message("", "orders", body, "o1", TASK), 1e9) for _, body in bodies]
    for some in (parked[:1], parked):
        sent = joined([Bundle.of_one("m", "orders", each) for each in some]).message()
        back = [sent]
        if len(some) > 1:
            back = [each.message for each in Bundle.read(sent.headers, sent.body, "orders").open()]
        for message, (_, body) in zip(back, bodies, strict=False):
            # The only newlines are between tokens, where a blank is equivalent.
            assert message.body in (body, body.replace(b"\n", b" "))
            taken(message.body, message.headers)


def test_no_header_of_an_order_spoils_its_bundle() -> None:
    """A bundle that cannot be opened is dead-lettered with all its orders, and without an event."""
    state = ",".join(f"k{n}=" + "\\" * 250 for n in range(2))
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": state}
    order_id = '"' * 128
    for text in ("i" * 5_000, "\x01" * 5_000, "🍔" * 5_000, "é" * 5_000):
        sent = {"task": wire.SUBMIT_ORDER, "id": text, "lang": text, wire.ATTEMPTS: text, **trace}
        body = wire.body_of(text_of())
        message = taken(body, {**sent, wire.RESOLVE: text})
        assert message.headers["id"]
        assert message.headers["tracestate"] == state
        odd = ParkedOrder(Message("", "orders", body, order_id, message.headers), 1e9)
        good = ParkedOrder(Message("", "orders", body, "o1", TASK), 1e9)
        for some in ([odd], [good, odd]):
            bundle = Bundle.of("m", "orders", some).message()
            if len(some) > 1:
                back = Bundle.read(bundle.headers, bundle.body, "orders").open()
                assert [each.message.headers for each in back] == [TASK, message.headers]


def test_an_attempt_count_over_the_maximum_is_retried() -> None:
    most = {**TASK, wire.ATTEMPTS: 2**63 - 1}
    message = taken(wire.body_of(text_of()), most)
    again = decided(LedgerUnavailable("away"), message.body, message.headers).again
    assert 0 < again.headers[wire.ATTEMPTS] < 2**63


def test_an_events_order_has_the_text_of_its_message(bodies: list[tuple[bytes, bytes]]) -> None:
    for vault in (Vault(), SEALING):
        payloads = Payloads(vault)
        for text, body in bodies:
            order = Order.parse(*wire_order(body))
            payload = payloads.seal(Key("m", "o1"), order.source)
            event = Hydration(payloads).message(a_row(payload=payload)).body
            assert event.endswith(b',"order":' + text + b"}")


def wire_order(body: bytes) -> tuple[Any, bytes | None]:
    return wire.read(body)


def letter(dead: Message) -> DeadLetter:
    properties = {"message_id": dead.message_id}
    return DeadLetter.of(
        SimpleNamespace(
            body=dead.body,
            headers=dict(dead.headers),
            properties=properties,
            delivery_tag=1,
            channel=None,
        )
    )


class Books:
    """An empty ledger."""

    def one(self, _key: Key) -> None: ...

    def note(self, *_: object, **__: object) -> None: ...


def replaying(publish: Callable[[Message], None], until: datetime | None = None) -> Replay:
    return Replay(
        Books(),  # type: ignore[arg-type]
        publish=publish,
        acknowledge=lambda _: None,
        operator="ada",
        split=Split(),
        until=until,
        largest=LIMIT,
        dry_run=False,
    )


@pytest.mark.parametrize(
    "body",
    [
        b'[[{"a":"],{},{}]"}],{},{}]',
        b'[[{"a":"],{},{"}],{},{"callbacks":null}]',
        b'[["],{},{}]"],{},{}]',
        b'[[{"a":[{}]}],{},{}]',
        b"[[ 7 ],{},{}]",
    ],
)
def test_an_orders_text_is_found_in_every_body(body: bytes) -> None:
    record, source = wire.read(body)
    assert source is not None
    assert json.loads(source) == record


@pytest.mark.parametrize("body", [b"[[{},{}],{},{}]", b'[[],{"order":{}},{}]', b"[[{}],{},[]]"])
def test_an_unknown_body_has_no_order_text(body: bytes) -> None:
    assert wire.read(body) == ({}, None)


def orders_of_all_sizes(seed: int) -> Iterator[bytes]:
    random = Random(seed)
    for number in range(12):
        text = TEXTS[random.choice(sorted(TEXTS))]
        body = random.choice(sorted(BODIES))
        most = LIMIT - len(BODIES[body](b"")) - 2
        size = most if number % 3 else random.randint(len(text) + 20, most)
        order = text.replace(b'"o1"', b'"o%d"' % (10 + number))
        yield BODIES[body](grown(order, size))


def test_large_orders_keep_their_bytes_through_a_worker_and_the_broker(lab: Lab) -> None:
    """Parked, unparked, attempted, retried, expired, dead-lettered."""
    lab.open_merchants("m", paused=True)
    sent = {}
    with lab.worker():
        lab.wait_for_worker()
        for body in orders_of_all_sizes(1):
            record, _ = wire.read(body)
            soon = (datetime.now(UTC) + timedelta(seconds=9)).isoformat().encode()
            changed = body.replace(record["deliver_by"].encode(), soon)
            sent[record["order_id"]] = changed
            lab.publish_raw(changed, {"task": wire.SUBMIT_ORDER, "id": record["order_id"]})
        lab.open_merchants("m", base_url="http://127.0.0.1:1/closed")
        dead = lab.dead_letters(len(sent))
        events = lab.events(len(sent))
    assert {each["order_id"]: each["type"] for each in events} == dict.fromkeys(
        sent, "order.expired"
    )
    for each in dead:
        body = sent[json.loads(each["body"].encode())[0][0]["order_id"]]
        assert each["body"].encode() in (body, body.replace(b"\n", b" "))
    for event in events:
        assert event["order"] == json.loads(sent[event["order_id"]])[0][0]


def test_a_too_large_order_fails_under_its_id_if_the_body_starts_with_it(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    order = an_order("large", "fast-1", x="x" * LIMIT)
    last = {name: order[name] for name in ("x", *order)}
    for record in (order, last):
        lab.publish_raw(wire.body_of(json.dumps(record).encode()), TASK)
    lab.publish_raw(wire.body_of(json.dumps(order).encode()), {**TASK, "task": wire.CANCEL_ORDER})
    with lab.worker():
        dead = lab.dead_letters(3)
        lab.submit("fast-1", "good")
        failed, accepted = lab.events(2)
    assert {each["headers"]["x-reason-code"] for each in dead} == {"too_large"}
    assert (failed["type"], failed["order_id"]) == ("order.failed", "large")
    assert failed["reason"]["code"] == "too_large"
    assert failed["order"] == {"order_id": "large", "merchant_id": "fast-1"}
    assert accepted["order_id"] == "good"


def test_a_far_too_large_order_can_be_replayed_whatever_headers_its_producer_adds(
    lab: Lab,
) -> None:
    body = wire.body_of(text_of(x="x" * 5 * LIMIT))
    lab.publish_raw(body, {**{f"of-ours-{n}": "x" for n in range(30)}, **TASK}, message_id="o1")
    with lab.worker():
        [dead] = lab.dead_letters(1)
    kept = SimpleNamespace(
        body=dead["body"],
        headers=dead["headers"],
        properties={"message_id": "o1"},
        delivery_tag=1,
        channel=None,
    )
    letter = DeadLetter.of(kept)
    assert letter.code == "too_large"
    assert letter.headers["id"] == "o1"
    assert isinstance(letter.content(), Order)


def test_a_message_that_a_worker_published_is_not_too_large_for_another() -> None:
    body = wire.body_of(text_of(x="x" * LIMIT))
    with pytest.raises(Malformed, match="bytes"):
        taken(body)
    taken(body, {**TASK, wire.ATTEMPTS: 1})


@pytest.mark.parametrize("many", [0, 1])
def test_the_limit_on_lists_and_objects_is_exact(many: int) -> None:
    rest = wire.body_of(b'{"x":[]}')
    parts = [b"[]"] * (PARTS + many - rest.count(b"[") - rest.count(b"{"))
    body = wire.body_of(b'{"x":[' + b",".join(parts) + b"]}")
    assert body.count(b"[") + body.count(b"{") == PARTS + many
    with pytest.raises(Malformed, match="lists and objects") if many else nullcontext():
        taken(body)


@pytest.mark.parametrize(
    ("begins", "named"),
    [
        (b'[[{"order_id":"o","merchant_id":"m",', {"order_id": "o", "merchant_id": "m"}),
        (b'[[{"a":1,"b":null,"merchant_id":"m","c":"\xc3\xa9","order_id":"o",', {"order_id": "o", "merchant_id": "m"}),
        (b'[[{"customer":{"order_id":"o","merchant_id":"m",', {}),
        (b'[[{"order_id":"\\u0061\\"1\\\\","merchant_id":"m",', {"order_id": 'a"1\\', "merchant_id": "m"}),
        (b'[[{"notes":"\\"x\\"","order_id":"a","merchant_id":"m",', {"order_id": "a", "merchant_id": "m"}),
        (b'[[{"order_id":"\\x","merchant_id":"\\ud800","total":1,', {}),
        (b'{"order_id":"o",', {}),
        (b'\xef\xbb\xbf[[{"order_id":"o","merchant_id":"m",', {"order_id": "o", "merchant_id": "m"}),
        (b"\xff" * 100, {}),
    ],
)  # fmt: skip
def test_a_bodys_ids_are_read_from_its_beginning(begins: bytes, named: dict[str, str]) -> None:
    assert wire.named_in(begins + b"[" * 300_000) == named
