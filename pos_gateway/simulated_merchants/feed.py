"""What has happened to orders lately, for a client that follows it live."""

from collections import deque
from itertools import islice
from typing import Any, NamedTuple

#: Entries that are kept. Who asks once a second follows 5,000 orders a second.
_KEPT = 10_000
#: Entries in one answer; there is more at once.
_PAGE = 2000


class FeedEntry(NamedTuple):
    """An order has arrived for the first time (``creates`` is 0), or been made once more."""

    merchant: str
    order_id: str
    creates: int
    #: Wall-clock time.
    at: float


class Feed:
    """The newest entries, numbered from 0."""

    def __init__(self) -> None:
        self._entries: deque[FeedEntry] = deque(maxlen=_KEPT)
        self._next = 0

    def tell(self, entry: FeedEntry) -> None:
        """Something has happened."""
        self._entries.append(entry)
        self._next += 1

    def since(self, number: int) -> dict[str, Any]:
        """The entries from that number on, where to go on, and how many of them are gone."""
        wanted = self._next - max(0, number)
        there = max(0, min(wanted, len(self._entries)))
        page = list(islice(reversed(self._entries), there - min(there, _PAGE), there))[::-1]
        return {
            "entries": page,
            "next": self._next - there + len(page),
            "missed": max(0, wanted - there),
        }
