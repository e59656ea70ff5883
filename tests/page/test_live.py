"""Live parts: shared by all viewers, over streams that end with their session."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import requests
from sqlalchemy import create_engine, event, insert
from sqlalchemy.exc import OperationalError

from pos_gateway.database.schema import audit
from pos_gateway.server.page import live
from pos_gateway.server.page.live import AT_ONCE
from pos_gateway.server.page.shares import OWN as OWN_PAGES
from pos_gateway.server.page.shares import WAITING
from pos_gateway.server.problems import Problem
from pos_gateway.server.site import PAGES
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.page_story import seed
from tests.page.lab import Browser, Desk, desk, over_http
from tests.server.lab import SOON, Server

LIVE = "/page/live?part=trial"


class Stream:
    """A stream as a browser has it."""

    def __init__(self, reply: requests.Response) -> None:
        self._reply = reply
        self._lines = reply.iter_lines(chunk_size=1)

    def next(self, *kinds: str) -> tuple[str, Any]:
        """The next event of these kinds; of any if none is named."""
        kind = ""
        for line in self._lines:
            name, _, value = line.decode().partition(": ")
            if name == "event":
                kind = value
            elif line.startswith(b"data:") and (not kinds or kind in kinds):
                return kind, json.loads(value) if value else None
        return "end", None


@contextmanager
def stream(server: Server, browser: Browser, path: str = LIVE) -> Iterator[Stream]:
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    with requests.Session() as session:
        session.trust_env = False
        with session.get(
            server.url + path, headers={"cookie": cookie}, stream=True, timeout=SOON
        ) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"] == "text/event-stream"
            yield Stream(reply)


@pytest.fixture
def store(module_database: str) -> Iterator[TokenStore]:
    engine = create_engine(module_database)
    yield TokenStore(engine)
    engine.dispose()


def note(store: TokenStore) -> None:
    """Change what the trial's part shows."""
    row = {
        "at": 0.0,
        "operator": "x",
        "what": "x",
        "merchant_id": "",
        "order_id": "",
        "details": "",
    }
    with store._engine.begin() as connection:
        connection.execute(insert(audit).values(row))


def logged_in(server: Server, store: TokenStore, role: Role = Role.OPERATOR) -> tuple[Browser, str]:
    name = f"k{time.monotonic_ns()}"
    browser = over_http(server.url)
    assert browser.log_in(store.create(name, role, operator="test")).status == 303
    return browser, name


def test_a_part_is_sent_at_once_and_when_it_changes(server: Server, store: TokenStore) -> None:
    browser, _ = logged_in(server, store)
    with stream(server, browser) as events:
        assert events.next() == ("alive", None)
        _, first = events.next("part")
        assert first["part"] == "trial"
        note(store)
        _, second = events.next("part")
        assert second["html"] != first["html"]


def test_a_stream_says_that_it_lives(server: Server, store: TokenStore) -> None:
    browser, _ = logged_in(server, store)
    with stream(server, browser) as events:
        for _ in range(3):
            assert events.next("alive") == ("alive", None)


def test_a_stream_ends_with_its_session(server: Server, store: TokenStore) -> None:
    browser, _ = logged_in(server, store)
    with stream(server, browser) as events:
        events.next("part")
        browser.submit(browser.get("/trial").form("/logout"))
        assert events.next("ended") == ("ended", None)
        assert events.next() == ("end", None)


def test_a_stream_and_the_pages_end_with_the_token(server: Server, store: TokenStore) -> None:
    browser, name = logged_in(server, store)
    with stream(server, browser) as events:
        events.next("part")
        store.revoke(name, operator="test")
        assert events.next("ended") == ("ended", None)
    assert browser.get("/trial").status == 303


def test_a_stream_needs_a_session(server: Server) -> None:
    reply = over_http(server.url).get(LIVE)
    assert (reply.status, reply.headers["content-type"]) == (401, "application/problem+json")


def test_a_part_that_no_page_has_is_a_404(page: Desk) -> None:
    assert page.operator().get("/page/live?part=nothing").status == 404
    assert page.operator(name="kay").get(f"{LIVE}&of={'x' * 200}").status == 422


