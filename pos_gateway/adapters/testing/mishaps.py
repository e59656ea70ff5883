"""Answers of a POS, a proxy or the network in place of a reply, and the kinds of outcome then."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.testing.wire import Mishap
from pos_gateway.domain.outcome import Kind
from pos_gateway.transport.errors import NotSent, NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply


class Case(NamedTuple):
    """A mishap, and the kinds of outcome without a contradiction to the mishap."""

    mishap: Mishap
    kinds: frozenset[Kind]
    remedy: str


_DOUBT = frozenset({Kind.IN_DOUBT})
_FINAL = frozenset({Kind.REJECTED, Kind.FAILED, Kind.IN_DOUBT})
_REFUSED = _FINAL | {Kind.RETRY}
_BY_STATUS = "return by_status(reply), unless the vendor documents another meaning of the status"
_UNREADABLE = "take the body from json_object(reply), and return in_doubt(…) where it is None"

#: The first byte of the request never left; the reply is lost before, and after, the POS acted.
NOT_SENT = Mishap("no connection", False, lambda _: NotSent("refused", "no connection"))
LOST_BEFORE = Mishap(
    "no reply in time, and nothing is done",
    False,
    lambda _: NoValidReply("timeout", "no reply within 10 s"),
)
LOST_AFTER = Mishap(
    "the connection is reset once all is done",
    True,
    lambda _: NoValidReply("broken_off", "the connection was reset"),
)
BROKEN_PROXY = Mishap(
    "a 502 once all is done",
    True,
    lambda _: Reply(502, {"content-type": "text/html"}, b"<html>Bad Gateway</html>"),
)
LOSSES = (NOT_SENT, LOST_BEFORE, LOST_AFTER, BROKEN_PROXY)


def answering(name: str, reply: Reply, *, is_done: bool) -> Mishap:
    """A mishap with a fixed reply."""
    return Mishap(name, is_done, lambda _: reply)


def statuses(limits: Limits) -> Iterator[Case]:
    """Replies explained by the status alone. The POS carries requests out before a 5xx."""
    for status in (301, 307):
        where = {"location": "https://elsewhere.example.com/"}
        yield _case(Reply(status, where, b""), frozenset({Kind.FAILED, Kind.IN_DOUBT}))
    yield _case(Reply(401, {}, b"{}"), _REFUSED - {Kind.REJECTED})
    for status in (403, 404, 405, 409, 410):
        yield _case(Reply(status, {}, b"{}"), _REFUSED)
    for status in (400, 413, 422):
        yield _case(Reply(status, {}, b"{}"), _FINAL)
    yield _case(Reply(429, {}, b"slow down"), frozenset({Kind.RETRY}))
    for status in (408, 500, 502, 503, 504, 600):
        if status in limits.unprocessed:
            yield _case(Reply(status, {}, b"{}"), frozenset({Kind.RETRY}))
        else:
            yield _case(Reply(status, {}, b"{}"), _DOUBT, is_done=True)


#: An ingress's, without a service behind: no word of the POS about any order.
INGRESS = answering(
    "a 404 that is a page",
    Reply(404, {"content-type": "text/html; charset=utf-8"}, b"<html>404 Not Found</html>"),
    is_done=True,
)


def unreadable(healthy: Reply | None) -> Iterator[Case]:
    """Unreliable successes; the POS has carried the request out.

    Args:
        healthy: the reply without a mishap; a reply without a body is not read.
    """
    if healthy is None or not healthy.body:
        return
    for what, body in _bodies(healthy.body):
        name = f"a {healthy.status} whose body is {what}"
        reply = Reply(healthy.status, {"content-type": "application/json"}, body)
        yield Case(answering(name, reply, is_done=True), _DOUBT, _UNREADABLE)


def _bodies(whole: bytes) -> Iterator[tuple[str, bytes]]:
    yield "HTML", b"<html><body>Please sign in</body></html>"
    yield "an empty text", b""
    yield "cut", whole[:-1]
    yield "null", b"null"
    yield "a number", b"7"
    yield "an empty object", b"{}"
    yield "an error alone", b'{"error":{"code":"x","message":"y"}}'
    yield "nothing but nesting", b"[" * 30_000
    if whole[:1] == b"{" and whole[1:2] != b"}":
        yield "JSON with a key that stands twice", b'{"x":1,"x":2,' + whole[1:]
        yield "JSON with NaN", b'{"x":NaN,' + whole[1:]
        yield "JSON with a number that is infinite", b'{"x":1e999,' + whole[1:]
        yield "JSON with a number of 5,000 digits", b'{"x":' + b"9" * 5000 + b"," + whole[1:]
        yield "JSON in bad UTF-8", b'{"x":"\xff",' + whole[1:]
        yield "JSON behind a byte order mark", b"\xef\xbb\xbf" + whole
        yield "JSON in a list", b"[" + whole + b"]"


def _case(reply: Reply, kinds: frozenset[Kind], *, is_done: bool = False) -> Case:
    return Case(answering(f"a {reply.status}", reply, is_done=is_done), kinds, _BY_STATUS)


#: In place of a value of this type: values of a wrong type, or no value.
_LEFT_OUT: Any = object()
_WRONG: dict[type, tuple[Any, ...]] = {
    str: (None, 7, "", [], _LEFT_OUT),
    int: (None, "x", -(10**30), {}, _LEFT_OUT),
    float: (None, "x", 1e300, [], _LEFT_OUT),
    bool: (None, "x", [], _LEFT_OUT),
    list: (None, 7, {}, [None], _LEFT_OUT),
    dict: (None, "x", [], {}, _LEFT_OUT),
}


def mistyped(healthy: Reply | None, most: int = 40) -> Iterator[Mishap]:
    """The reply with a value of a wrong type, or without the value; the POS did as asked.

    A null, false, 0 or empty value stays: a changed value may make a different, valid reply.

    Args:
        healthy: the reply without a mishap.
        most: maximum values to change.
    """
    try:
        whole = json.loads(healthy.body) if healthy is not None else None
    except ValueError:
        return
    for path, value in islice(_values(whole), most):
        for wrong in _WRONG[type(value)]:
            shown = "left out" if wrong is _LEFT_OUT else json.dumps(wrong)[:20]
            name = f"a reply whose {'.'.join(map(str, path))} is {shown}"
            yield Mishap(name, True, partial(_changed, path, wrong))


def _values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each non-empty value within a value, with the path."""
    members = value.items() if isinstance(value, dict) else enumerate(_list(value))
    for name, each in members:
        if each:
            yield (*path, name), each
            yield from _values(each, (*path, name))


def _list(value: Any) -> list[Any]:
    return value[:3] if isinstance(value, list) else []


def _changed(path: tuple[Any, ...], wrong: Any, reply: Reply | None) -> Reply | TransportError:
    """The POS's present reply, with a wrong value."""
    if reply is None:
        return NoValidReply("broken_off", "the connection was reset")
    whole = json.loads(reply.body)
    within = whole
    try:
        for part in path[:-1]:
            within = within[part]
        if wrong is _LEFT_OUT:
            del within[path[-1]]
        else:
            within[path[-1]] = wrong
    except (KeyError, IndexError, TypeError):  # the reply of another order has another form
        return reply
    return Reply(reply.status, reply.headers, json.dumps(whole).encode())
