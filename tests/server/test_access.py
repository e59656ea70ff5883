"""Tokens: what a request costs, and who is refused."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from pos_gateway.broker.message import Message
from pos_gateway.server import api
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Role, Token, new_token
from tests.server.inside import JSON, LINES, Inside, inside
from tests.server.lab import order

BATCH, CANCEL = "/v1/orders/batch", "/v1/merchants/m1/orders/o1/cancel"


@pytest.fixture
def server(database_url: str) -> Iterator[Inside]:
    with inside(database_url) as server:
        yield server


def lines(count: int) -> bytes:
    return "\n".join(json.dumps(order(f"o{n}")) for n in range(count)).encode()


async def statuses(server: Inside, token: str, *bodies: bytes) -> list[int]:
    return [(await server.ask("POST", BATCH, token, body, LINES)).status for body in bodies]


def test_a_token_may_not_send_more_than_its_rate(server: Inside) -> None:
    token = server.token(rate=5)

    async def script() -> None:
        body = json.dumps(order()).encode()
        replies = [await server.ask("POST", "/v1/orders", token, body, JSON) for _ in range(6)]
        assert [each.status for each in replies] == [202] * 5 + [429]
        assert replies[-1].says["code"] == "rate_limited"
        assert replies[-1].headers["retry-after"] == "1"

    asyncio.run(script())


def test_a_server_has_a_rate_for_tokens_without_one(database_url: str) -> None:
    with inside(database_url, http_rate=2.0) as server:
        token = server.token()
        assert asyncio.run(statuses(server, token, *[lines(1)] * 3)) == [207, 207, 429]


def test_each_order_of_a_batch_counts(server: Inside) -> None:
    token = server.token(rate=100)
    assert asyncio.run(statuses(server, token, lines(60), lines(50), lines(30))) == [207, 429, 207]
    assert len(server.published) == 90


def test_a_batch_above_the_rate_passes_once(server: Inside) -> None:
    token = server.token(rate=10)
    assert asyncio.run(statuses(server, token, lines(100), lines(1))) == [207, 429]


def test_a_refused_batch_costs_a_request(server: Inside) -> None:
    """And is not read when that is too much."""

    async def script() -> None:
        for body, status in ((b"[{]", 400), (b"[" + b"{}," * 1000 + b"{}]", 413)):
            token = server.token(rate=1, name=f"of-{status}")
            first = await server.ask("POST", BATCH, token, body, JSON)
            again = await server.ask("POST", BATCH, token, body, JSON)
            assert (first.status, again.status, again.reads) == (status, 429, 0)

    asyncio.run(script())


def test_while_the_tokens_are_unknown_none_is_refused_for_good(server: Inside) -> None:
    token = server.store.create("shop", Role.BACKEND, operator="test")
    for given in (token, new_token(), "nonsense"):
        reply = asyncio.run(server.ask("GET", "/v1/events", given))
        assert (reply.status, reply.says["code"]) == (503, "tokens_unknown")
        assert "www-authenticate" not in reply.headers


@pytest.mark.parametrize(("seconds", "says"), [(0.01, b"1"), (1.0, b"1"), (1.2, b"2"), (9.9, b"10")])  # fmt: skip
def test_after_retry_after_a_request_may_succeed(seconds: float, says: bytes) -> None:
    headers = dict(Problem(429, "rate_limited", "wait", retry_after=seconds).headers())
    assert headers[b"retry-after"] == says


@pytest.mark.parametrize(("role", "is_loops"), [(Role.VIEWER, False), (Role.BACKEND, True)])
def test_a_page_is_masked_off_the_event_loop(
    server: Inside, monkeypatch: pytest.MonkeyPatch, role: Role, is_loops: bool
) -> None:
    """A large page takes a tenth of a second."""
    body = json.dumps({"reason": {"message": "Kim is away"}, "order": order()}).encode()
    monkeypatch.setattr(
        server.site._archive, "after", lambda *_: [(1, Message("e", "order.failed", body, "i", {}))]
    )
    threads: list[bool] = []
    shown_to = api.shown_to

    def noting(token: Token) -> Callable[[bytes], bytes]:
        shown = shown_to(token)

        def show(event: bytes) -> bytes:
            threads.append(threading.current_thread() is threading.main_thread())
            return shown(event)

        return show

    monkeypatch.setattr(api, "shown_to", noting)
    reply = asyncio.run(server.ask("GET", "/v1/events?after=0", server.token(role)))
    assert (reply.status, threads) == (200, [is_loops])
    assert ("Kim" in str(reply.says)) == is_loops
