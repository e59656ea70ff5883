"""One final response to one request, parsed strictly: an ambiguous one is an error.

Python's parser takes the first of two lengths, a status or a chunk size with a sign, any two bytes
after a chunk, and an interim response for the final one. A reply decides about an order; an odd one
decides nothing. Errors quote nothing of a reply: they are kept with the order, and it may hold
personal data.
"""

import re
import ssl
from http import HTTPStatus
from http.client import (
    HTTPException,
    HTTPResponse,
    IncompleteRead,
    RemoteDisconnected,
)
from typing import Any

from pos_gateway.runtime.green import cooperatively
from pos_gateway.telemetry import stages

#: Longest head in bytes, interim ones included. Python's limit, 100 lines of 64 KiB, would let a
#: few hundred peers fill the memory.
HEAD_LIMIT = 64 * 1024
#: Longest chunk header or trailer line, most chunks (the last one included), and most trailer
#: lines.
_LONGEST, _CHUNKS, _TRAILERS = 1024, 2000, 100
#: Chunks read before yielding to other green threads: a peer whose chunks are all there never makes
#: this one wait.
_YIELD_EVERY = 200
#: Maximum headers, as in Python's parser.
_FIELDS = 100

_STATUS = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r?\n")
# Possessive: with backtracking, many blanks would take quadratic time.
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([\t\x20-\x7e\x80-\xff]*)\r?\n")
_END = re.compile(rb"\r?\n")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r?\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class StrictResponse(HTTPResponse):
    """``http.client``'s, for connections that may be reused."""

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        #: The socket it is read from, which it may own by now.
        self.socket = sock
        #: Headers by lower-case name, each with all its values. http.client's are the e-mail
        #: parser's, which takes half the time of a reply.
        self.fields: dict[str, list[str]] = {}
        #: Unsolicited bytes followed it.
        self.is_followed = False

    def begin(self) -> None:
        """Read the head. Raises HTTPException for an ambiguous or invalid one."""
        head = _Head(self.fp)
        minor, self.status, self.reason = head.status()
        stages.replied()
        self.fields = head.fields()
        while self.status == HTTPStatus.CONTINUE:  # unsolicited, and without meaning
            minor, self.status, self.reason = head.status()
            self.fields = head.fields()
        if self.status < HTTPStatus.OK:
            raise HTTPException(f"an interim response, {self.status}, instead of a final one")
        self.code, self.version = self.status, 11 if minor else 10
        lengths = self.fields.get("content-length", [])
        encodings = self.fields.get("transfer-encoding", [])
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise HTTPException("not one length of the body")
        if encodings and (lengths or [value.lower() for value in encodings] != ["chunked"]):
            raise HTTPException("not one encoding of the body")
        self.chunked, self.chunk_left = bool(encodings), None
        self.length = int(lengths[0]) if lengths else None
        if self.status in _WITHOUT_BODY or self._method == "HEAD":  # type: ignore[attr-defined]
            self.length = 0
        ends = self.chunked or self.length is not None
        self.will_close = not (ends and self._stays_open())

    def _stays_open(self) -> bool:
        """Whether the peer keeps the connection for another exchange."""
        said = ",".join(self.fields.get("connection", ())).lower()
        if self.version == 11:
            return "close" not in said
        return "keep-alive" in self.fields or "keep-alive" in said

    def _read_chunked(self, amt: int | None = None) -> bytes:
        # In http.client's list of pieces, two-byte pieces take twenty times their size.
        body = bytearray()
        for _ in cooperatively(range(_CHUNKS), _YIELD_EVERY):
            if amt is not None and len(body) >= amt:
                return bytes(body)
            left = self._get_chunk_left()
            if left is None:
                return bytes(body)
            size = left if amt is None else min(left, amt - len(body))
            body += self._safe_read(size)  # type: ignore[attr-defined]
            self.chunk_left = left - size
        raise HTTPException(f"more than {_CHUNKS} chunks")

    def _get_chunk_left(self) -> int | None:
        """Bytes left of this chunk, or the size of the next; None after the last one."""
        if self.chunk_left:
            return self.chunk_left
        if self.chunk_left == 0 and self._safe_read(2) != b"\r\n":  # type: ignore[attr-defined]
            raise HTTPException("a chunk is longer than it says")
        self.chunk_left: int | None = self._read_next_chunk_size() or None
        if self.chunk_left is None:
            self._read_and_discard_trailer()
            self._close_conn()
        return self.chunk_left

    def _read_next_chunk_size(self) -> int:
        size = _CHUNK.fullmatch(self.fp.readline(_LONGEST))
        if size is None:
            raise HTTPException("a chunk without a size")
        return int(size[1], 16)

    def _read_and_discard_trailer(self) -> None:
        for _ in range(_TRAILERS):
            line = self.fp.readline(_LONGEST)
            if _END.fullmatch(line):
                return
            if not _FIELD.fullmatch(line):
                raise IncompleteRead(b"")
        raise HTTPException("a trailer without end")

    def _close_conn(self) -> None:
        if self.fp is not None and not self.will_close:
            self.is_followed = self._something_follows()
        super()._close_conn()  # type: ignore[misc]

    def _something_follows(self) -> bool:
        """Whether bytes follow the response, or the connection has ended."""
        timeout = self.socket.gettimeout()
        self.socket.settimeout(0)
        try:
            return bool(self.fp.peek(1))
        except ssl.SSLWantReadError:
            return False
        except (OSError, ValueError):
            return True  # ended or broken: not reusable
        finally:
            self.socket.settimeout(timeout)


class _Head:
    """The lines of a response's head, and of interim ones before it, checked one by one."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self._left = HEAD_LIMIT

    def status(self) -> tuple[int, int, str]:
        """The minor version, the status and the reason phrase."""
        line = self._line()
        if not line:
            raise RemoteDisconnected("closed without a reply")
        said = _matched(_STATUS, line)
        return int(said[1]), int(said[2]), (said[3] or b"").decode("latin-1").strip()

    def fields(self) -> dict[str, list[str]]:
        """The headers up to the empty line, by lower-case name."""
        fields: dict[str, list[str]] = {}
        for _ in range(_FIELDS + 1):
            line = self._line()
            if _END.fullmatch(line):
                return fields
            field = _matched(_FIELD, line)
            value = field[2].decode("latin-1").rstrip(" \t")
            fields.setdefault(field[1].decode("latin-1").lower(), []).append(value)
        raise HTTPException(f"more than {_FIELDS} fields")

    def _line(self) -> bytes:
        line: bytes = self._lines.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException(f"the head is longer than {HEAD_LIMIT} bytes")
        return line


def _matched(pattern: re.Pattern[bytes], line: bytes) -> re.Match[bytes]:
    found = pattern.fullmatch(line)
    if found is None and not line.endswith(b"\n"):
        raise IncompleteRead(line)
    if found is None:
        raise HTTPException("the head is not HTTP")
    return found