def test_a_part_with_a_value_is_of_that_value(server: Server, store: TokenStore) -> None:
    browser, _ = logged_in(server, store, Role.VIEWER)
    with stream(server, browser, f"{LIVE}&of=%3Cb%3E") as events:
        _, part = events.next("part")
    assert 'for viewer <bdi class="data">&lt;b&gt;</bdi>' in part["html"]


def test_a_server_that_stops_ends_its_streams(server: Server, store: TokenStore) -> None:
    """The last test of this server."""
    browser, _ = logged_in(server, store)
    with stream(server, browser) as events:
        events.next("part")
        began = time.monotonic()
        server.process.terminate()
        assert events.next("stops") == ("stops", None)
    assert server.process.wait(SOON) == 0
    assert time.monotonic() - began < SOON


class Viewer:
    """A viewer in this process, who takes what comes, or nothing."""

    def __init__(
        self, page: Desk, browser: Browser, *, takes: bool = True, path: str = LIVE
    ) -> None:
        self.got: list[bytes] = []
        self.gone, self.takes = asyncio.Event(), asyncio.Event()
        if takes:
            self.takes.set()
        self.task = asyncio.ensure_future(self._run(page, browser, path))

    async def _run(self, page: Desk, browser: Browser, path: str) -> None:
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "client": ("192.0.2.7", 1), "scheme": "http",
            "headers": [(b"cookie", cookie.encode())],
        }  # fmt: skip

        async def receive() -> Any:
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await self.takes.wait()
            self.got.append(message.get("body", b""))

        await page.site.app(scope, receive, send)

    @property
    def parts(self) -> int:
        return b"".join(self.got).count(b"event: part")


async def until(condition: Any) -> None:
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.01)


