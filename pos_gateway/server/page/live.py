"""Live parts: rendered once for all viewers who may see the same, and only while one looks.

A browser has one stream for all parts of its page (server-sent events). A client that reads slowly
gets the latest state, and none between.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import structlog
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.server.body import Receive, Scope, Send, disconnected
from pos_gateway.server.page.entrance import Entrance
from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.render import Renderer
from pos_gateway.server.page.security import HEADERS
from pos_gateway.server.page.view import Part, Viewer
from pos_gateway.server.page.words import duration
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.unread import Unread
from pos_gateway.telemetry import metrics
from pos_gateway.tokens.sessions import Session
from pos_gateway.tokens.token import Role

log = structlog.get_logger(__name__)

#: Maximum parts that are rendered at the same time, with different roles and values.
TOPICS = 500
#: Most of them that one token, or user, looks at.
OWN = 200
#: Of all streams' parts that are rendered at once: the other threads are for pages.
AT_ONCE = 2
#: Seconds after which a viewer's session is looked at again, and hears that the server lives.
BEAT = 2.0
#: Seconds until a part that could not be sent is sent again, and that rendering one may take.
RETRY_AFTER, TIMEOUT = 1.0, 5.0
#: Maximum characters of a value that a part depends on.
_LONGEST = 128
_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]
_RETRY, _ALIVE = b"retry: 2000\n\n", b"event: alive\ndata:\n\n"
_ENDED, _STOPS = b"event: ended\ndata:\n\n", b"event: stops\ndata:\n\n"


class Topic(NamedTuple):
    """What viewers share: a part, for a role, with its values."""

    part: str
    role: Role
    values: tuple[tuple[str, str], ...]


class _State:
    """A topic that is looked at."""

    def __init__(self) -> None:
        self.html = ""
        self.version = 0
        self.listeners: set[asyncio.Event] = set()
        self.task: asyncio.Task[None] | None = None


class Live:
    """Renders the parts. For the event loop.

    Args:
        parts: of all views.
        reading: the threads that render.
    """

    def __init__(self, parts: Sequence[Part], renderer: Renderer, reading: Reading) -> None:
        self._parts = {part.name: part for part in parts}
        self._renderer = renderer
        self._reading = reading
        self._states: dict[Topic, _State] = {}
        #: Parts of open pages by token.
        self._held: dict[str, Counter[Topic]] = {}
        #: Renders that run, and the last ones with when they ended.
        self._running: dict[Topic, asyncio.Future[str]] = {}
        self._last: dict[Topic, tuple[float, str]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        #: Since when each has failed.
        self._failing: dict[Topic, float] = {}
        self.is_stopping = False

    def topic(self, name: str, role: Role, values: Mapping[str, str]) -> Topic:
        """The topic of a part. Raises Problem 404, 422."""
        part = self._parts.get(name)
        if part is None:
            raise Problem(404, "not_found", "no page has this part")
        taken = {each: values[each] for each in part.takes if each in values}
        for each, value in taken.items():
            if len(value) > _LONGEST:
                raise Problem(422, "invalid_request", f"{each}: has more than {_LONGEST} letters")
        return Topic(name, role, tuple(sorted(taken.items())))

    async def html(self, topic: Topic, *, fresh: bool = False) -> str:
        """The part now, at most ``Part.every`` old; why there is none, if it cannot be read.

        Args:
            fresh: read it now: an action has just changed what it shows.
        """
        if fresh and (begun := self._running.get(topic)) is not None:
            await asyncio.wait([begun])  # it may have read what was before
        now = asyncio.get_running_loop().time()
        last = None if fresh else self._last.get(topic)
        if last is not None and now - last[0] < self._parts[topic.part].every:
            return last[1]
        running = self._running.get(topic)
        if running is None:
            running = asyncio.ensure_future(self._reading(lambda: self._render(topic)))
            self._running[topic] = running
            running.add_done_callback(lambda done: self._ended(topic, done))
        try:
            async with asyncio.timeout(TIMEOUT + 1):
                html = await asyncio.shield(running)
        except (Problem, SQLAlchemyError, LedgerUnavailable, TimeoutError):
            return self._unavailable(topic)
        except Exception as error:
            log.error("page.failed", path=topic.part, exc_info=error)
            return self._otherwise(topic) or self._renderer.part("failed.html", {})
        self._failing.pop(topic, None)
        return html

    @contextmanager
    def listening(
        self, topics: Sequence[Topic], changed: asyncio.Event, holder: str
    ) -> Iterator[None]:
        """Render these while entered; ``changed`` is set at each change. Raises Problem 503.

        Args:
            holder: the token's digest, which has its part of them, and takes no other's.
        """
        own = self._held.get(holder, Counter[Topic]())
        if len(own.keys() | set(topics)) > OWN:
            detail = "this login has too many pages open: close some"
            raise Problem(503, "too_many_parts", detail, retry_after=5)
        if len(self._states.keys() | set(topics)) > TOPICS:
            raise Problem(503, "too_many_parts", "too many pages are open", retry_after=5)
        self._held[holder] = own
        own.update(topics)
        for topic in topics:
            state = self._states.setdefault(topic, _State())
            state.listeners.add(changed)
            if state.task is None:
                state.task = asyncio.create_task(self._follow(topic, state))
        try:
            yield
        finally:
            own.subtract(topics)
            for topic in [each for each in topics if not own[each]]:
                del own[topic]
            if not own:
                del self._held[holder]
            for topic in topics:
                state = self._states[topic]
                state.listeners.discard(changed)
                if not state.listeners:
                    del self._states[topic]
                    assert state.task is not None  # noqa: S101
                    state.task.cancel()

    def news(self, topics: Sequence[Topic], seen: dict[Topic, int]) -> list[tuple[Topic, str]]:
        """The parts that have changed; ``seen`` is what the viewer has, and has then."""
        found = []
        for topic in topics:
            state = self._states[topic]
            if state.version > seen.get(topic, 0):
                seen[topic] = state.version
                found.append((topic, state.html))
        return found

    def stop(self) -> None:
        """End all streams. Idempotent."""
        self.is_stopping = True
        for state in self._states.values():
            for each in state.listeners:
                each.set()

    async def _follow(self, topic: Topic, state: _State) -> None:
        loop = asyncio.get_running_loop()
        every = self._parts[topic.part].every
        while True:
            began = loop.time()
            async with self._turns:
                html = await self.html(topic)
            if html != state.html:
                state.html, state.version = html, state.version + 1
                for each in state.listeners:
                    each.set()
            await asyncio.sleep(max(0.05, began + every - loop.time()))

    def _render(self, topic: Topic) -> str:
        part = self._parts[topic.part]
        return self._renderer.part(part.template, part.read(Viewer(topic.role, dict(topic.values))))

    def _ended(self, topic: Topic, done: "asyncio.Future[str]") -> None:
        now = asyncio.get_running_loop().time()
        del self._running[topic]
        if not done.cancelled() and done.exception() is None:
            self._last.pop(topic, None)
            self._last[topic] = now, done.result()
        while len(self._last) > TOPICS:  # each value in a query is another topic
            del self._last[next(iter(self._last))]
        for old in [each for each, (at, _) in self._last.items() if now - at > 60]:
            del self._last[old]

    def _unavailable(self, topic: Topic) -> str:
        now = asyncio.get_running_loop().time()
        since = self._failing.setdefault(topic, now)
        if len(self._failing) > TOPICS:
            self._failing = {topic: since}
        said = {"since": duration(now - since)}
        return self._otherwise(topic) or self._renderer.part("unavailable.html", said)

    def _otherwise(self, topic: Topic) -> str | None:
        part = self._parts[topic.part]
        if part.otherwise is None:
            return None
        viewer = Viewer(topic.role, dict(topic.values))
        return self._renderer.part(part.template, part.otherwise(viewer))


class LiveStream:
    """``GET /page/live?part=NAME&part=…``: the parts of one page, as they change.

    Args:
        entrance: whose stream ends with its session.
        unread: bounds what slow clients leave in memory.
    """

    def __init__(self, live: Live, entrance: Entrance, unread: Unread) -> None:
        self._live = live
        self._entrance = entrance
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the browser goes, the session ends, or this process stops. Raises Problem."""
        session = await self._entrance.find(scope)
        if session is None:
            raise Problem(401, "unauthorized", "the session has ended: log in again, at /login")
        query = Fields.parse(scope["query_string"])
        topics = [
            self._live.topic(each, session.token.role, query)
            for each in dict.fromkeys(query.all("part")[:20])
        ]
        changed = asyncio.Event()
        with self._live.listening(topics, changed, session.token.digest):
            await send(
                {"type": "http.response.start", "status": 200, "headers": [*_STREAM, *HEADERS]}
            )
            gone = asyncio.ensure_future(disconnected(receive))
            gone.add_done_callback(lambda _: changed.set())
            metrics.http_streams.inc()
            try:
                await _send(send, _RETRY + _ALIVE)
                await self._send_news(session, topics, changed, send, gone)
                if not gone.done():
                    # A proxy's user comes again through the proxy, which knows whether it may.
                    again = self._live.is_stopping or session.is_by_proxy
                    last = _STOPS if again else _ENDED
                    await send({"type": "http.response.body", "body": last})
            finally:
                metrics.http_streams.dec()
                gone.cancel()

    async def _send_news(
        self,
        session: Session,
        topics: Sequence[Topic],
        changed: asyncio.Event,
        send: Send,
        gone: "asyncio.Future[None]",
    ) -> None:
        seen: dict[Topic, int] = {}
        while not (gone.done() or self._live.is_stopping) and self._entrance.is_valid(session):
            changed.clear()
            before = dict(seen)
            body = b"".join(map(_written, self._live.news(topics, seen)))
            if body:
                try:
                    with self._unread.holding(len(body), session.token.digest):
                        await _send(send, body)
                except Problem:
                    seen = before
                    await asyncio.sleep(RETRY_AFTER)
                continue
            try:
                async with asyncio.timeout(BEAT):
                    await changed.wait()
            except TimeoutError:
                await _send(send, _ALIVE)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _written(news: tuple[Topic, str]) -> bytes:
    topic, html = news
    return b"event: part\ndata: %s\n\n" % to_json({"part": topic.part, "html": html})
