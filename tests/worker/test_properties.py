"""A frame's properties, read as the worker has the AMQP library read them."""

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from amqp import Message as AmqpMessage
from amqp import serialization
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.transport.native_delayed_delivery import (
    MAX_NUMBER_OF_BITS_TO_USE,
    calculate_routing_key,
    level_name,
)

from pos_gateway.broker import frames, topology, wire
from pos_gateway.broker.bundle import Bundle, ParkedOrder
from pos_gateway.broker.message import MAX_DELAY, Message
from pos_gateway.broker.properties import HEADERS, MAX_BYTES, UNREADABLE, tolerate_bad_properties
from pos_gateway.worker.dead_lettering import KNOWN_HEADERS
from pos_gateway.worker.intake import known_headers
from tests.worker.test_cost import LONGEST, cost


@pytest.fixture(autouse=True)
def _as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    before = serialization.PROPERTY_CLASSES[60]
    monkeypatch.setitem(serialization.PROPERTY_CLASSES, 60, before)  # restored afterwards
    tolerate_bad_properties()


def properties(table: bytes) -> dict[str, Any]:
    """The properties of a message with this table of headers."""
    frame = struct.pack(">HI", 0x2000, len(table)) + table
    found: dict[str, Any]
    found, after = serialization.PROPERTY_CLASSES[60](frame, 0)
    assert after == len(frame)
    return found


def read(table: bytes) -> dict[str, Any]:
    """The headers of a message with this table."""
    headers: dict[str, Any] = properties(table)["application_headers"]
    return headers


def header(name: str, value: str) -> bytes:
    text = value.encode()
    return bytes([len(name)]) + name.encode() + b"S" + struct.pack(">I", len(text)) + text


@pytest.mark.parametrize("seconds", [2**40, 2**55, 2**62, 2**64 - 1])
def test_a_timestamp_out_of_range_is_not_taken_for_a_lost_connection(seconds: int) -> None:
    assert read(b"\4time" + b"T" + struct.pack(">Q", seconds)) == {}


def test_an_unknown_value_type_is_not_taken_for_a_protocol_error() -> None:
    assert read(b"\1x?") == {}


def test_a_truncated_table_has_no_headers() -> None:
    assert read(b"\4long" + b"S\0\0\0") == {}


def test_a_compression_header_is_hidden_from_kombu() -> None:
    headers = read(b"\x0bcompression" + b"S\0\0\0\4gzip")
    assert headers == {"x-compression": "gzip"}


#: Headers of a size that RabbitMQ passes, which take long to read: names and values.
FULL = 131_072 - 200
DEAR = {
    "lists": b"A\0\0\0\0",
    "tables": b"F\0\0\0\0",
    "nothings": b"V",
    "flags": b"t\1",
    "numbers": b"D\0\0\0\0\7",
}


@pytest.mark.parametrize("kind", DEAR)
@pytest.mark.parametrize("size", [MAX_BYTES - 200, FULL])
def test_no_number_of_headers_blocks_the_loop(kind: str, size: int) -> None:
    """They are read before their size can be checked."""
    value, member = DEAR[kind], b"\1\xff" + DEAR[kind]
    values, members = value * (size // len(value)), member * (size // len(member))
    lists = b"\1xA" + struct.pack(">I", len(values)) + values
    tables = b"\1xF" + struct.pack(">I", len(members)) + members
    for table in (lists, tables, members):
        longest, _ = cost(lambda _: properties(header("task", "t") + table), LONGEST / 2)  # noqa: B023
        assert longest <= LONGEST / 2


def test_a_worker_reads_only_known_headers_of_many() -> None:
    numbers = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"U": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4}
    numbers |= {b"l": 8, b"L": 8, b"d": 8, b"T": 8, b"D": 5, b"V": 0}
    table = (
        header("task", "t")
        + b"\1x"
        + b"F"
        + struct.pack(">I", MAX_BYTES)
        + b"\1aV".ljust(MAX_BYTES)
    )
    table += (
        b"\1y" + b"A" + struct.pack(">I", 1) + b"V" + b"\1z" + b"x" + struct.pack(">I", 1) + b"?"
    )
    for kind, size in numbers.items():
        table += b"\1" + kind + kind + bytes(size)
    found = read(table + header("id", "\N{SLICE OF PIZZA}" * MAX_BYTES))
    assert found.keys() == {"task", "id", "z", *(kind.decode() for kind in numbers)}
    assert (found["task"], found["id"], found["l"]) == ("t", "\N{SLICE OF PIZZA}" * MAX_BYTES, 0)


def test_the_other_properties_are_read_unchanged() -> None:
    said = {"content_type": "application/json", "content_encoding": "utf-8", "message_id": "o1"}
    headers = {"task": "t", "huge": "x" * 2 * MAX_BYTES, "many": [1] * 10}
    frame = AmqpMessage(application_headers=headers, **said)._serialize_properties()
    found, after = serialization.PROPERTY_CLASSES[60](memoryview(b"--" + frame), 2)
    del headers["many"]
    assert (found, after) == ({**said, "application_headers": headers}, 2 + len(frame))


