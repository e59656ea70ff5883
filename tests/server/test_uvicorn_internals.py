"""What the server uses of uvicorn, and of httptools below it, beyond their documentation."""

import asyncio
import inspect
import re
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import httptools
import pytest
import trustme
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pos_gateway.server import uvicorn_internals as subject
from pos_gateway.server.held import FREE, HELD, Held
from pos_gateway.server.uvicorn_internals import (
    HEAD_BYTES,
    LINGER,
    PIPELINED,
    REQUEST_TIMEOUT,
    WRITE_AHEAD,
    WRITE_TIMEOUT,
    HttpServer,
    Loop,
    Protocol,
)
from tests.server.lab import SOON

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, *, is_tls: bool = False) -> None:
        super().__init__()
        self.written = b""
        self.calls: list[str] = []
        self.unsent = 0
        self._is_tls = is_tls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return object() if name == "sslcontext" and self._is_tls else default

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def can_write_eof(self) -> bool:
        return not self._is_tls

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time is told."""

    now = 1000.0

    def time(self) -> float:
        return self.now


class Lab:
    """A protocol on a transport, and the requests that reached the application."""

    def __init__(self, loop: Clock, *, is_tls: bool = False) -> None:
        self.loop = loop
        self.requests: list[dict[str, Any]] = []
        #: How many waited behind each.
        self.waiting: list[int] = []
        self.reads_bodies = False
        self.bodies: list[bytes] = []
        #: The application's replies wait for it.
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.status, self.body, self.headers = 204, b"", [(b"content-length", b"0")]
        #: What precedes the body; the rest waits until it may end.
        self.begins_with = b""
        self.may_end = asyncio.Event()
        self.transport = Transport(is_tls=is_tls)
        self.state = ServerState()
        self._kind = type(
            "Limited", (Protocol,), {"idle": {}, "max_connections": 1, "held": Held()}
        )
        self.protocol = self.connected(self.transport)

    def connected(self, transport: Transport) -> Protocol:
        config = uvicorn.Config(
            self._application, http=Protocol, interface="asgi3", log_config=None
        )
        config.load()
        protocol: Protocol = self._kind(config, self.state, {}, self.loop)
        protocol.connection_made(transport)
        return protocol

    async def _application(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.requests.append(scope)
        self.waiting.append(len(self.protocol.pipeline))
        await self.may_reply.wait()
        if self.reads_bodies:
            self.bodies.append(b"")
            is_whole = False
            while not is_whole:
                message = await receive()
                self.bodies[-1] += message["body"]
                is_whole = not message["more_body"]
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        if self.begins_with:
            await send({"type": "http.response.body", "body": self.begins_with, "more_body": True})
            await self.may_end.wait()
        await send({"type": "http.response.body", "body": self.body})

    async def statuses(self) -> list[int]:
        quiet = 0
        while quiet < 20:
            before = len(self.transport.written)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.transport.written) == before else 0
        return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.transport.written)]

    def reads(self) -> bool:
        """Whether more is read of its connection."""
        said = [each for each in self.transport.calls if each.endswith("_reading")]
        return said[-1:] != ["pause_reading"]


def lab_test(check: Callable[[Lab], Awaitable[None]]) -> Callable[[], None]:
    """Runs it in a loop whose time is told."""

    def test() -> None:
        async def run() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, Clock)
            await check(Lab(loop))

        with asyncio.Runner(loop_factory=Clock) as runner:
            runner.run(run())

    return test


# What is overridden and called exists, with these parameters.


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (HttpToolsProtocol, "connection_made", ["self", "transport"]),
        (HttpToolsProtocol, "connection_lost", ["self", "exc"]),
        (HttpToolsProtocol, "data_received", ["self", "data"]),
        (HttpToolsProtocol, "eof_received", ["self"]),
        (HttpToolsProtocol, "on_message_begin", ["self"]),
        (HttpToolsProtocol, "on_headers_complete", ["self"]),
        (HttpToolsProtocol, "on_body", ["self", "body"]),
        (HttpToolsProtocol, "on_message_complete", ["self"]),
        (HttpToolsProtocol, "on_response_complete", ["self"]),
        (HttpToolsProtocol, "shutdown", ["self"]),
        (HttpToolsProtocol, "_unset_keepalive_if_required", ["self"]),
        (FlowControl, "__init__", ["self", "transport"]),
        (FlowControl, "pause_reading", ["self"]),
        (FlowControl, "resume_reading", ["self"]),
        (uvicorn.Server, "main_loop", ["self"]),
        (uvicorn.Server, "shutdown", ["self", "sockets"]),
        (uvicorn.Server, "capture_signals", ["self"]),
    ],
)
def test_it_is_there(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_what_uvicorn_does_with_data_is_what_is_replaced() -> None:
    """Parse it, answer an error, and take upgrades: nothing else may be forgotten."""
    source = inspect.getsource(HttpToolsProtocol.data_received)
    assert source.count("self.") == 7
    for each in ("_unset_keepalive", "parser.feed_data", "send_400_response", "_should_upgrade"):
        assert each in source


@lab_test
async def test_a_protocol_has_what_is_read_of_it(lab: Lab) -> None:
    protocol = lab.protocol
    assert protocol in protocol.connections is lab.state.connections
    assert (protocol.cycle, len(protocol.pipeline), protocol.scheme) == (None, 0, "http")
    lab.may_reply.clear()
    protocol.data_received(GET * 2)
    cycle, _ = protocol.pipeline[0]
    assert cycle is protocol.cycle
    assert isinstance(cycle, RequestResponseCycle)
    state = (cycle.disconnected, cycle.keep_alive, cycle.more_body)
    assert state == (False, True, False)
    assert (cycle.response_started, cycle.response_complete) == (False, False)
    assert (cycle.chunked_encoding, cycle.expected_content_length) == (None, 0)
    assert isinstance(cycle.message_event, asyncio.Event)
    assert cycle.scope["method"] == "GET"
    assert protocol.url == b"/"


# What the parser does.


@lab_test
async def test_an_exception_of_a_callback_is_the_context_of_the_parsers(lab: Lab) -> None:
    """And it stops the parser: no request behind it is begun."""
    lab.protocol.data_received(b"GET / HTTP/1.1\r\n\r\n" + GET)
    assert await lab.statuses() == [400]
    assert b"bad_host" in lab.transport.written
    assert lab.requests == []


def test_the_parser_says_where_an_upgrade_ends_and_goes_on_behind() -> None:
    urls: list[bytes] = []

    class Callbacks:
        def on_url(self, url: bytes) -> None:
            urls.append(url)

    parser = httptools.HttpRequestParser(Callbacks())
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    with pytest.raises(httptools.HttpParserUpgrade) as raised:
        parser.feed_data(upgrade + GET)
    assert parser.should_upgrade()
    assert raised.value.args == (len(upgrade),)
    parser.feed_data(memoryview(GET))
    assert urls == [b"/", b"/"]


@lab_test
async def test_trailers_do_not_become_headers(lab: Lab) -> None:
    lab.protocol.data_received(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n0\r\nX-Trailer: a\r\n\r\n"
    )
    assert await lab.statuses() == [204]
    assert [name for name, _ in lab.requests[0]["headers"]] == [b"host", b"transfer-encoding"]


# What follows for connections.


@lab_test
async def test_what_is_malformed_is_answered_behind_the_requests_before_it(lab: Lab) -> None:
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 2 + b"NONSENSE\r\n\r\n" + GET)
    assert await lab.statuses() == []
    lab.may_reply.set()
    assert await lab.statuses() == [204, 204, 400]
    assert lab.transport.calls[-1] == "write_eof"


@lab_test
async def test_a_slow_request_is_refused_and_its_rest_dropped_for_a_while(lab: Lab) -> None:
    protocol = lab.protocol
    protocol.data_received(GET[:-1])
    protocol.sweep(lab.loop.now + REQUEST_TIMEOUT)
    assert await lab.statuses() == []
    lab.loop.now += REQUEST_TIMEOUT + 1
    protocol.sweep(lab.loop.now)
    assert await lab.statuses() == [408]
    assert lab.transport.calls == ["write_eof"]
    protocol.data_received(b"\n" + GET)
    protocol.sweep(lab.loop.now + LINGER)
    assert not lab.transport.is_closing()
    protocol.sweep(lab.loop.now + LINGER + 0.1)
    assert lab.transport.is_closing()
    assert lab.requests == []


@lab_test
async def test_each_request_has_the_time_limit(lab: Lab) -> None:
    protocol = lab.protocol
    protocol.data_received(GET)
    await lab.statuses()
    protocol.sweep(lab.loop.now + 60)  # idle: uvicorn's limit, not ours
    lab.loop.now += 60
    protocol.data_received(GET + GET[:5])
    protocol.sweep(lab.loop.now + REQUEST_TIMEOUT)
    assert await lab.statuses() == [204, 204]
    protocol.sweep(lab.loop.now + REQUEST_TIMEOUT + 0.1)
    assert await lab.statuses() == [204, 204, 408]


@lab_test
async def test_a_connection_that_says_nothing_is_closed_without_a_word(lab: Lab) -> None:
    lab.protocol.sweep(lab.loop.now + REQUEST_TIMEOUT + 0.1)
    assert lab.transport.calls == ["close"]
    assert lab.transport.written == b""


@lab_test
async def test_a_client_that_takes_nothing_is_cut_off(lab: Lab) -> None:
    protocol, transport, now = lab.protocol, lab.transport, lab.loop.now
    protocol.data_received(GET)
    # All that is written, and what of it the client has not taken: from the fourth on it takes nothing.
    for written, unsent in ((0, 0), (500, 500), (500, 400), (900, 400), (900, 400), (950, 450)):
        protocol.transport.written, transport.unsent = written, unsent
        protocol.sweep(now)
        now += WRITE_TIMEOUT / 2
    assert transport.calls == []
    protocol.sweep(now)
    assert transport.calls == ["abort"]


@lab_test
async def test_little_is_written_ahead_of_a_client(lab: Lab) -> None:
    assert lab.transport.high == WRITE_AHEAD


@lab_test
async def test_a_reply_over_http_1_0_has_no_chunks(lab: Lab) -> None:
    """The end of the connection ends it. One that has a length keeps it."""
    old = GET.replace(b"1.1", b"1.0")
    for sent, headers, chunks in ((GET, [], 1), (old, [], 0), (old, lab.headers, 0)):
        each = Lab(lab.loop)
        each.status, each.body, each.headers = 200, b"text", headers
        each.headers = [(name, b"4") for name, _ in headers]
        each.protocol.data_received(sent)
        assert await each.statuses() == [200]
        text = each.transport.written.lower()
        assert text.count(b"transfer-encoding: chunked") == chunks
        assert text.count(b"content-length: 4") == len(headers)
        assert text.endswith(b"\r\n\r\ntext") or chunks
        assert each.transport.is_closing() == (sent == old)


@lab_test
async def test_over_tls_there_is_no_half_of_a_connection(lab: Lab) -> None:
    tls = Lab(lab.loop, is_tls=True)
    assert tls.protocol.scheme == "https"
    tls.protocol.data_received(b"NONSENSE\r\n\r\n")
    assert await tls.statuses() == [400]
    assert tls.transport.calls == ["close"]


@lab_test
async def test_only_a_post_outlives_the_end_of_its_clients_side(lab: Lab) -> None:
    lab.may_reply.clear()
    assert not lab.protocol.eof_received()
    lab.protocol.data_received(GET)
    assert not lab.protocol.eof_received()
    post = Lab(lab.loop)
    post.may_reply.clear()
    post.protocol.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    assert post.protocol.eof_received()
    post.may_reply.set()
    assert await post.statuses() == [204]
    assert post.transport.is_closing()


@lab_test
async def test_a_reply_that_has_begun_is_ended_after_the_end_of_its_clients_side(lab: Lab) -> None:
    for behind, statuses in ((b"", [200]), (GET, [200, 200]), (GET[:-1], [200, 400])):
        lab = replying(Lab(lab.loop), [(b"content-length", b"5")])
        lab.protocol.data_received(GET + behind)
        await lab.statuses()
        assert lab.protocol.eof_received()
        lab.may_end.set()
        assert await lab.statuses() == statuses
        assert lab.transport.written.count(b"whole") == statuses.count(200)
        assert {"close", "write_eof"} & set(lab.transport.calls)


@lab_test
async def test_a_reply_that_has_begun_is_ended_although_its_request_is_not(lab: Lab) -> None:
    replying(lab, [(b"content-length", b"5")])
    lab.protocol.data_received(GET[:-2] + b"Content-Length: 3\r\n\r\na")
    await lab.statuses()
    assert lab.protocol.eof_received()
    lab.loop.now += REQUEST_TIMEOUT + 1
    lab.protocol.sweep(lab.loop.now)
    assert not lab.transport.is_closing(), "the client is slow in reading, not in sending"
    lab.may_end.set()
    assert await lab.statuses() == [200]
    assert lab.transport.written.endswith(b"whole")
    assert lab.transport.is_closing()


@lab_test
async def test_a_stream_does_not_outlive_the_end_of_its_clients_side(lab: Lab) -> None:
    for request in (GET, GET.replace(b"1.1", b"1.0")):
        lab = replying(Lab(lab.loop), [])
        lab.protocol.data_received(request)
        assert await lab.statuses() == [200]
        assert not lab.protocol.eof_received()


def replying(lab: Lab, headers: list[tuple[bytes, bytes]]) -> Lab:
    """A lab whose replies begin, and wait."""
    lab.status, lab.headers, lab.begins_with, lab.body = 200, headers, b"who", b"le"
    return lab


@lab_test
async def test_a_post_is_answered_before_one_that_was_cut_short(lab: Lab) -> None:
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na"
    for cut in (-1, -10):
        lab = Lab(lab.loop)
        lab.may_reply.clear()
        lab.protocol.data_received(post * 2 + post[:cut])
        assert lab.protocol.eof_received()
        lab.may_reply.set()
        assert await lab.statuses() == [204, 204, 400]
        assert len(lab.requests) == 2


@lab_test
async def test_a_head_is_bounded_however_it_comes(lab: Lab) -> None:
    lab.protocol.data_received(GET[:-2] + b"X: " + b"a" * HEAD_BYTES + b"\r\n\r\n")
    assert await lab.statuses() == [431]


@lab_test
async def test_a_lost_connection_leaves_nothing_behind(lab: Lab) -> None:
    lab.protocol.data_received(GET)
    await lab.statuses()
    timer = lab.protocol.timeout_keep_alive_task
    assert timer is not None
    assert lab.protocol in lab.protocol.idle
    lab.protocol.connection_lost(ConnectionResetError())
    assert timer.cancelled()
    assert lab.protocol not in lab.protocol.idle
    assert lab.protocol not in lab.state.connections


@lab_test
async def test_what_follows_an_upgrade_is_the_next_request(lab: Lab) -> None:
    upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    lab.protocol.data_received(upgrade + upgrade + GET[:9])
    lab.protocol.data_received(GET[9:] + upgrade[:-1])
    assert await lab.statuses() == [204] * 3
    lab.protocol.data_received(upgrade[-1:] + GET)
    assert await lab.statuses() == [204] * 5


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_upgrade_with_a_body_is_ignored(size: int, is_chunked: bool) -> None:
    """A request in the body is a body, however it comes, and what follows it is a request."""

    @lab_test
    async def check(lab: Lab) -> None:
        lab.reads_bodies = True
        framing = b"Content-Length: %d\r\n\r\n" % len(GET)
        sent = GET
        if is_chunked:
            framing = b"Transfer-Encoding: chunked\r\n\r\n"
            sent = b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(GET), GET)
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        post = b"POST /a HTTP/1.1\r\nHost: a\r\n" + upgrade + framing + sent
        whole = (post + GET) * 2
        for at in range(0, len(whole), size):
            lab.protocol.data_received(whole[at : at + size])
        assert await lab.statuses() == [204] * 4
        assert [each["path"] for each in lab.requests] == ["/a", "/"] * 2
        assert lab.bodies == [GET, b""] * 2

    check()


@lab_test
async def test_a_connect_with_a_body_is_refused(lab: Lab) -> None:
    lab.protocol.data_received(b"CONNECT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n" + GET)
    assert await lab.statuses() == [400]
    assert lab.requests == []


@lab_test
async def test_few_requests_wait_on_a_connection(lab: Lab) -> None:
    """What came behind them is not parsed, and no more is read, until they were answered."""
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 1000 + GET[:5])
    assert len(lab.protocol.pipeline) == PIPELINED
    assert lab.reads() is False
    lab.protocol.flow.resume_reading()  # as a request does that waits for its body
    assert lab.reads() is False
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 1000
    assert max(lab.waiting) <= PIPELINED
    assert lab.reads() is True
    lab.protocol.data_received(GET[5:] + GET)
    assert await lab.statuses() == [204] * 1002


@lab_test
async def test_a_body_behind_many_requests_is_whole(lab: Lab) -> None:
    body = bytes(range(256)) * 200
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    lab.reads_bodies = True
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 500 + head + body + GET * 500)
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 1001
    assert [each for each in lab.bodies if each] == [body]


@lab_test
async def test_few_requests_wait_behind_a_body(lab: Lab) -> None:
    """It is parsed at once, and the requests in its packet are not."""
    body = b"x" * 100_000
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    lab.reads_bodies = True
    lab.may_reply.clear()
    half = len(body) // 2
    lab.protocol.data_received(head + body[:half])
    lab.protocol.data_received(body[half:] + GET * 1000)
    assert len(lab.protocol.pipeline) == PIPELINED
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 1001
    assert [each for each in lab.bodies if each] == [body]


@lab_test
async def test_a_body_of_blank_lines_is_parsed_in_few_parts(lab: Lab) -> None:
    """Each costs microseconds, in which no other request is answered."""
    parts = 0
    parse = lab.protocol._parse_part

    def counted(data: memoryview) -> None:
        nonlocal parts
        parts += 1
        parse(data)

    lab.protocol._parse_part = counted  # type: ignore[method-assign]
    lab.reads_bodies = True
    body = b"\r\n" * 16_384
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    lab.may_reply.clear()
    lab.protocol.data_received(head + b"8000\r\n" + body + b"\r\n0\r\n\r\n" + GET * 1000)
    assert parts < 600
    assert len(lab.protocol.pipeline) <= PIPELINED + 3
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 1001
    assert lab.bodies[0] == body


@lab_test
async def test_what_is_malformed_behind_many_requests_is_answered_in_its_turn(lab: Lab) -> None:
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 500 + b"NONSENSE\r\n\r\n" + GET * 500)
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 500 + [400]


@lab_test
async def test_what_waits_unparsed_goes_with_its_connection(lab: Lab) -> None:
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 1000)
    lab.transport.abort()
    lab.protocol.connection_lost(None)
    lab.may_reply.set()
    assert len(await lab.statuses()) <= 1
    assert len(lab.requests) <= 1


@lab_test
async def test_what_is_around_a_body_is_bounded(lab: Lab) -> None:
    """A chunk's extension here; chunks of a byte are as they should be."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    lab.may_reply.clear()
    lab.protocol.data_received(head)
    for _ in range(20):
        lab.protocol.data_received(b"1\r\na\r\n" * 1000)
    assert not lab.transport.is_closing()
    lab.protocol.data_received(b"5;")
    for _ in range(400):
        lab.protocol.data_received(b"a" * 1000)
    assert await lab.statuses() == [400]


