"""Replies that clients do not read: in parts, and bounded, for each token and all together."""

import asyncio
import json
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.server import unread as subject
from pos_gateway.server.problems import Problem
from pos_gateway.server.unread import PART, Unread, reply
from tests.server.inside import JSON, inside

START = {"type": "http.response.start", "status": 200, "headers": []}


class Client:
    """Takes the first parts, and then no more until it may."""

    def __init__(self, takes: int = 10**9) -> None:
        self.messages: list[Any] = []
        self.goes_on = asyncio.Event()
        self._takes = takes

    async def send(self, message: Any) -> None:
        if len(self.messages) >= self._takes:
            await self.goes_on.wait()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [each["body"] for each in self.messages if "body" in each]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "UNREAD", 20 * PART)


def mine() -> str:
    """The token of all requests but where a test says otherwise."""
    return "mine"


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 1])
def test_a_reply_is_sent_in_parts_and_is_whole(size: int) -> None:
    async def play() -> None:
        client, body = Client(), bytes(range(256)) * (size // 256 + 1)
        await reply(200, body[:size], [], Unread().sending(client.send, mine))
        assert b"".join(client.bodies) == body[:size]
        assert all(len(each) <= PART for each in client.bodies)
        ends = [not each.get("more_body", False) for each in client.messages[1:]]
        assert ends == [False] * (len(ends) - 1) + [True]

    asyncio.run(play())


def test_replies_that_are_not_read_are_bounded_together() -> None:
    """One that is refused was not begun. A short one is sent in any case."""

    async def play() -> None:
        unread = Unread()
        clients = [Client(takes=2) for _ in range(3)]
        sending = [
            asyncio.create_task(reply(200, b"x" * 3 * PART, [], unread.sending(each.send, mine)))
            for each in clients
        ]
        await asyncio.sleep(0)
        assert unread.room(5 * PART, mine()) == PART
        refused, short = Client(), Client()
        await reply(200, b"x" * 3 * PART, [], unread.sending(refused.send, mine))
        assert refused.status == 503
        assert json.loads(b"".join(refused.bodies))["code"] == "replies_unread"
        assert (b"retry-after", b"1") in refused.messages[0]["headers"]
        await reply(200, b"x" * PART, [], unread.sending(short.send, mine))
        assert short.status == 200
        for each in clients:
            each.goes_on.set()
        await asyncio.gather(*sending)
        assert [each.status for each in clients] == [200] * 3
        assert unread.room(10 * PART, mine()) == 10 * PART

    asyncio.run(play())


def test_one_tokens_clients_leave_room_for_anothers() -> None:
    """However many they are, and however many tokens read nothing."""
    unread, size = Unread(), 2 * PART

    def taken(token: str, entered: ExitStack) -> int:
        """How many replies the token's clients get, and do not read."""
        count = 0
        with suppress(Problem):
            while True:
                entered.enter_context(unread.holding(size, token))
                count += 1
        return count

    with ExitStack() as entered:
        assert [taken(each, entered) for each in "ab"] == [5, 2]
        assert unread.room(20 * PART, "c") == 3 * PART
        with unread.holding(size, "c"):
            pass
        assert [taken(each, entered) for each in "abc"] == [0, 0, 1]
        with pytest.raises(Problem) as problem, unread.holding(size, "a"):
            pass
        assert f"{10 * PART} of them with this token" in problem.value.detail
    for each in "abc":
        assert unread.room(20 * PART, each) == 10 * PART


def test_a_requests_token_is_known_once_there_is_a_reply(tmp_path: Path) -> None:
    """Of each route that needs one."""
    held: list[str | None] = []

    class Noting(Unread):
        def holding(self, size: int, token: str | None) -> AbstractContextManager[None]:
            held.append(token)
            return super().holding(size, token)

    with inside(f"sqlite:///{tmp_path}/gateway.db") as here:
        here.site.app._unread = Noting()
        token = here.token()
        found = here.site.tokens.find(token)
        assert found is not None

        async def play() -> None:
            for path in ("/v1/events", "/v1/merchants/m/orders/o", "/openapi.json"):
                await here.ask("GET", path, token)
            for path in ("/v1/orders", "/v1/orders/batch", "/v1/merchants/m/orders/o/cancel"):
                await here.ask("POST", path, token, b"{", JSON)
            assert set(held) == {found.digest}
            held.clear()
            await here.ask("GET", "/v1/events")
            await here.ask("GET", "/healthz")
            assert set(held) == {None}

        asyncio.run(play())


def test_a_reply_whose_client_goes_away_makes_room() -> None:
    async def play() -> None:
        unread, client = Unread(), Client(takes=2)
        sending = unread.sending(client.send, mine)
        task = asyncio.create_task(reply(200, b"x" * 9 * PART, [], sending))
        await asyncio.sleep(0)
        with pytest.raises(Problem), unread.holding(2 * PART, mine()):
            pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert unread.room(10 * PART, mine()) == 10 * PART

    asyncio.run(play())


def test_the_parts_of_a_stream_are_the_streams_to_count() -> None:
    async def play() -> None:
        unread, client = Unread(), Client()
        sending = unread.sending(client.send, mine)
        with unread.holding(9 * PART, mine()):
            await sending(START)
            await sending(
                {"type": "http.response.body", "body": b"x" * 3 * PART, "more_body": True}
            )
            await sending({"type": "http.response.body", "body": b"y"})
        assert [len(each) for each in client.bodies] == [PART, PART, PART, 1]
        assert [each.get("more_body", False) for each in client.messages[1:]] == [True] * 3 + [
            False
        ]

    asyncio.run(play())