#: Names and texts, also those that are no text, and a value of another type.
SHORT = st.one_of(
    st.binary(max_size=5), st.sampled_from([b"compression", b"task", b"\xf0\x9f\x8d\x95"])
)
FIELDS = st.lists(st.tuples(SHORT, st.sampled_from([b"S", b"S", b"x", b"I"]), SHORT), max_size=4)


@given(FIELDS, SHORT, st.integers(0, 2**64 - 1), st.integers(-40, 3), st.integers(-3, 9))
@example([(b"task", b"S", b"t"), (b"task", b"S", b"u")], b"o1", 5, 0, 0)
@example([(b"task", b"S", b"t")], b"o1", 5, 0, 2)
@example([(b"task", b"S", b"t")], b"o1", 5, 0, -1)
def test_properties_as_a_gateway_writes_them_are_read_as_by_the_library(
    fields: list[tuple[bytes, bytes, bytes]], number: bytes, time: int, cut: int, off: int
) -> None:
    """Cut off, continued, or with a table of another size than it says, too."""
    table = b"".join(
        bytes([len(name)]) + name + kind + struct.pack(">I", len(value)) + value
        for name, kind, value in fields
    )
    frame = b"\xf0\xc0\x10application/json\x05utf-8"
    frame += struct.pack(">I", max(0, len(table) + off)) + table
    frame += b"\2" + bytes([len(number)]) + number + struct.pack(">Q", time)
    frame = frame[:cut] if cut < 0 else frame + b"?" * cut
    found = frames.properties(bytes(frames.PROPERTIES_AT) + frame)
    assert found is None or (found, len(frame)) == serialization.PROPERTY_CLASSES[60](frame, 0)


def test_properties_as_a_gateway_writes_them_are_read_without_the_library() -> None:
    message = Message("orders", "orders", b"", "o1", {"task": "t", "id": "o1"})
    written = frames.content(1, message.message_id, message.headers, b"", 5, 1000)
    assert written is not None
    found = frames.properties(written[7:-1])
    assert found is not None
    assert (found["application_headers"], found["message_id"]) == (message.headers, "o1")
    long = frames.content(1, "o1", {"task": "t" * MAX_BYTES}, b"", 5, 131_072)
    assert long is not None
    assert frames.properties(long[7:-1]) is None


def test_a_table_of_too_many_headers_is_not_read() -> None:
    most = b"".join(header(f"{n}", "x" * 40) for n in range(HEADERS))
    assert len(read(most)) == HEADERS
    assert properties(most + b"\1xV") == {"application_headers": {}, "content_type": UNREADABLE}


@pytest.mark.parametrize(
    "rest", [b"\xff", b"\1", b"\1x", b"\1xS\0", b"\1xl\0", b"\1xS\xff\xff\xff\xff"]
)
def test_a_long_truncated_table_has_no_headers(rest: bytes) -> None:
    table = header("huge", "x" * MAX_BYTES) + rest
    assert properties(table)["application_headers"].keys() <= {"huge", "x"}


def test_a_reader_of_dead_letters_reads_all_of_their_headers() -> None:
    table = header("x", "x" * MAX_BYTES) + b"\1y" + b"A" + struct.pack(">I", 1) + b"V"
    tolerate_bad_properties(None)
    assert read(table) == {"x": "x" * MAX_BYTES, "y": [None]}
    tolerate_bad_properties()
    assert read(table) == {"x": "x" * MAX_BYTES}


def test_no_message_of_the_gateway_has_too_many_headers() -> None:
    """Not even with RabbitMQ's x-death entries of each delay."""
    longest = known_headers(
        {
            **dict.fromkeys(KNOWN_HEADERS, "\N{SLICE OF PIZZA}" * 500),
            wire.ATTEMPTS: 2**62,
            wire.RESOLVE: True,
            wire.LOOK_UP: True,
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "a=" + "x" * 254 + ",b=" + "y" * 252,
        }
    )
    assert longest.keys() == {*KNOWN_HEADERS, "traceparent", "tracestate"}
    order = Message("orders", topology.CANARY_KEY, b"", "x" * 128, longest, delay=MAX_DELAY)
    bundle = Bundle.of("m" * 128, topology.CANARY_KEY, [ParkedOrder(order, 2.0**38)] * 2).message()
    for message in (order, bundle):
        written = AmqpMessage(
            content_type="application/json",
            content_encoding="utf-8",
            delivery_mode=2,
            message_id=message.message_id,
            timestamp=2**40,
            application_headers={**message.headers, **_delayed_by_all()},
        )
        assert len(written._serialize_properties()) < MAX_BYTES


def _delayed_by_all() -> dict[str, Any]:
    """What RabbitMQ adds: https://www.rabbitmq.com/docs/dlx#effects."""
    routing_key = calculate_routing_key(MAX_DELAY, topology.CANARY_KEY)
    deaths = [
        {
            "count": 1,
            "reason": "expired",
            "queue": level_name(level),
            "time": datetime.now(UTC),
            "exchange": level_name(level),
            "routing-keys": [routing_key],
        }
        for level in range(MAX_NUMBER_OF_BITS_TO_USE)
    ]
    first = {
        f"x-{when}-death-{what}": deaths[-1][what]
        for when in ("first", "last")
        for what in ("reason", "queue", "exchange")
    }
    return {"x-death": deaths, "x-delivery-count": 100, "x-acquired-count": 100, **first}
