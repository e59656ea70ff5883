"""What merchants' servers do, and the class of what must come of it."""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

from testkit.hostile.peer import Script, a_reply, answers, hangs, read_request

#: The classes: provably not processed, a person must change something, in doubt, a reply.
RETRY, CONFIG, DOUBT = "NotSent", "Misconfigured", "NoValidReply"
OK = "200"

_HEAD = b"HTTP/1.1 200 OK\r\n"
#: Seconds between the drops of a drip, and how many there are at most: more than any deadline here.
_DROP, _DROPS = 0.05, 100


@dataclass(frozen=True)
class Behaviour:
    """One thing that a server does with a connection."""

    name: str
    script: Script
    becomes: str
    #: Whether the connection may be used for the next request.
    reusable: bool = False
    #: "": plain; else which certificate the server has: ``good``, ``self-signed``, ``other-host``.
    tls: str = ""
    #: What is to be done to the server's TLS context.
    context: Callable[[ssl.SSLContext], None] | None = None
    #: Bytes of the request's body.
    body: int = 7


def _sends(*parts: bytes) -> Script:
    """After the request these bytes, and the end of the connection."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_RDWR)

    return script


def _sends_and_stays(*parts: bytes) -> Script:
    """After the request these bytes, and then nothing, with the connection open."""

    def script(connection: socket.socket) -> None:
        read_request(connection)
        for part in parts:
            connection.sendall(part)
        connection.recv(1)

    return script


def _drips(drop: bytes, before: bytes = b"") -> Script:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(before)
        for _ in range(_DROPS):
            connection.sendall(drop)
            time.sleep(_DROP)  # this is what it does, not a wait for something

    return script


def _without_end(part: bytes, before: bytes = b"") -> Script:
    def script(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(before)
        for each in repeat(part):
            connection.sendall(each)

    return script


def _resets(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def _closes(connection: socket.socket) -> None:
    """At once."""


def _hears_no_tls(connection: socket.socket) -> None:
    connection.recv(70_000)
    connection.sendall(a_reply(b"", "400 Bad Request"))
    connection.recv(1)


def _never_reads(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.shutdown(socket.SHUT_WR)
    time.sleep(_DROP * 20)


def _says_stop_early(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(a_reply(b"", "413 Content Too Large", Connection="close"))
    while connection.recv(65536):
        pass


def _requires_a_certificate(context: ssl.SSLContext) -> None:
    context.verify_mode = ssl.CERT_REQUIRED


def _tls_12_only(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _requires_a_certificate(context)


def _chunked(*chunks: bytes) -> bytes:
    return _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


CATALOGUE = (
    # Connecting
    Behaviour("closes at once", _closes, DOUBT),
    Behaviour("resets in the middle of the request", _resets, DOUBT),
    Behaviour("accepts and never reads", _never_reads, DOUBT, body=8_000_000),
    # TLS
    Behaviour("answers over TLS", answers(a_reply()), OK, reusable=True, tls="good"),
    Behaviour(
        "never answers the handshake", lambda c: c.recv(70_000) and c.recv(1), RETRY, tls="none"
    ),
    Behaviour("closes in the handshake", lambda c: c.recv(70_000), RETRY, tls="none"),
    Behaviour("speaks plain HTTP where TLS is due", _hears_no_tls, CONFIG, tls="none"),
    Behaviour("certificate of an unknown authority", answers(a_reply()), CONFIG, tls="self-signed"),
    Behaviour("certificate of another host", answers(a_reply()), CONFIG, tls="other-host"),
    Behaviour(
        "wants a certificate of ours, TLS 1.3",
        answers(a_reply()),
        CONFIG,
        tls="good",
        context=_requires_a_certificate,
    ),
    Behaviour(
        "wants a certificate of ours, TLS 1.2",
        answers(a_reply()),
        CONFIG,
        tls="good",
        context=_tls_12_only,
    ),
    Behaviour(
        "TLS ends in the body without saying so",
        _sends(_HEAD + b"\r\n", b'{"status"'),
        DOUBT,
        tls="good",
    ),
    # Sending
    Behaviour("reads the request and never answers", hangs, DOUBT),
    Behaviour("says 413 before it has read", _says_stop_early, "413", body=8_000_000),
    Behaviour(
        "100 Continue, then silence", _sends_and_stays(b"HTTP/1.1 100 Continue\r\n\r\n"), DOUBT
    ),
    Behaviour("100 Continue again and again", _drips(b"HTTP/1.1 100 Continue\r\n\r\n"), DOUBT),
    Behaviour(
        "100 Continue, then a reply",
        answers(b"HTTP/1.1 100 Continue\r\n\r\n", a_reply()),
        OK,
        reusable=True,
    ),
    # The head
    Behaviour("says nothing and closes", _sends(), DOUBT),
    Behaviour("no HTTP at all", _sends(b"220 mail.example ESMTP\r\n"), DOUBT),
    Behaviour("HTTP/0.9", _sends(b'{"status":"accepted"}'), DOUBT),
    Behaviour("a status that is no number", _sends(b"HTTP/1.1 OK\r\n\r\n"), DOUBT),
    Behaviour("a status with a sign", _sends(b"HTTP/1.1 +200 OK\r\n\r\n{}"), DOUBT),
    Behaviour("early hints instead of a reply", _sends(b"HTTP/1.1 103 Early Hints\r\n\r\n"), DOUBT),
    Behaviour(
        "early hints, then a reply",
        answers(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", a_reply()),
        OK,
        reusable=True,
    ),
    Behaviour("processing again and again", _drips(b"HTTP/1.1 102 Processing\r\n\r\n"), DOUBT),
    Behaviour(
        "interim replies without end", _without_end(b"HTTP/1.1 102 Processing\r\n\r\n" * 9), DOUBT
    ),
    Behaviour("a folded header", answers(a_reply(X="a\r\n b")), OK, reusable=True),
    Behaviour("an empty encoding", answers(a_reply(b"{}", Content_Encoding="")), OK, reusable=True),
    Behaviour("switches protocols", _sends(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), DOUBT),
    Behaviour("drips the head", _drips(b"X-A: 1\r\n", _HEAD), DOUBT),
    Behaviour("drips the status line", _drips(b"H"), DOUBT),
    Behaviour("headers without end", _without_end(b"X-A: 1\r\n" * 100, _HEAD), DOUBT),
    Behaviour("a header without end", _without_end(b"x" * 10_000, _HEAD + b"X: "), DOUBT),
    Behaviour("a header line that is none", _sends(_HEAD + b"nonsense\r\n\r\n{}"), DOUBT),
    Behaviour("a head that breaks off", _sends(b"HTTP/1.1 204 No Content\r\n"), DOUBT),
    Behaviour(
        "a carriage return in a header",
        _sends(_HEAD + b"X: a\rContent-Length: 2\r\n\r\n{}, no"),
        DOUBT,
    ),
    Behaviour(
        "long headers without end", _without_end(b"X: " + b"x" * 60_000 + b"\r\n", _HEAD), DOUBT
    ),
    Behaviour(
        "two lengths", _sends(_HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), DOUBT
    ),
    Behaviour("a length with a sign", _sends(_HEAD + b"Content-Length: +2\r\n\r\n{}"), DOUBT),
    Behaviour("a negative length", _sends(_HEAD + b"Content-Length: -1\r\n\r\n{}"), DOUBT),
    Behaviour("a length in letters", _sends(_HEAD + b"Content-Length: two\r\n\r\n{}"), DOUBT),
    Behaviour(
        "a length and chunks",
        _sends(
            _HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        ),
        DOUBT,
    ),
    Behaviour(
        "an encoding of the transfer that is unknown",
        _sends(_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        DOUBT,
    ),
    Behaviour(
        "an encoding of the transfer on a line of its own",
        _sends(_HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n{}"),
        DOUBT,
    ),
    # The body
    Behaviour("less than announced", _sends(_HEAD + b"Content-Length: 99\r\n\r\n{}"), DOUBT),
    Behaviour(
        "less than announced, and stays",
        _sends_and_stays(_HEAD + b"Content-Length: 9\r\n\r\n{}"),
        DOUBT,
    ),
    Behaviour("drips the body", _drips(b"x", _HEAD + b"Content-Length: 999\r\n\r\n"), DOUBT),
    Behaviour("a body without end", _without_end(b"x" * 65536, _HEAD + b"\r\n"), DOUBT),
    Behaviour("chunks without end", _without_end(b"1\r\nx\r\n" * 1000, _chunked()), DOUBT),
    Behaviour("a chunk with a sign", _sends(_chunked(b"+2\r\n{}\r\n0\r\n\r\n")), DOUBT),
    Behaviour("a chunk that is none", _sends(_chunked(b"zz\r\n{}\r\n0\r\n\r\n")), DOUBT),
    Behaviour("chunks that break off", _sends(_chunked(b"2\r\n{}\r\n")), DOUBT),
    Behaviour(
        "a chunk that is longer than it says", _sends(_chunked(b"2\r\n{}xx0\r\n\r\n")), DOUBT
    ),
    Behaviour("chunks without their last line", _sends(_chunked(b"2\r\n{}\r\n0\r\n")), DOUBT),
    Behaviour("a trailer without end", _without_end(b"X: 1\r\n" * 100, _chunked(b"0\r\n")), DOUBT),
    Behaviour("small chunks without end", _without_end(b"2\r\nxx\r\n" * 1000, _chunked()), DOUBT),
    Behaviour("chunks", answers(_chunked(b"2\r\n{}\r\n0\r\n\r\n")), OK, reusable=True),
    Behaviour("no length, and stays", _sends_and_stays(_HEAD + b"\r\n{}"), DOUBT),
    Behaviour("no length, and closes", _sends(_HEAD + b"\r\n{}"), OK),
    Behaviour("HTTP/1.0", _sends(b"HTTP/1.0 200 OK\r\n\r\n{}"), OK),
    Behaviour("Connection: close", _sends(a_reply(Connection="close")), OK),
    Behaviour("compressed", answers(a_reply(b"x" * 10, Content_Encoding="gzip")), DOUBT),
    Behaviour("longer than the cap", answers(a_reply(b"x" * 300_000)), DOUBT),
    Behaviour("nothing in it", answers(a_reply(b"", "204 No Content")), "204", reusable=True),
    # What comes after
    Behaviour("a second reply in the same packet", answers(a_reply() * 2), OK),
    Behaviour(
        "a redirect", answers(a_reply(b"", "302 Found", Location="/x")), "302", reusable=True
    ),
    Behaviour(
        "does not keep connections",
        answers(a_reply(Keep_Alive="timeout=1")),
        OK,
    ),
)
