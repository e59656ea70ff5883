"""A stream's and a long poll's course, on events that the test publishes, with a client that takes its time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

import pytest

from pos_gateway.server import following, streaming
from pos_gateway.server.access import Access
from pos_gateway.server.api import application
from pos_gateway.server.following import PAGE_BYTES, Event, Feeds, Following, cut
from pos_gateway.server.problems import Problem
from pos_gateway.server.streaming import Streaming
from pos_gateway.server.unread import PART, UNREAD, Unread
from pos_gateway.tokens.rate import RateLimits
from pos_gateway.tokens.token import Role, Token, digest
from pos_gateway.tokens.tokens import Tokens
from tests.server.lab import SOON

TEXT = "pgw_text"
#: Most bytes that one token's clients leave unread.
MOST = UNREAD // 2
BACKEND = Token("shop", Role.BACKEND, None, digest(TEXT), 0.0, None, None)


class Lab:
    """A stream, and what its client got."""

    def __init__(self) -> None:
        self.known = {BACKEND.digest: BACKEND}
        self.events: list[Event] = []
        #: How many of the coming reads fail.
        self.failing = 0
        self.tokens = Tokens(self)  # type: ignore[arg-type]
        self.tokens.refresh()
        no_operator: Any = None  # and so no audit
        self.access = Access(self.tokens, RateLimits(inf), no_operator)
        self.feeds = Feeds(
            Following(self._read, self._last), Following(self._read_masked, self._last)
        )
        #: What a viewer sees of each event.
        self.masked = b"masked"
        self.unread = Unread()
        self.got = b""
        self.has_ended = False
        #: Cleared: the client takes nothing.
        self.takes = asyncio.Event()
        self.takes.set()
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def all_valid(self) -> dict[str, Token]:
        return dict(self.known)

    def change(self, token: Token | None) -> None:
        """Revoke the token, or give it another role; and have the server know."""
        self.known = {} if token is None else {token.digest: token}
        self.tokens.refresh()

    def publish(self, first: int, last: int, body: bytes = b"{}") -> None:
        self.events += [Event(n, "order.accepted", body) for n in range(first, last + 1)]

    async def open(self, query: bytes = b"after=0", *headers: tuple[bytes, bytes]) -> None:
        authorization = (b"authorization", b"Bearer " + TEXT.encode())
        scope = {"headers": [authorization, *headers], "query_string": query}
        stream = Streaming(self.access, self.feeds, self.unread)
        sending = self.unread.sending(self._send, lambda: BACKEND.digest)
        self._task = asyncio.create_task(stream(scope, self._receive, sending))
        await self.until(b"retry: ")

    async def until(self, text: bytes) -> None:
        """Wait until the client has got this."""
        async with asyncio.timeout(SOON):
            while text not in self.got:
                assert not self.has_ended, self.got
                self._news.clear()
                await self._news.wait()

    async def poll(self, query: bytes) -> tuple[int, dict[str, Any]]:
        """The status and the content of a long poll's reply."""
        missing: Any = None
        app = application(
            self.access, missing, missing, self.feeds, missing, self.unread, problem=missing
        )
        path = "/v1/events"
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": [(b"authorization", b"Bearer " + TEXT.encode())],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async with asyncio.timeout(SOON):
            await app(scope, self._receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def end(self) -> bytes:
        """What the client got, once the stream has ended."""
        assert self._task is not None
        await asyncio.wait_for(self._task, SOON)
        assert self.has_ended
        return self.got

    async def close(self) -> None:
        """The client goes, the server stops."""
        self._gone.set()
        self.takes.set()
        self.feeds.stop()
        if self._task is not None:
            await asyncio.wait_for(self._task, SOON)

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.takes.wait()
        if message["type"] == "http.response.body":
            self.got += message["body"]
            self.has_ended = not message.get("more_body", False)
        self._news.set()

    async def _read(self, after: int, most: int, size: int) -> Sequence[Event]:
        if self.failing:
            self.failing -= 1
            raise Problem(503, "database_unavailable", "away")
        return cut([each for each in self.events if each.position > after][:most], size)

    async def _read_masked(self, after: int, most: int, size: int) -> Sequence[Event]:
        return [each._replace(body=self.masked) for each in await self._read(after, most, size)]

    async def _last(self) -> int:
        return self.events[-1].position if self.events else 0


def lab_test(check: Callable[[Lab], Awaitable[None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Runs it, with short waits."""

    def test(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(following, "POLL", 0.001)
        for module in (following, streaming):
            monkeypatch.setattr(module, "RETRY_AFTER", 0.001)

        async def play() -> None:
            lab = Lab()
            await check(lab)
            await lab.close()

        asyncio.run(play())

    test.__doc__ = check.__doc__
    return test


@lab_test
async def test_the_last_event_id_counts_before_the_parameter(lab: Lab) -> None:
    """A client that reconnects sends both: its URL's, and the last position that it has."""
    lab.publish(1, 9)
    await lab.open(b"after=2", (b"last-event-id", b"7"))
    await lab.until(b"id: 9\n")
    assert lab.got.count(b"\nevent: ") == 2


@pytest.mark.parametrize("given", [b"", b" ", b"\t "])
def test_an_empty_last_event_id_is_none(given: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    @lab_test
    async def check(lab: Lab) -> None:
        lab.publish(1, 9)
        await lab.open(b"after=2", (b"last-event-id", given))
        await lab.until(b"id: 9\n")
        assert lab.got.count(b"\nevent: ") == 7

    check(monkeypatch)


@lab_test
async def test_a_stream_says_first_where_it_begins(lab: Lab) -> None:
    """A client that is cut off before the first event resumes there; an id alone is no event."""
    lab.publish(1, 9)
    await lab.open(b"")
    await lab.until(b"\n\n")
    assert lab.got == b"retry: 1000\nid: 9\n\n"


@lab_test
async def test_a_position_that_no_database_holds_is_refused(lab: Lab) -> None:
    await lab.close()  # a stream that begins ends at once
    number = b"9223372036854775808"
    for query, headers in ((b"after=" + number, []), (b"", [(b"last-event-id", number)])):
        headers.append((b"authorization", b"Bearer " + TEXT.encode()))
        scope = {"headers": headers, "query_string": query}
        with pytest.raises(Problem) as refused:
            await Streaming(lab.access, lab.feeds, lab.unread)(scope, lab._receive, lab._send)
        assert refused.value.status == 422


@lab_test
async def test_a_read_that_fails_does_not_end_a_stream(lab: Lab) -> None:
    lab.publish(1, 1)
    lab.failing = 3
    await lab.open()
    await lab.until(b"id: 1\n")


@lab_test
async def test_a_stream_without_news_has_a_sign_of_life(lab: Lab) -> None:
    await lab.open()
    lab.feeds.plain._beat_at = 0.0
    await lab.until(b": still here\n\n")


@lab_test
async def test_a_stream_sends_nothing_once_its_token_is_revoked(lab: Lab) -> None:
    lab.publish(1, 1)
    await lab.open()
    await lab.until(b"id: 1\n")
    lab.change(None)
    lab.publish(2, 2, b"secret")
    assert (await lab.end()).endswith(b"data: {}\n\n: the token is not valid any more\n\n")


@lab_test
async def test_a_stream_of_a_revoked_token_ends_without_news(lab: Lab) -> None:
    await lab.open()
    lab.change(None)
    lab.feeds.plain._beat_at = 0.0
    assert (await lab.end()).endswith(b": the token is not valid any more\n\n")


@lab_test
async def test_what_was_read_ahead_is_not_sent_once_the_token_is_revoked(lab: Lab) -> None:
    lab.publish(1, 4, b"x" * PART)
    await lab.open()
    await lab.until(b"id: 4\n")
    lab.publish(5, 8, b"y" * PART)
    lab.takes.clear()
    await asyncio.sleep(0.05)  # it has read them, and is at the first
    lab.change(None)
    lab.takes.set()
    assert b"id: 6" not in await lab.end()


@lab_test
async def test_a_stream_ends_when_its_tokens_role_changes(lab: Lab) -> None:
    """The next one shows what the new role may see."""
    lab.publish(1, 1)
    await lab.open()
    await lab.until(b"data: {}\n")
    lab.change(Token("shop", Role.VIEWER, None, BACKEND.digest, 0.0, None, None))
    lab.publish(2, 2)
    assert (await lab.end()).endswith(b": the token is not valid any more\n\n")
    lab.got, lab.has_ended = b"", False
    await lab.open()
    await lab.until(b"id: 2\nevent: order.accepted\ndata: masked\n")
    assert b"{}" not in lab.got


@lab_test
async def test_a_stream_uses_its_token(lab: Lab) -> None:
    """A token that is in use is not taken for one that can be revoked."""
    await lab.open()
    lab.tokens._uses.clear()
    lab.publish(1, 1)
    await lab.until(b"id: 1\n")
    assert BACKEND.digest in lab.tokens._uses


@lab_test
async def test_a_stream_goes_on_while_other_clients_read_nothing(lab: Lab) -> None:
    """A few events at a time; one that is large waits for its turn."""
    lab.publish(1, 30, b"x" * (PART // 4))
    lab.publish(31, 31, b"x" * 2 * PART)
    with lab.unread.holding(MOST, BACKEND.digest):
        await lab.open()
        await lab.until(b"id: 30\n")
        await asyncio.sleep(0.05)
        assert b"id: 31\n" not in lab.got
    await lab.until(b"id: 31\n")


@lab_test
async def test_what_a_stream_has_read_ahead_counts_as_unread(lab: Lab) -> None:
    lab.publish(1, 50, b"x" * 10_000)
    await lab.open(b"after=0")
    await lab.until(b"id: 50\n")
    assert lab.unread.room(MOST, BACKEND.digest) == MOST
    lab.takes.clear()
    lab.publish(51, 100, b"x" * 10_000)
    async with asyncio.timeout(SOON):
        while lab.unread.room(MOST, BACKEND.digest) == MOST:
            await asyncio.sleep(0.001)
    assert MOST - lab.unread.room(MOST, BACKEND.digest) <= streaming._AHEAD


@lab_test
async def test_a_poll_whose_token_is_revoked_meanwhile_is_refused(lab: Lab) -> None:
    for token in (None, Token("shop", Role.VIEWER, None, BACKEND.digest, 0.0, None, None)):
        lab.change(BACKEND)
        last = len(lab.events)
        polling = asyncio.create_task(lab.poll(b"wait=20&after=%d" % last))
        while not lab.feeds.plain._waiters:
            await asyncio.sleep(0)
        lab.change(token)
        lab.publish(last + 1, last + 1, b'"secret"')
        status, content = await polling
        assert (status, content["code"]) == (401, "unauthorized")


@lab_test
async def test_a_poll_has_what_its_role_may_see(lab: Lab) -> None:
    lab.publish(1, 2, b'"plain"')
    assert await lab.poll(b"after=1") == (200, {"events": ["plain"], "next": 2})
    lab.masked = b'"masked"'
    lab.change(Token("shop", Role.VIEWER, None, BACKEND.digest, 0.0, None, None))
    assert await lab.poll(b"after=1") == (200, {"events": ["masked"], "next": 2})


@lab_test
async def test_a_page_is_as_long_as_there_is_room(lab: Lab) -> None:
    body = b'"' + b"x" * (PART // 4) + b'"'
    lab.publish(1, 500, body)
    _, whole = await lab.poll(b"limit=1000")
    assert len(whole["events"]) == PAGE_BYTES // len(body)
    with lab.unread.holding(MOST, BACKEND.digest):
        _, short = await lab.poll(b"limit=1000")
    assert len(short["events"]) == PART // len(body)
