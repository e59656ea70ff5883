"""Batches and cancel requests, and what they take from the event loop."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pos_gateway.broker import wire
from pos_gateway.server import batches, submitting
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.posted import Posted, PostResult
from pos_gateway.server.problems import Problem
from tests.server.inside import JSON, LINES, Inside, inside
from tests.server.lab import order

BATCH, CANCEL = "/v1/orders/batch", "/v1/merchants/m1/orders/o1/cancel"


@pytest.fixture
def server(database_url: str) -> Iterator[Inside]:
    with inside(database_url, max_order_bytes=4096) as server:
        yield server


def batch(*orders: Mapping[str, Any]) -> bytes:
    return json.dumps(orders).encode()


def test_a_batch_is_a_503_if_none_of_its_orders_is_known_to_be_stored(server: Inside) -> None:
    token = server.token()
    unknown = {"o1", "o2"}

    def result(posted: Posted) -> PostResult:
        is_unknown = posted.message.message_id in unknown
        return PostResult.UNKNOWN if is_unknown else PostResult.STORED

    server.result = result

    async def script() -> None:
        some = await server.ask("POST", BATCH, token, batch(*map(order, ("o1", "o2", "o3"))), JSON)
        assert (some.status, [each["status"] for each in some.says]) == (207, [503, 503, 202])
        none = await server.ask("POST", BATCH, token, batch(*map(order, ("o1", "o2"))), JSON)
        assert (none.status, none.says["code"]) == (503, "broker_unavailable")
        wrong = await server.ask("POST", BATCH, token, batch(order("o1"), {}), JSON)
        assert (wrong.status, [each["status"] for each in wrong.says]) == (207, [503, 422])

    asyncio.run(script())


@pytest.mark.parametrize("headers", [JSON, LINES])
def test_an_order_of_a_batch_may_be_as_large_as_any_other(
    server: Inside, headers: Mapping[str, str]
) -> None:
    token = server.token()
    orders = [order("o1"), order("o2", x="x" * 5000), order("o3")]
    body = batch(*orders) if headers is JSON else "\n".join(map(json.dumps, orders)).encode()
    reply = asyncio.run(server.ask("POST", BATCH, token, body, headers))
    assert [each["status"] for each in reply.says] == [202, 413, 202]
    assert [each.message.message_id for each in server.published] == ["o1", "o3"]


@pytest.mark.parametrize("headers", [JSON, LINES])
def test_an_order_without_a_deadline_in_its_own_zone_keeps_no_other_from_being_taken(
    server: Inside, headers: Mapping[str, str]
) -> None:
    """Its ``deliver_by`` is after UTC's calendar."""
    token = server.token()
    orders = [order("o1"), order("o2", deliver_by="9999-12-31T23:59:59-05:00"), order("o3")]
    body = batch(*orders) if headers is JSON else "\n".join(map(json.dumps, orders)).encode()
    reply = asyncio.run(server.ask("POST", BATCH, token, body, headers))
    assert [each["status"] for each in reply.says] == [202, 202, 202]


def test_other_requests_have_their_turn_while_a_batch_is_parsed(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "_YIELD_AFTER", 0.0)
    token = server.token()
    turns = 0

    async def script() -> None:
        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        body = batch(*(order(f"o{n}") for n in range(200)))
        assert (await server.ask("POST", BATCH, token, body, JSON)).status == 207
        counting.cancel()

    asyncio.run(script())
    assert turns >= 150


@pytest.mark.parametrize(
    "body",
    [
        b'[{"a":"' + b"x" * batches._LIST_BYTES + b'"}]',
        b"[" + b"0," * (batches._VALUES + 1) + b"0]",
        b" [{" + b",".join(b'"%x":0' % n for n in range(batches._VALUES + 2)) + b"}]",
    ],
)
def test_a_list_that_takes_long_to_parse_is_not_parsed(
    server: Inside, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """It is parsed in one go, and the loop has no other turn."""

    def parse(_: bytes) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(batches, "json_of", parse)
    reply = asyncio.run(server.ask("POST", BATCH, server.token(), body, JSON))
    assert (reply.status, reply.says["code"]) == (413, "too_many_values")
    assert "send lines" in reply.says["detail"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {}, 202),
        (b"", {"content-length": "0"}, 202),
        (b"", JSON, 202),
        (b'{"deliver_by":"2026-01-31T12:30:00Z"}', JSON, 202),
        (b'{"deliver_by":"nonsense"}', JSON, 422),
        (b'{"deliver_by":"nonsense"}', {}, 415),
        (b"{}", {"transfer-encoding": "chunked"}, 415),
        (b"{}", {"content-type": "text/plain"}, 415),
    ],
)
def test_a_cancel_requests_body_is_read_or_refused(
    server: Inside, body: bytes, headers: Mapping[str, str], status: int
) -> None:
    reply = asyncio.run(server.ask("POST", CANCEL, server.token(), body, headers))
    assert reply.status == status
    assert len(server.published) == (status == 202)


def test_a_cancel_request_is_for_the_order_of_its_path(server: Inside) -> None:
    """The audit has that one, whatever the body says."""
    body = b'{"order_id":"o2","merchant_id":"m2"}'
    reply = asyncio.run(server.ask("POST", CANCEL, server.token(), body, JSON))
    assert reply.status == 202
    [posted] = server.published
    record, _ = wire.read(posted.message.body)
    assert (record["merchant_id"], record["order_id"]) == ("m1", "o1")


def test_no_more_requests_are_taken_at_once_than_the_limit() -> None:
    in_flight = InFlight(1)
    with in_flight.taking(), pytest.raises(Problem) as refused, in_flight.taking():
        pass
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    with in_flight.taking():
        pass
