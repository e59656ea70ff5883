"""Requests to POSes, and replies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

#: Longest reply bodies, in bytes: an acknowledgement's (the default), and the maximum for a
#: request to ask for. Reading 256 KiB of JSON takes as long as a hundred small orders.
ACKNOWLEDGEMENT, BODY_LIMIT = 32 * 1024, 256 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``url`` is absolute."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Maximum bytes of the reply's body; a refusal's is never above ACKNOWLEDGEMENT.
    expects: int = ACKNOWLEDGEMENT
    #: A search changes nothing at the POS, though the method is not GET.
    is_search: bool = False
    #: Seconds for the exchange, if fewer than the call's rest: for a look optional to the call.
    seconds: float = inf

    @property
    def changes(self) -> bool:
        """Whether the request may change something at the POS."""
        return self.method != "GET" and not self.is_search

    @property
    def is_look(self) -> bool:
        """Whether the call can do without the reply."""
        return self.seconds < inf

    def adding(self, headers: Mapping[str, str]) -> "Request":
        """The request with more headers."""
        return replace(self, headers={**self.headers, **headers}) if headers else self


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


#: Exchanges a request for a reply. Raises TransportError.
Exchange = Callable[[Request], Reply]