def every(page: Desk, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the trial's part rendered that often."""
    parts = page.site._page_live._parts
    monkeypatch.setitem(parts, "trial", replace(parts["trial"], every=seconds))


def test_a_hundred_viewers_share_each_render(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    every(page, 60.0, monkeypatch)
    operator, viewer = page.operator(), page.operator(Role.VIEWER, "vic")

    async def script() -> None:
        viewers = [Viewer(page, operator) for _ in range(100)]
        await until(lambda: all(each.parts for each in viewers))
        assert page.trial.rendered == 1
        others = [Viewer(page, viewer) for _ in range(20)]
        await until(lambda: all(each.parts for each in others))
        assert page.trial.rendered == 2
        for each in viewers + others:
            each.gone.set()
        await asyncio.gather(*(each.task for each in viewers + others))
        assert not page.site._page_live._states

    page.runner.run(script())


def test_without_a_viewer_nothing_is_rendered(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    every(page, 0.1, monkeypatch)
    browser = page.operator()

    async def script() -> None:
        viewer = Viewer(page, browser)
        await until(lambda: page.trial.rendered >= 2)
        viewer.gone.set()
        await viewer.task
        await until(lambda: not page.site._page_live._running)
        page.trial.rendered = 0
        await asyncio.sleep(0.5)
        assert page.trial.rendered == 0

    page.runner.run(script())


class Cost(NamedTuple):
    """What a server did for its viewers, until the first view's figures were rendered some times."""

    #: Of each render of the figures: statements, and all renders.
    statements: float
    renders: float
    connections: int
    #: Seconds of CPU of this process, the viewers' included.
    cpu: float


def cost(page: Desk, monkeypatch: pytest.MonkeyPatch, viewers: int, times: int = 8) -> Cost:
    """That many viewers of the first view, its real parts, at a tick of a tenth of a second."""
    parts, found, renders = page.site._page_live._parts, page.site._page_live, Counter[live.Topic]()
    for name in ("nav", "now", "hour"):
        monkeypatch.setitem(parts, name, replace(parts[name], every=0.1))
    render, statements, connections = found._render, Counter[str](), set[int]()

    def rendered(topic: live.Topic) -> str:
        renders[topic] += 1
        return render(topic)

    def executed(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements[statement] += 1
        connections.add(id(connection.connection.dbapi_connection))

    monkeypatch.setattr(found, "_render", rendered)
    event.listen(page.site.database, "before_cursor_execute", executed)
    browser = page.operator(Role.VIEWER, f"vic-{viewers}")

    async def script() -> Cost:
        path = "/page/live?part=nav&part=now&part=hour&here=/"
        looking = [Viewer(page, browser, path=path) for _ in range(viewers)]
        await until(lambda: all(each.parts >= 3 for each in looking))
        renders.clear(), statements.clear(), connections.clear()
        began = time.process_time()
        await until(lambda: max(renders.values(), default=0) >= times)
        cpu, ticks = time.process_time() - began, max(renders.values())
        counted = Cost(
            statements.total() / ticks, renders.total() / ticks, len(connections), cpu / ticks
        )
        for each in looking:
            each.gone.set()
        await asyncio.gather(*(each.task for each in looking))
        return counted

    try:
        return page.runner.run(script())
    finally:
        event.remove(page.site.database, "before_cursor_execute", executed)
        monkeypatch.setattr(found, "_render", render)


def test_a_hundred_viewers_of_the_first_view_cost_the_database_what_one_does(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements, renders and connections; and no more than ten viewers' CPU for what they are sent."""
    seed(page.site.database, merchants=10, orders=200)
    one, hundred = cost(page, monkeypatch, 1), cost(page, monkeypatch, 100)
    assert hundred.renders <= one.renders + 1  # three parts a tick, not three hundred
    assert hundred.statements <= one.statements + 2
    assert one.connections <= PAGES and hundred.connections <= PAGES
    assert hundred.cpu < 10 * one.cpu


def test_pages_at_the_same_time_share_the_parts_render(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    every(page, 60.0, monkeypatch)
    browser = page.operator()
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())

    async def script() -> None:
        headers = {"cookie": cookie, "accept": "text/html"}
        asks = [page.server.ask("GET", "/trial/live", headers=headers) for _ in range(20)]
        assert {each.status for each in await asyncio.gather(*asks)} == {200}

    page.runner.run(script())
    assert page.trial.rendered == 1
    assert "for operator" in browser.get("/trial/live").text
    assert page.trial.rendered == 1


def test_what_is_kept_of_parts_is_bounded(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TOPICS", 5)
    browser = page.operator(Role.VIEWER)
    for number in range(9):
        assert browser.get(f"/dead-letters?reason=r{number}").status == 200
    kept = page.site._page_live._last
    reasons = [dict(each.values)["reason"] for each in kept if each.part != "nav"]
    assert len(kept) == 5 and len(reasons) >= 4  # with the navigation's counts, or after them
    assert reasons == [f"r{n}" for n in range(9)][-len(reasons) :]


def test_a_page_names_its_stream(page: Desk) -> None:
    text = page.operator().get("/trial/live?of=a%26b").text
    assert 'data-live="/page/live?part=nav&amp;part=trial&amp;part=also&amp;part=still&amp;' in text
    assert '&amp;here=%2Ftrial&amp;of=a%26b"' in text
    assert '<noscript><meta http-equiv="refresh"' in text
    assert "data-live" not in page.operator(name="kay").get("/trial").text


def test_a_viewer_who_takes_nothing_gets_the_latest_state_later(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = page.operator()
    store = page.server.store

    async def script() -> None:
        slow, quick = Viewer(page, operator, takes=False), Viewer(page, operator)
        for number in range(1, 4):
            await until(lambda number=number: quick.parts >= number)
            note(store)
        await until(lambda: quick.parts >= 4)
        slow.takes.set()
        last = [each for each in quick.got if b"event: part" in each][-1]
        await until(lambda: last in slow.got)
        assert slow.parts < quick.parts
        for each in (slow, quick):
            each.gone.set()
            await each.task

    page.runner.run(script())


def test_replies_that_are_not_read_are_bounded(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RETRY_AFTER", 0.01)
    browser = page.operator()

    async def script() -> None:
        from pos_gateway.server import unread

        held = page.site.app._unread  # type: ignore[attr-defined]
        monkeypatch.setattr(unread, "PART", 10)
        held._bytes = unread.UNREAD
        viewer = Viewer(page, browser)
        await until(lambda: page.trial.rendered)
        await asyncio.sleep(0.1)
        assert viewer.parts == 0
        held._bytes = 0
        await until(lambda: viewer.parts)
        viewer.gone.set()
        await viewer.task
        assert held._bytes == 0

    page.runner.run(script())


def test_parts_that_are_looked_at_are_bounded(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "TOPICS", 2)
    browser = page.operator()

    async def script() -> None:
        viewers = [Viewer(page, browser, path=f"{LIVE}&of={n}") for n in (1, 2)]
        await until(lambda: all(each.parts for each in viewers))
        found = page.site._page_live
        topic = found.topic("trial", Role.OPERATOR, {"of": "3"})
        with (
            pytest.raises(Problem, match="too many pages"),
            found.listening([topic], asyncio.Event(), "other"),
        ):
            pass
        for each in viewers:
            each.gone.set()
            await each.task
        assert found._held == {}

    page.runner.run(script())


class Reads:
    """Reads that wait until they may end."""

    def __init__(self) -> None:
        self.running = 0
        self.may_end = asyncio.Event()

    async def __call__(self, read: Any) -> Any:
        self.running += 1
        await self.may_end.wait()
        self.running -= 1
        return read()


def test_streams_leave_threads_for_pages(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    browser, reads = page.operator(), Reads()
    monkeypatch.setattr(page.site._page_live, "_reading", reads)

    async def script() -> None:
        viewers = [Viewer(page, browser, path=f"{LIVE}&of={n}") for n in range(6)]
        await until(lambda: len(page.site._page_live._states) == 6 and reads.running)
        assert reads.running == AT_ONCE < PAGES
        reads.may_end.set()
        await until(lambda: all(each.parts for each in viewers))
        for each in viewers:
            each.gone.set()
            await each.task

    page.runner.run(script())


def test_pages_of_one_login_leave_threads_for_others(
    page: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = [
        "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        for browser in (page.operator(Role.VIEWER, "vic"), page.operator())
    ]
    reads = Reads()
    monkeypatch.setattr(page.site.page, "_reading", reads)

    async def get(cookie: str) -> int:
        headers = {"cookie": cookie, "accept": "text/html"}
        return (await page.server.ask("GET", "/trial/live", headers=headers)).status

    async def script() -> None:
        many = [asyncio.create_task(get(cookies[0])) for _ in range(WAITING + 3)]
        await until(lambda: sum(each.done() for each in many) == 3)  # are refused
        assert reads.running == OWN_PAGES < PAGES
        other = asyncio.create_task(get(cookies[1]))
        await until(lambda: reads.running == OWN_PAGES + 1)
        reads.may_end.set()
        assert await other == 200
        assert Counter(await asyncio.gather(*many)) == {200: WAITING, 429: 3}
        assert not page.site.page._shares._of

    page.runner.run(script())


def test_a_page_is_paid_for(any_database: str, with_trial: None) -> None:
    with desk(any_database, http_rate=0.001) as page:
        browser = page.operator(Role.VIEWER)
        assert [browser.get("/orders").status for _ in range(3)] == [200, 429, 429]


def test_one_login_takes_no_others_parts(page: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "OWN", 2)

    async def script() -> None:
        found = page.site._page_live
        topics = [found.topic("trial", Role.VIEWER, {"of": str(n)}) for n in range(3)]
        with (
            found.listening(topics[:2], asyncio.Event(), "one"),
            found.listening(topics[:2], asyncio.Event(), "one"),  # which viewers share
            found.listening(topics[1:], asyncio.Event(), "other"),
            pytest.raises(Problem, match="this login has too many"),
            found.listening(topics[2:], asyncio.Event(), "one"),
        ):
            pass
        with found.listening(topics[2:], asyncio.Event(), "one"):
            assert found._held == {"one": {topics[2]: 1}}
        assert found._held == {}

    page.runner.run(script())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OperationalError("select", {}, Exception("away")), "The database does not answer"),
        (ValueError("a secret of the inside"), "This part of the page failed"),
    ],
)
def test_a_part_that_fails_says_so_and_comes_back(page: Desk, error: Exception, says: str) -> None:
    browser = page.operator()

    async def script() -> None:
        viewer = Viewer(page, browser)
        await until(lambda: viewer.parts)
        page.trial.fails = error
        await until(lambda: says.encode() in b"".join(viewer.got))
        assert b"a secret of the inside" not in b"".join(viewer.got)
        page.trial.fails = None
        viewer.got.clear()
        await until(lambda: b" for operator" in b"".join(viewer.got))
        viewer.gone.set()
        await viewer.task

    page.runner.run(script())
