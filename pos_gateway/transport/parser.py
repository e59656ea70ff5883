"""A request's final reply, parsed strictly from a single buffer: an ambiguous reply is an error.

A reply decides about an order; an odd reply decides nothing. Errors are kept with the order, and
quote nothing of a reply, where personal data may be.
"""

import re
from collections.abc import Callable, Mapping

from pos_gateway.runtime.green import cooperatively
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.messages import ACKNOWLEDGEMENT, Reply

#: Seconds for which an idle connection may be reused: the default, and the maximum if the peer
#: states a keep-alive. The default is less than the 5 s of Apache, Node and uvicorn: a request sent
#: into a close is in doubt.
IDLE, LONGEST_IDLE = 4.0, 60.0
#: Longest head in bytes, interim replies included: a few hundred peers must not fill the memory.
HEAD_LIMIT = 64 * 1024
#: Maximum headers, and maximum interim replies before the final reply.
_FIELDS, _INTERIM = 100, 100
#: Longest chunk header or trailer line in bytes, maximum chunks (the last included), and maximum
#: trailer lines.
_LONGEST, _CHUNKS, _TRAILERS = 1024, 2000, 100
#: Chunks read before yielding to other green threads: the reader of chunks already received never
#: waits.
_YIELD_EVERY = 200

_STATUS = rb"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*+)?"
# Possessive: with backtracking, many blanks would take quadratic time.
_FIELD = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t\x20-\x7e\x80-\xff]*+"
# A field's further line. Some readers take a line of blanks alone for the end of the head.
_FOLDED = rb"[ \t]++[\x21-\x7e\x80-\xff][\t\x20-\x7e\x80-\xff]*+"
# Fields about the reply's end: readers without unfolding would see a different end.
_FRAMING = re.compile(rb"(?:content-length|transfer-encoding):", re.IGNORECASE)


class _Lines:
    """The patterns of a head with equal line ends. A head with both line ends is ambiguous."""

    def __init__(self, end: bytes) -> None:
        self.end, self.text = end, end.decode()
        self.status = re.compile(_STATUS + end)
        self.field = re.compile(_FIELD + end)
        self.folded = re.compile(_FOLDED + end)
        self.head = re.compile(_STATUS + end + rb"((?:" + _FIELD + end + rb")*+)" + end)


_CRLF, _LF = _Lines(b"\r\n"), _Lines(b"\n")
_whole_head = _CRLF.head.match
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*+(?:;[\t\x20-\x7e\x80-\xff]*+)?\r\n")
_TRAILER = re.compile(rb"((?:" + _FIELD + rb")?)\r\n")
#: Content codings without an effect on the body.
_PLAIN = frozenset({"", "identity", "none", "utf-8", "utf8"})
#: Headers with a list of values, also if repeated.
_LISTS = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding"})
_LENGTH = re.compile(r"[0-9]{1,18}")
_KEEP_ALIVE = re.compile(r"(?:^|[\s,])timeout\s*=\s*([0-9]{1,6})\b", re.IGNORECASE)

#: Waits for the connection's next bytes, and returns them; empty at the end.
Receive = Callable[[], bytes]


def read_reply(first: bytes, receive: Receive, method: str, expects: int) -> tuple[Reply, float]:
    """The reply to a request with ``method``, read to the exchange's end.

    Header names are in lower case; of a repeated header, the last value counts. Headers about
    the reply's end, encoding and connection count with all values. The number is the seconds until
    the end of the connection's reuse; 0: not at all.

    Args:
        first: the first bytes after the request.
        receive: reads further bytes.
        method: the request's method: a reply to HEAD has no body, whatever the length.
        expects: maximum bytes of the body; for a refusal never above ``ACKNOWLEDGEMENT``.

    Raises:
        NoValidReply: the reply is incomplete, invalid, or ambiguous between two readers.
    """
    head, end = _whole_head(first), _CRLF.text
    data: bytes | bytearray = first
    if head is None or head[2] < b"200" or head.end() > HEAD_LIMIT:
        head, end, data = _slowly(first, receive)
    status, minor, at = int(head[2]), head[1], head.end()
    if status < 200:
        raise _invalid("the peer switches to another protocol")
    headers = _fields(head[3], end)
    if status >= 400:  # a refusal has no order in it, and no page of orders
        expects = min(expects, ACKNOWLEDGEMENT)

    length = headers.get("content-length")
    encoding = headers.get("transfer-encoding")
    coding = headers.get("content-encoding")
    if coding and not _is_plain(coding):
        raise NoValidReply("encoding", "the reply is encoded although identity was asked for")
    if length is not None and not _LENGTH.fullmatch(length):
        raise _invalid("not one length of the body")
    if encoding is not None and (
        length is not None or encoding.lower() != "chunked" or status == 204
    ):
        raise _invalid("not one encoding of the body")

    is_kept = _stays_open(minor, headers)
    if status in (204, 304) or method == "HEAD":
        # A body announced by a 204 would be read as the next reply.
        is_kept = is_kept and len(data) == at and not (status == 204 and int(length or 0))
        body = b""
    elif encoding is not None:
        body, left = _unchunked(data[at:], receive, expects)
        is_kept = is_kept and not left and minor != b"0"
    elif length is not None:
        body, left = _sized(data[at:], receive, int(length), expects)
        is_kept = is_kept and not left
    else:
        body, is_kept = _to_the_end(data[at:], receive, expects), False
    seconds = _kept(headers["keep-alive"]) if "keep-alive" in headers else IDLE
    return Reply(status, headers, body), seconds if is_kept else 0.0


