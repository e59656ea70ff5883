"""A requests.Session over ``send``: each request is one exchange of the transport's, or none."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.auth import HTTPDigestAuth

from pos_gateway.transport import session as subject
from pos_gateway.transport.errors import (
    Misconfigured,
    NotBegun,
    NotSent,
    NoValidReply,
    TransportError,
)
from pos_gateway.transport.exchange import (
    ACKNOWLEDGEMENT,
    BODY_LIMIT,
    Reply,
    Request,
    Send,
    Transport,
)
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.session import PosSession, reply_of
from testkit.hostile.peer import a_reply, answers, hangs, peer, read_request

URL = "https://pos.example.com/orders"


class Pos:
    """Answers with these, or raises them, and keeps the requests."""

    def __init__(self, *results: Reply | Exception) -> None:
        self._results = list(results)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        result = self._results.pop(0) if self._results else Reply(200, {}, b"{}")
        if isinstance(result, Exception):
            raise result
        return result

    def session(self, **options: Any) -> PosSession:
        return Send(self).session(**options)


def test_a_request_is_one_exchange_and_the_reply_a_response() -> None:
    pos = Pos(
        Reply(201, {"content-type": "application/json; charset=utf-8", "x-id": "7"}, b'{"a":1}')
    )
    response = pos.session().post(URL, params={"q": "a b"}, json={"n": 1}, headers={"X-Key": "k"})
    [request] = pos.requests
    assert (request.method, request.url) == ("POST", f"{URL}?q=a+b")
    assert json.loads(request.body or b"") == {"n": 1}
    assert request.headers == {"X-Key": "k", "Content-Type": "application/json"}
    assert request.expects == ACKNOWLEDGEMENT
    assert (response.status_code, response.reason, response.json()) == (201, "Created", {"a": 1})
    assert (response.headers["X-ID"], response.encoding, response.url) == (
        "7",
        "utf-8",
        request.url,
    )
    assert response.ok
    assert response.request.url == request.url
    assert reply_of(response) == Reply(201, response.headers, b'{"a":1}')


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ({"data": {"a": "b c"}}, b"a=b+c"),
        ({"data": "é"}, "é".encode()),
        ({"data": b"\0"}, b"\0"),
        ({"data": iter([b"a", b"b"])}, b"ab"),
        ({"data": (piece for piece in ("a", "é"))}, "aé".encode()),
        ({"data": io.BytesIO(b"file")}, b"file"),
        ({"data": io.StringIO("file")}, b"file"),
        ({}, None),
    ],
)
def test_each_kind_of_body_is_sent(what: dict[str, Any], body: bytes | None) -> None:
    pos = Pos()
    pos.session().post(URL, **what)
    [request] = pos.requests
    assert request.body == body
    assert not {name.lower() for name in request.headers} & {"transfer-encoding", "content-length"}


def test_files_are_sent_in_one_body() -> None:
    pos = Pos()
    pos.session().post(URL, files={"menu": ("m.csv", b"a,b")})
    assert b'filename="m.csv"' in (pos.requests[0].body or b"")


def test_a_body_without_end_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BODY", 100_000)
    pos = Pos()
    for endless in (repeat(b"x" * 1000), io.BytesIO(b"x" * 200_000)):
        with pytest.raises(Misconfigured, match="longer than 100000 bytes"):
            pos.session().post(URL, data=endless)
    assert pos.requests == []


def test_the_environments_proxies_netrc_and_certificates_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine pos.example.com login stolen password stolen\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    pos = Pos()
    pos.session().get(URL)
    assert pos.requests[0].headers == {}


def test_what_would_go_around_the_transport_has_no_effect() -> None:
    """All of this is in the examples of vendors."""
    pos = Pos(NotSent("connect", "no address answers"))
    session = pos.session()
    retries: Any = requests.adapters.HTTPAdapter(max_retries=3)
    session.mount("https://", retries)
    session.mount(URL, retries)
    session.verify = False
    session.proxies = {"https": "http://127.0.0.1:1"}
    session.trust_env = True
    with pytest.raises(NotSent):
        session.post(URL, timeout=1e-9, verify=False, cert="none.pem", proxies=session.proxies)
    assert len(pos.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("follow", [True, False])
def test_a_redirect_is_a_reply(status: int, follow: bool) -> None:
    pos = Pos(Reply(status, {"location": "https://10.0.0.1/", "content-length": "0"}, b""))
    response = pos.session().post(URL, data=b"{}", allow_redirects=follow)
    assert (response.status_code, response.history, len(pos.requests)) == (status, [], 1)


def test_a_cookie_is_not_kept() -> None:
    pos = Pos(Reply(200, {"set-cookie": "s=1"}, b""))
    session = pos.session()
    session.get(URL)
    session.get(URL)
    assert "cookie" not in {name.lower() for name in pos.requests[1].headers}


def test_an_authentication_that_answers_a_challenge_works() -> None:
    challenge = {"www-authenticate": 'Digest realm="r", nonce="n", qop="auth"'}
    pos = Pos(Reply(401, challenge, b""))
    response = pos.session().post(URL, data=b"{}", auth=HTTPDigestAuth("u", "p"))
    assert response.status_code == 200
    assert "Authorization" not in pos.requests[0].headers
    assert pos.requests[1].headers["Authorization"].startswith("Digest ")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"])
def test_every_method_is_sent(method: str) -> None:
    pos = Pos(Reply(204, {"content-length": "9"}, b""))
    assert pos.session().request(method, URL).content == b""
    assert pos.requests[0].method == method


def test_a_streamed_reply_is_read_as_one() -> None:
    pos = Pos(Reply(200, {"transfer-encoding": "chunked"}, b"abc\ndef"))
    with pos.session().get(URL, stream=True) as response:
        assert [*response.iter_lines()] == [b"abc", b"def"]


def test_what_a_request_expects_and_whether_it_changes_anything_is_the_sessions() -> None:
    pos = Pos()
    session = pos.session(expects=BODY_LIMIT)
    session.post(URL)
    session.is_search = True
    session.post(f"{URL}/search")
    assert [(each.expects, each.changes) for each in pos.requests] == [
        (BODY_LIMIT, True),
        (BODY_LIMIT, False),
    ]


class Late(NotSent):
    """A class of its own, as the gateway has one."""


@pytest.mark.parametrize(
    ("error", "like"),
    [
        (NotSent("connect", "no address answers"), requests.ConnectionError),
        (NotBegun("timeout", "no time"), requests.ConnectTimeout),
        (Late("timeout", "no time"), requests.Timeout),
        (Misconfigured("certificate", "expired"), requests.exceptions.SSLError),
        (Misconfigured("security", "10.0.0.1"), requests.ConnectionError),
        (NoValidReply("timeout", "no reply"), requests.ReadTimeout),
        (NoValidReply("cut_short", "another order needed its slot"), requests.Timeout),
        (NoValidReply("cut", "too short"), requests.ConnectionError),
    ],
)
def test_a_failure_is_the_transports_and_one_of_requests(
    error: TransportError, like: type[Exception]
) -> None:
    session = Pos(error).session()
    with pytest.raises(like) as caught:
        session.post(URL)
    assert isinstance(caught.value, type(error))
    assert isinstance(caught.value, requests.RequestException)
    assert (caught.value.code, str(caught.value)) == (error.code, str(error))  # type: ignore[attr-defined]
    assert caught.value.request is not None
    assert session.failure is caught.value
    session.get(URL)
    assert session.failure is None


def test_after_doubt_nothing_that_changes_is_sent_again() -> None:
    """An SDK that tries again would create the order twice; it may look it up."""
    pos = Pos(NoValidReply("timeout", "no reply"))
    session = pos.session()
    for _ in range(3):
        with pytest.raises(NoValidReply, match="no reply"):
            session.post(URL)
    assert len(pos.requests) == 1
    assert session.get(URL).status_code == 200
    session.is_search = True
    assert session.post(f"{URL}/search").status_code == 200


@pytest.mark.parametrize("error", [NotSent("connect", "none"), NoValidReply("cut", "cut")])
def test_a_failed_look_up_or_one_that_was_not_sent_stops_nothing(error: TransportError) -> None:
    pos = Pos(error, Reply(200, {}, b""))
    session = pos.session()
    with pytest.raises(TransportError):
        session.request("GET" if isinstance(error, NoValidReply) else "POST", URL)
    assert session.post(URL).status_code == 200


def test_a_failure_is_raised_whatever_an_sdk_makes_of_it() -> None:
    class SdkError(Exception):
        pass

    with pytest.raises(NoValidReply), Pos(NoValidReply("cut", "cut")).session() as session:
        try:
            session.post(URL)
        except requests.RequestException as error:
            raise SdkError("something went wrong") from error
    session = Pos(NoValidReply("cut", "cut")).session()
    with pytest.raises(NoValidReply), session, suppress(requests.RequestException):
        session.post(URL)  # and the SDK goes on as if the POS had refused
    with pytest.raises(SdkError), Pos().session() as session:
        session.post(URL)
        raise SdkError("it says no")
    with pytest.raises(KeyboardInterrupt), Pos(NoValidReply("cut", "cut")).session() as session:
        try:
            session.post(URL)
        except requests.RequestException:
            raise KeyboardInterrupt from None


# Over a socket


@pytest.fixture
def over() -> Iterator[Callable[..., PosSession]]:
    transport = Transport(guard=Guard(allow_all=True))

    def made(seconds: float = 10.0, **options: Any) -> PosSession:
        named = {"key": "m", "connections": 2, "seconds": seconds, **options}
        return Send(partial(transport.send, **named)).session()

    yield made
    transport.close()


def test_its_connections_are_the_transports(over: Callable[..., PosSession]) -> None:
    received: list[bytes] = []

    def script(connection: Any) -> None:
        while request := read_request(connection):
            received.append(request)
            connection.sendall(a_reply())

    with peer(script) as seen:
        for _ in range(3):
            with over() as session:
                reply = session.post(seen.url(), json={"a": 1}, headers={"accept-encoding": "gzip"})
                assert reply.json() == {"status": "accepted"}
        assert seen.connections == 1
    assert b"\r\nAccept-Encoding: identity\r\n" in received[0]
    assert received[0].count(b"Content-Length") == 1


def test_its_time_is_the_exchanges(over: Callable[..., PosSession]) -> None:
    with peer(hangs) as seen, pytest.raises(requests.ReadTimeout, match=r"within 0\.2 s"):
        over(seconds=0.2).post(seen.url(), timeout=100)


def test_its_requests_pass_the_fence_and_the_guard(over: Callable[..., PosSession]) -> None:
    def fence() -> None:
        raise NotSent("fenced", "another worker has it")

    with peer(answers(a_reply())) as seen:
        with pytest.raises(NotSent, match="another worker"):
            over(fence=fence).post(seen.url())
        guarded = Send(partial(Transport().send, key="m", connections=1, seconds=5.0)).session()
        with pytest.raises(Misconfigured) as caught:
            guarded.post(seen.url())
        assert caught.value.code == "security"
