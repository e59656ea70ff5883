"""Tokens: what a request costs, who is refused, and what the audit has of those who are not."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.server import access
from pos_gateway.server.posted import PostResult
from pos_gateway.server.problems import Problem
from pos_gateway.tokens import audit
from pos_gateway.tokens.audit import TokenAudit
from pos_gateway.tokens.token import Role, new_token
from tests.server.inside import JSON, LINES, Inside, inside
from tests.server.lab import order

BATCH, CANCEL = "/v1/orders/batch", "/v1/merchants/m1/orders/o1/cancel"


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token may send more because a test takes long."""
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: 0.0))


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


@pytest.mark.parametrize("name", ["authorization", "content-type", "content-length"])
def test_a_request_with_a_header_twice_is_refused(server: Inside, name: str) -> None:
    """A proxy may have checked the one that this server would not read."""
    token, body = server.token(), json.dumps(order()).encode()
    twice = {"authorization": f"Bearer {token}", "content-length": str(len(body)), **JSON}[name]

    async def script() -> None:
        reply = await server.ask("POST", "/v1/orders", token, body, JSON, also=[(name, twice)])
        assert (reply.status, reply.says["code"]) == (400, "repeated_header")

    asyncio.run(script())
    assert server.published == []


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


def test_refused_tokens_are_logged_once_a_second_with_their_clients(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_LOG_EVERY", 0.05)
    viewer = server.token(Role.VIEWER, name="desk")
    mistakes: list[object] = []

    async def script() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mistakes.append(context))
        with capture_logs() as logs:
            for _ in range(20):
                await server.ask("GET", "/v1/events", new_token(), client="198.51.100.9")
            await server.ask("GET", "/v1/events")
            await server.ask("POST", "/v1/orders", viewer, b"{}", JSON, client="203.0.113.4")
            while not logs:
                await asyncio.sleep(0.01)
            await server.ask("GET", "/v1/events", "nonsense", client="x" * 500)
            while len(logs) < 2:
                await asyncio.sleep(0.01)
        assert [{**each, "log_level": ""} for each in logs] == [
            {"event": "token.refused", "client": "198.51.100.9", "count": 22, "clients": 3,
             "status": 403, "token": "desk", "log_level": ""},
            {"event": "token.refused", "client": "x" * 45, "count": 1, "clients": 1,
             "status": 401, "token": None, "log_level": ""},
        ]  # fmt: skip

    asyncio.run(script())
    assert not mistakes


def test_refusals_of_many_clients_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_MAX_CLIENTS", 3)
    refusals = access._Refusals()

    async def script() -> None:
        for number in range(9):
            refusals.add(f"192.0.2.{number}", 401, None)

    asyncio.run(script())
    assert (len(refusals._clients), refusals._count) == (3, 9)


@pytest.mark.parametrize("role", [Role.BACKEND, Role.OPERATOR])
def test_a_cancel_request_is_in_the_audit_and_the_log(server: Inside, role: Role) -> None:
    token = server.token(role, name="olga")
    with capture_logs() as logs:
        reply = asyncio.run(server.ask("POST", CANCEL, token))
    assert reply.status == 202
    assert [(each["event"], each["token"], each["what"], each["order_id"]) for each in logs] == [
        ("token.acted", "olga", "orders.cancel", "o1")
    ]
    assert server.audited() == []
    server.site.audit.write()
    server.site.audit.write()
    assert server.audited() == [("olga", "orders.cancel", "m1", "o1", "over HTTP, from 192.0.2.7")]


def test_a_cancel_request_that_may_be_stored_is_in_the_audit(server: Inside) -> None:
    token = server.token()
    server.result = lambda _: PostResult.UNKNOWN
    assert asyncio.run(server.ask("POST", CANCEL, token)).status == 503
    server.site.audit.write()
    assert [each[1] for each in server.audited()] == ["orders.cancel"]


def test_without_the_database_a_cancel_request_is_taken_and_written_later(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = server.token()

    def away() -> None:
        raise OperationalError("begin", {}, Exception("the database is away"))

    async def script() -> None:
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(server.site.database, "begin", away)
            for number in range(3):
                path = f"/v1/merchants/m1/orders/o{number}/cancel"
                assert (await server.ask("POST", path, token)).status == 202
                server.site.audit.write()
        events = [each["event"] for each in logs]
        assert events == ["token.acted", "audit.unavailable", "token.acted", "token.acted"]

    asyncio.run(script())
    server.site.audit.write()
    assert [each[3] for each in server.audited()] == ["o0", "o1", "o2"]


def test_a_line_that_the_database_refuses_keeps_no_other_waiting(server: Inside) -> None:
    """A reason may have a letter that the database's encoding lacks."""
    kept = TokenAudit(server.site.database)
    server.token()
    [token] = server.store.list()
    for number, reason in enumerate(("well", "\ud800", "well")):
        kept.note(token, "orders.cancel", "192.0.2.7", order_id=f"o{number}", reason=reason)
    with capture_logs() as logs:
        kept.write()
    assert [each[3] for each in server.audited()] == ["o0", "o2"]
    assert [each["event"] for each in logs] == ["audit.refused"]


def test_lines_that_wait_for_the_database_are_bounded(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_LINES", 3)
    kept = TokenAudit(server.site.database)
    server.token()
    [token] = server.store.list()
    for number in range(9):
        kept.note(token, "orders.cancel", "192.0.2.7", order_id=f"o{number}")
    kept.write()
    assert len(server.audited()) == 3


@pytest.mark.parametrize(("role", "lines"), [(Role.OPERATOR, 3), (Role.BACKEND, 0), (Role.VIEWER, 0)])  # fmt: skip
def test_personal_data_that_an_operator_sees_is_in_the_audit(
    server: Inside, monkeypatch: pytest.MonkeyPatch, role: Role, lines: int
) -> None:
    """A line a request or connection; a backend sent the data, and a viewer sees none."""
    backend = server.token(name="backend")
    token = server.token(role, name="olga")

    async def script() -> None:
        assert (await server.ask("POST", CANCEL, backend)).status == 202
        monkeypatch.setattr("pos_gateway.server.orders.submitted_at", lambda *_: 1.0)
        shown = await server.ask("GET", "/v1/merchants/m1/orders/o1", token)
        assert shown.status == 200
        assert (await server.ask("GET", "/v1/events?after=0", token)).status == 200
        assert (await server.ask("GET", "/v1/events/stream?after=0", token)).status == 200
        assert (await server.ask("GET", "/v1/events?after=x", token)).status == 422

    asyncio.run(script())
    server.site.audit.write()
    assert [each[:4] for each in server.audited()][1:] == [
        ("olga", "orders.reveal", "m1", "o1"),
        ("olga", "events.reveal", "", ""),
        ("olga", "events.reveal", "", ""),
    ][:lines]
