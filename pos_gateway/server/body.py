"""Reads a request's body: all of it, or a problem. ``uvicorn_internals.py`` bounds its time."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from pos_gateway.server.problems import Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Disconnected(Exception):
    """The client went away before its request was read: no reply can be sent."""


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """A header's value; None: absent. Raises Problem if it comes twice.

    Of two, a proxy may have checked the one that we do not read.
    """
    found: bytes | None = None
    for each, value in headers:
        if each == name:
            if found is not None:
                raise Problem(400, "repeated_header", f"the header {name.decode()} comes twice")
            found = value
    return found


def has_body(scope: Scope) -> bool:
    """Whether the request comes with a body; a chunked one may be empty."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in scope["headers"]
    )


async def read_body(
    scope: Scope,
    receive: Receive,
    limit: int,
    *,
    content_types: tuple[bytes, ...] = (),
    count: Callable[[int], None],
    setting: str = "",
) -> bytes:
    """The request's whole body.

    Args:
        limit: maximum bytes.
        content_types: those that are taken, without parameters; empty: any.
        setting: the variable that the limit comes from, if it is one.
        count: called with the number of bytes as they come. May raise Problem.

    Raises:
        Problem: 400, 413 or 415; what ``count`` raises.
        Disconnected: the client is gone.
    """
    headers = scope["headers"]
    _require_type(headers, content_types)
    length = header(headers, b"content-length")
    if length is not None and int(length) > limit:  # the parser has refused what is no number
        raise _too_large(limit, setting)
    body, has_more = bytearray(), True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        body += message["body"]
        count(len(message["body"]))
        if len(body) > limit:
            raise _too_large(limit, setting)
        has_more = message["more_body"]
    return bytes(body)


async def disconnected(receive: Receive) -> None:
    """Return once the client is gone; what it still sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _require_type(headers: Iterable[tuple[bytes, bytes]], content_types: tuple[bytes, ...]) -> None:
    content_type = header(headers, b"content-type")
    is_taken = (content_type or b"").split(b";")[0].strip().lower() in content_types
    if content_types and not is_taken:
        wanted = " or ".join(each.decode() for each in content_types)
        detail = f"the request's Content-Type should be {wanted}"
        raise Problem(415, "unsupported_media_type", detail, close=True)
    coding = header(headers, b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        detail = "a compressed body is not taken: send it without Content-Encoding"
        raise Problem(415, "unsupported_encoding", detail, close=True)


def _too_large(limit: int, setting: str) -> Problem:
    remedy = f"; {setting} would have to be larger" if setting else ""
    detail = f"the request's body has more than {limit} bytes{remedy}"
    return Problem(413, "too_large", detail, close=True)
