"""A request's URL: the host to connect to, and the request target."""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from pos_gateway.transport.errors import Misconfigured

#: Maximum URLs remembered: creates need a URL for each merchant.
_REMEMBERED = 2048
_PORTS = {"http": 80, "https": 443}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Location(NamedTuple):
    """Where a URL points."""

    scheme: str
    #: Host and port as written.
    netloc: str
    #: The request target: path and query, percent-encoded where needed.
    target: str


@lru_cache(maxsize=_REMEMBERED)
def located(url: str) -> Location:
    """Split a URL. Raises ValueError: the text has no form of a URL."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return Location(parts.scheme, parts.netloc, _quoted((parts.path or "/") + query))


def host_and_port(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL.

    Raises:
        Misconfigured: no http(s) URL.
        ValueError: no URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise Misconfigured("url", f"{url!r} is not an http(s) URL")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def _quoted(text: str) -> str:
    """The text with characters forbidden in a target percent-encoded, and nothing encoded twice."""
    return quote(_ESCAPE.sub(_escape, text), safe="!#$%&'()*+,/:;=?@[]~")


def _escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return "%25"
    character = chr(int(found[1], 16))
    return character if character in _UNRESERVED else found[0]