@lab_test
async def test_a_new_connection_takes_the_place_of_the_longest_idle(lab: Lab) -> None:
    lab.protocol.data_received(GET)
    await lab.statuses()
    newer = lab.connected(Transport())
    assert lab.transport.calls == ["close"]
    assert not newer.transport.is_closing()


@lab_test
async def test_over_tls_an_idle_connection_waits_for_no_goodbye(lab: Lab) -> None:
    """Whose client may say none, and would keep its place."""
    secure = Lab(lab.loop, is_tls=True)
    assert secure._kind.end_idle()
    assert secure.transport.calls == ["abort"]
    assert not secure._kind.end_idle()


@lab_test
async def test_with_all_connections_busy_a_new_one_is_refused(lab: Lab) -> None:
    lab.may_reply.clear()
    lab.protocol.data_received(GET)
    await lab.statuses()
    refused = Transport()
    lab.connected(refused)
    assert refused.written.startswith(b"HTTP/1.1 503 ")
    assert refused.calls == ["close"]
    assert not lab.transport.is_closing()


@lab_test
async def test_what_waits_on_all_connections_is_bounded(lab: Lab) -> None:
    """Heads, what is unparsed, bodies that nothing takes: the connection that waits for longest is aborted."""
    size = 200_000
    head = b"POST / HTTP/1.1\r\nHost: a\r\n"
    post = head + b"Content-Length: %d\r\n\r\n" % size
    waiting = [
        head + b"X: " + b"a" * (HEAD_BYTES - 100),
        GET * (size // len(GET)),
        post + b"b" * (size - 1),
        GET + post + b"b" * size + GET,
    ]
    held = lab.protocol.held
    lab._kind.max_connections = 10_000
    lab.may_reply.clear()
    transports, sent = [], 0
    for each in range(4 * (HELD // size)):
        transports.append(Transport())
        data = waiting[each % 4]
        lab.connected(transports[-1]).data_received(data)
        sent += len(data)
    assert HELD - size <= held.bytes <= HELD < sent
    aborted = [each.is_closing() for each in transports]
    assert aborted == sorted(aborted, reverse=True)
    assert any(aborted)


@lab_test
async def test_what_was_taken_waits_no_longer(lab: Lab) -> None:
    size, held = 4 * FREE, lab.protocol.held
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
    lab.reads_bodies = True
    lab.may_reply.clear()
    lab.protocol.data_received(post + b"b" * size + GET * 1000)
    assert held.bytes > size
    lab.may_reply.set()
    assert await lab.statuses() == [204] * 1001
    assert held.bytes == 0
    lab.protocol.data_received(post + b"b" * (size - 1))
    assert held.bytes > 0
    await lab.statuses()  # the application has taken it
    lab.protocol.sweep(lab.loop.now)
    assert held.bytes == 0
    lab.protocol.data_received(b"b" + post + b"b" * FREE * 2)
    lab.protocol.connection_lost(None)
    assert held.bytes == 0


@lab_test
async def test_a_lost_connection_is_known_to_the_request_that_is_answered(lab: Lab) -> None:
    lab.may_reply.clear()
    lab.protocol.data_received(GET * 2)
    await lab.statuses()
    answered = lab.protocol.pipeline[0][0], lab.protocol._running
    lab.transport.calls.append("close")
    lab.protocol.connection_lost(None)
    for cycle in answered:
        assert cycle is not None
        assert (await cycle.receive())["type"] == "http.disconnect"
    lab.may_reply.set()
    assert await lab.statuses() == []
    assert len(lab.requests) == 1, "the one behind it is not begun"


@lab_test
async def test_nothing_is_written_to_a_closed_transport(lab: Lab) -> None:
    """uvloop's would raise."""
    lab.may_reply.clear()
    lab.protocol.data_received(GET)
    await lab.statuses()
    lab.transport.calls.append("close")
    lab.may_reply.set()
    assert await lab.statuses() == []


# The server.


def test_both_signals_stop_it_and_a_second_one_is_the_systems() -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = HttpServer(uvicorn.Config(lambda: None), on_stop=lambda: None)
    with server.capture_signals():
        assert not server.should_exit
        signal.raise_signal(signal.SIGTERM)
        assert server.should_exit
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == before


def test_it_says_that_it_stops_before_it_waits_for_requests() -> None:
    said: list[str] = []

    class Noting(HttpServer):
        async def shutdown(self, sockets: Any = None) -> None:
            said.append("shutdown")

    async def run() -> None:
        server = Noting(uvicorn.Config(lambda: None), on_stop=lambda: said.append("on_stop"))
        server.should_exit = True
        await server.main_loop()
        await server.shutdown()
        assert server._sweeping is not None
        server._sweeping.cancel()

    asyncio.run(run())
    assert said == ["on_stop", "shutdown"]
    source = inspect.getsource(uvicorn.Server._serve)
    assert source.index("main_loop()") < source.index("self.shutdown(")


@pytest.fixture
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context, and one that trusts it."""
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context, trusting


class Shaken(asyncio.Protocol):
    """Counts as uvicorn's protocol does, and says so."""

    max_connections = 3
    connections: ClassVar[set[object]] = set()
    idle: ClassVar[list[Any]] = []

    @classmethod
    def end_idle(cls) -> bool:
        if cls.idle:
            cls.idle.pop(0).abort()
            return True
        return False

    def connection_made(self, transport: Any) -> None:
        self.connections.add(self)
        transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)


def test_a_tls_handshake_has_a_time_limit(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "REQUEST_TIMEOUT", 0.1)

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(Shaken, sock=listener, ssl=tls[0])
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(SOON):
            came = await reader.read()
        writer.close()
        server.close()
        return came

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(run()) == b""
    startup = inspect.getsource(uvicorn.Server.startup)
    assert "create_server(create_protocol, sock=sock, ssl=config.ssl" in startup


def test_connections_that_never_shake_hands_count(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """Each takes the longest handshake's place: they use no more descriptors, and a client is served."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(Shaken, sock=listener, ssl=tls[0])
        address = listener.getsockname()
        silent = [await asyncio.open_connection(*address) for _ in range(10)]
        async with asyncio.timeout(SOON):
            for reader, _ in silent[: -Shaken.max_connections]:
                assert await reader.read() == b""
            reader, writer = await asyncio.open_connection(*address, ssl=tls[1])
            assert await reader.readexactly(5) == b"hello"
            assert await silent[-Shaken.max_connections][0].read() == b""
        assert len(server._shaking) == Shaken.max_connections - 1
        server.close()
        listener.close()
        async with asyncio.timeout(SOON):
            await server.wait_closed()
            for reader, _ in silent[1 - Shaken.max_connections :]:
                assert await reader.read() == b""
        writer.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


def test_a_handshake_takes_the_place_of_an_idle_connection_and_no_others(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """Or clients that come at the same time end each other's handshakes, and none is ever served."""

    class Idle(Shaken):
        max_connections = 4
        connections: ClassVar[set[object]] = set()
        idle: ClassVar[list[Any]] = []

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.idle.append(transport)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(Idle, sock=listener, ssl=tls[0])
        address = listener.getsockname()
        async with asyncio.timeout(SOON):
            kept = []
            for _ in range(Idle.max_connections):
                kept.append(await asyncio.open_connection(*address, ssl=tls[1]))
                assert await kept[-1][0].readexactly(5) == b"hello"
            slow, writer = await asyncio.open_connection(*address)
            while not server._shaking:
                await asyncio.sleep(0)
            kept.append(await asyncio.open_connection(*address, ssl=tls[1]))
            assert await kept[-1][0].readexactly(5) == b"hello"
            await writer.start_tls(tls[1])
            assert await slow.readexactly(5) == b"hello"
            assert len(Idle.connections) == Idle.max_connections
        server.close()
        listener.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


def test_a_client_that_does_not_say_goodbye_keeps_no_connection_over_tls(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "REQUEST_TIMEOUT", 2.0)
    lost = asyncio.Event()

    class Closing(Shaken):
        connections: ClassVar[set[object]] = set()

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        server = await loop.create_server(Closing, sock=listener, ssl=tls[0])
        raw = socket.create_connection(listener.getsockname())
        with await loop.run_in_executor(
            None, lambda: tls[1].wrap_socket(raw, server_hostname="127.0.0.1")
        ):
            async with asyncio.timeout(20.0):  # by default it is 30 s
                await lost.wait()
        server.close()
        listener.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


def test_connections_are_swept_in_uvicorns_set() -> None:
    assert ServerState().connections == set()
    assert "server_state.connections" in inspect.getsource(subject.HttpServer._sweep)