def _slowly(first: bytes, receive: Receive) -> tuple[re.Match[bytes], str, bytearray]:
    """The head of a reply that is folded, arrives in pieces, or follows interim replies.

    Each line is checked as soon as complete: a peer that is no POS is given up at once.
    """
    data, start = bytearray(first), 0
    for _ in range(_INTERIM + 1):
        lines, field, checked = None, b"", start
        while True:
            line_end = data.find(b"\n", checked) + 1
            if max(line_end, 0 if line_end else len(data)) > HEAD_LIMIT:
                raise _invalid(f"the head is longer than {HEAD_LIMIT} bytes")
            if not line_end:
                data += _more(data, start, receive)
                continue
            line = bytes(data[checked:line_end])
            begin, checked = checked, line_end
            if lines is None:
                lines = _CRLF if line.endswith(b"\r\n") else _LF
                if not lines.status.fullmatch(line):
                    raise _invalid("the head is not HTTP")
            elif line == lines.end:
                break
            elif lines.field.fullmatch(line):
                field = line
            elif field and lines.folded.fullmatch(line) and not _FRAMING.match(field):
                data[begin - len(lines.end) : begin] = b" " * len(lines.end)  # RFC 9112, 5.2
            else:
                raise _invalid("the head is not HTTP")
        head = lines.head.match(data, start)
        if head is None or head.end() != checked:  # a bug of ours: all lines were checked
            raise _invalid("the head is not HTTP")
        if head[2] >= b"200" or head[2] == b"101":
            return head, lines.text, data
        _fields(head[3], lines.text)
        start = checked  # an interim reply: unsolicited, and without meaning (RFC 9110, 15.2)
    raise _invalid(f"more than {_INTERIM} interim replies")


def _more(data: bytearray, start: int, receive: Receive) -> bytes:
    more = receive()
    if not more:
        if len(data) == start:
            raise NoValidReply("broken_off", "closed without a reply")
        raise NoValidReply("cut", "the head ends too early")
    return more


def _fields(text: bytes, end: str) -> dict[str, str]:
    """The headers. Python's e-mail parser would be slow."""
    headers: dict[str, str] = {}
    lines = text.decode("latin-1").split(end)
    if len(lines) > _FIELDS + 1:
        raise _invalid(f"more than {_FIELDS} fields")
    del lines[-1]
    for line in lines:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in _LISTS:
            value = f"{headers[name]},{value}"
        headers[name] = value
    return headers


def _is_plain(coding: str) -> bool:
    """Whether the body needs no decoding: some servers name a charset as the coding, or nothing."""
    return all(each.strip(" \t").lower() in _PLAIN for each in coding.split(","))


def _stays_open(minor: bytes, headers: Mapping[str, str]) -> bool:
    """Whether the peer keeps the connection for another exchange."""
    said = headers.get("connection", "").lower()
    return "close" not in said and (
        minor != b"0" or "keep-alive" in headers or "keep-alive" in said
    )


def _kept(text: str) -> float:
    """Seconds until the end of an idle connection's reuse, by the peer's Keep-Alive header."""
    said = _KEEP_ALIVE.search(text)
    return IDLE if said is None else max(0.0, min(float(said[1]), LONGEST_IDLE) - 1)


def _sized(data: bytes | bytearray, receive: Receive, length: int, most: int) -> tuple[bytes, bool]:
    """A body of a known length, and whether anything follows."""
    if length > most:
        raise _too_long(most)
    if len(data) >= length:
        return bytes(data[:length]), len(data) > length
    body = bytearray(data)
    while len(body) < length:
        more = receive()
        if not more:
            raise NoValidReply("cut", f"the reply ends {length - len(body)} bytes too early")
        body += more
    return bytes(body[:length]), len(body) > length


def _to_the_end(data: bytes | bytearray, receive: Receive, most: int) -> bytes:
    """A body up to the connection's end."""
    body = bytearray(data)
    while len(body) <= most:
        more = receive()
        if not more:
            return bytes(body)
        body += more
    raise _too_long(most)


def _unchunked(first: bytes | bytearray, receive: Receive, most: int) -> tuple[bytes, bool]:
    """A body in chunks, and whether anything follows."""
    data, body = bytearray(first), bytearray()
    for _ in cooperatively(range(_CHUNKS), _YIELD_EVERY):
        size = int(_line(data, receive, _CHUNK, "a chunk without a size"), 16)
        if not size:
            for _ in range(_TRAILERS):
                if not _line(data, receive, _TRAILER, "a trailer that is no field"):
                    return bytes(body), bool(data)
            raise _invalid("a trailer without end")
        if len(body) + size > most:
            raise _too_long(most)
        while len(data) < size + 2:
            data += _next(receive)
        if data[size : size + 2] != b"\r\n":
            raise _invalid("a chunk is longer than it says")
        body += data[:size]
        del data[: size + 2]
    raise _invalid(f"more than {_CHUNKS} chunks")


def _line(data: bytearray, receive: Receive, pattern: re.Pattern[bytes], problem: str) -> bytes:
    """Take the next line off ``data``, and return the pattern's group. Raises NoValidReply: no match."""
    while True:
        found = pattern.match(data)
        if found is not None and found.end() <= _LONGEST:
            group: bytes = found[1]
            del data[: found.end()]
            return group
        if b"\n" in data or len(data) >= _LONGEST:
            raise _invalid(problem)
        data += _next(receive)


def _next(receive: Receive) -> bytes:
    more = receive()
    if not more:
        raise NoValidReply("cut", "the reply ends within its chunks")
    return more


def _invalid(problem: str) -> NoValidReply:
    return NoValidReply("invalid_reply", problem)


def _too_long(most: int) -> NoValidReply:
    return NoValidReply("reply_too_long", f"the reply is longer than {most} bytes")
