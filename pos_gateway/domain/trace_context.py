"""W3C Trace Context: a parent span in two headers.

https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeGuard

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

#: Version, trace id, span id, flags. No id is all zeros, and no version is ff.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: Maximum characters and members of a tracestate, which is passed on unchanged.
MAX_STATE, MAX_MEMBERS = 512, 32
_KEY = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf" *{_KEY}={_VALUE} *")


class TraceContext(NamedTuple):
    """The parent span. Well formed: ``of`` drops anything else."""

    parent: str
    state: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> Self | None:
        """The headers' trace context; None: absent, or malformed."""
        parent = headers.get(TRACEPARENT)
        if not isinstance(parent, str) or not _PARENT.fullmatch(parent):
            return None
        state = headers.get(TRACESTATE)
        return cls(parent, state) if _is_state(state) else cls(parent)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """The inverse of ``str``; None: malformed."""
        parent, _, state = text.partition(" ")
        return cls.of({TRACEPARENT: parent, TRACESTATE: state})

    @property
    def headers(self) -> dict[str, str]:
        """As headers."""
        headers = {TRACEPARENT: self.parent}
        if self.state:
            headers[TRACESTATE] = self.state
        return headers

    def __str__(self) -> str:
        return f"{self.parent} {self.state}" if self.state else self.parent


def _is_state(value: Any) -> TypeGuard[str]:
    if not isinstance(value, str) or len(value) > MAX_STATE:
        return False
    members = value.split(",")
    return len(members) <= MAX_MEMBERS and all(map(_MEMBER.fullmatch, members))
