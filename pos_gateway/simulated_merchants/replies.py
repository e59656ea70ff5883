"""HTTP replies as bytes, ready to be written in one go."""

import json
from http import HTTPStatus
from typing import NamedTuple


class CountedReply(NamedTuple):
    """A reply and the status that it is counted under."""

    status: str
    data: bytes


def reply(status: int, body: bytes, *headers: str) -> CountedReply:
    """A complete JSON reply; ``headers`` are whole lines without their line ends."""
    head = _head(status) + "".join(f"{line}\r\n" for line in headers).encode()
    return CountedReply(str(status), b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))


def json_reply(status: int, value: object) -> CountedReply:
    """A reply whose body is ``value``, compactly."""
    return reply(status, json.dumps(value, separators=(",", ":")).encode())


def error_reply(status: int, code: str, message: str, *headers: str) -> CountedReply:
    """The reference API's ``{"error": {"code", "message"}}``."""
    return reply(
        status, json.dumps({"error": {"code": code, "message": message}}).encode(), *headers
    )


def order_reply(status: int, external_id: int, state: str) -> CountedReply:
    """The reference API's ``{"id", "status"}``: the reply that most requests get."""
    body = b'{"id":"pos-%d","status":"%b"}' % (external_id, state.encode())
    return CountedReply(
        _LABELS[status], b"%bContent-Length: %d\r\n\r\n%b" % (_HEADS[status], len(body), body)
    )


def _head(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n".encode()


# Built once: these two are on the path of every healthy request.
_HEADS = {status: _head(status) for status in (200, 201)}
_LABELS = {status: str(status) for status in _HEADS}

NOT_FOUND = error_reply(404, "not_found", "there is nothing here by that name")
NOT_ALLOWED = error_reply(405, "method_not_allowed", "this cannot be done here")
PENDING = reply(202, b'{"status":"pending"}')
