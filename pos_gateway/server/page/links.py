"""Paths with ids in them, which are data: written and read in one place.

A browser takes ``.`` and ``..`` for steps between folders, even percent-encoded, and ids may be so:
these begin with ``=`` in a path, as does an id that begins with it.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlencode

_PLACE = re.compile(r"\{([a-z_]+)\}")


def link(pattern: str, *ids: str, **query: str) -> str:
    """A path: ``link("/merchants/{}", merchant_id, after="7")``."""
    path = pattern.format(*map(segment, ids))
    return f"{path}?{urlencode(query)}" if query else path


def segment(text: str) -> str:
    """An id as a path has it."""
    escaped = text in (".", "..", "") or text.startswith("=")
    return ("=" if escaped else "") + quote(text, safe="", errors="replace")


def from_segment(text: str) -> str:
    """The id in a path."""
    return unquote(text).removeprefix("=") if text.startswith("=") else unquote(text)


class Pattern:
    """A path with places for ids: ``/merchants/{merchant_id}/pause``."""

    def __init__(self, path: str) -> None:
        self.path = path
        parts = _PLACE.split(path)  # every second one is a name
        self.names = parts[1::2]
        fixed = [re.escape(each) for each in parts[::2]]
        self._matcher = re.compile("([^/]+)".join(fixed))

    def match(self, path: str) -> Mapping[str, str] | None:
        """The ids in a path that is not decoded; None: it is another path."""
        found = self._matcher.fullmatch(path)
        if found is None:
            return None
        ids = dict(zip(self.names, map(from_segment, found.groups()), strict=True))
        # PostgreSQL's text cannot have a NUL: no id has one.
        return None if any("\0" in each for each in ids.values()) else ids
