"""One final response to one request, strictly: what could be read in two ways is not read at all.

Python's own reader takes the first of two lengths, a chunk's size with a sign, and an interim
response for the final one. A reply decides about an order; one that is odd decides nothing.
"""

import re
import ssl
from http.client import HTTPException, HTTPResponse
from typing import Any

_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
#: Longest line that announces a chunk, and the most chunks of a reply: a quarter of a million of
#: one byte each would take half a second of CPU, and everybody's.
_LONGEST, _MOST = 1024, 2000


class StrictResponse(HTTPResponse):
    """``http.client``'s, for connections that may be used again."""

    def __init__(self, sock: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self._socket = sock
        #: Bytes came after its end, that nobody asked for.
        self.is_followed = False
        self._chunks = 0

    def begin(self) -> None:
        """Read the head. Raises HTTPException for one that says two things, or nothing."""
        super().begin()
        if self.status < 200:
            raise HTTPException(f"an interim response, {self.status}, instead of a final one")
        if self.headers.defects:
            raise HTTPException(f"the head is not HTTP: {self.headers.defects[0]!r}")
        lengths = [value.strip() for value in self.headers.get_all("Content-Length", [])]
        encodings = [value.strip() for value in self.headers.get_all("Transfer-Encoding", [])]
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise HTTPException(f"not one length: {', '.join(lengths)}")
        if encodings and (lengths or [value.lower() for value in encodings] != ["chunked"]):
            raise HTTPException(f"not one encoding of the body: {', '.join(encodings)}")

    def _read_next_chunk_size(self) -> int:
        line = self.fp.readline(_LONGEST)
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise ValueError(f"a chunk of the size {line[:40]!r}")
        self._chunks += 1
        if self._chunks > _MOST:
            raise ValueError(f"more than {_MOST} chunks")
        return int(size[1], 16)

    def _close_conn(self) -> None:
        if self.fp is not None and not self.will_close:
            self.is_followed = self._something_follows()
        super()._close_conn()  # type: ignore[misc]

    def _something_follows(self) -> bool:
        """Whether more has been read, or can be, than the response."""
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            return bool(self.fp.peek(1))
        except ssl.SSLWantReadError:
            return False
        except (OSError, ValueError):
            return True  # its end, or worse: of no use any more
        finally:
            self._socket.settimeout(timeout)
