"""A request's head: from a URL and headers to bytes."""

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, urlsplit

from pos_gateway import __version__
from pos_gateway.transport.errors import Misconfigured

#: Maximum URLs remembered: creates need a URL for each merchant.
_REMEMBERED = 2048
_PORTS = {"http": 80, "https": 443}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(_NAME + r" [\x21-\x7e]+ HTTP/1\.1")
#: Without line ends, which would inject a header, and without unprintable characters.
_FIELD = re.compile(_NAME + r": [\t\x20-\x7e\x80-\xff]*")
#: Methods without a Content-Length where the body is missing; other methods send 0.
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})
#: Fields of every request, unless the request has its own.
_DEFAULTS = {
    "user-agent": f"User-Agent: pos-gateway/{__version__}",
    "accept": "Accept: application/json",
    "accept-encoding": "Accept-Encoding: identity",
}


def head(method: str, target: str, host: str, own: Mapping[str, str], body: bytes | None) -> bytes:
    """The request line, the headers, and the closing empty line.

    Args:
        method: the request's method.
        target: the request target.
        host: the value of the Host header.
        own: the request's own headers. The last header of a name counts, whatever the case.
        body: the request's body, if any.

    Raises:
        Misconfigured: HTTP cannot carry the method, the target, or a header. The message omits a
            header's value, a possible secret.
    """
    request_line = f"{method} {target} HTTP/1.1"
    if not _REQUEST_LINE.fullmatch(request_line):
        raise Misconfigured("url", "its method, path or query has characters that cannot be sent")
    fields = {"host": f"Host: {host}", **_DEFAULTS}
    for name, value in own.items():
        fields[name.lower()] = f"{name}: {value}"
    if body is not None or method not in _WITHOUT_BODY:
        fields["content-length"] = f"Content-Length: {len(body or b'')}"
    for name, field in fields.items():
        if not _FIELD.fullmatch(field):
            raise Misconfigured("header", f"the header {name[:64]!r} cannot be sent")
    return "\r\n".join((request_line, *fields.values(), "", "")).encode("latin-1")


@lru_cache(maxsize=_REMEMBERED)
def located(url: str) -> tuple[str, str, str]:
    """The scheme, host and port as written, and request target, percent-encoded where needed.

    Raises:
        ValueError: the text has no form of a URL.
    """
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme, parts.netloc, _quoted((parts.path or "/") + query)


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


def host_header(name: str, port: int, scheme: str) -> str:
    """The value of the Host header: IPv6 addresses in brackets, international names in ASCII."""
    name = name.partition("%")[0] if name.isascii() else name.encode("idna").decode("ascii")
    if ":" in name:
        name = f"[{name}]"
    return name if port == _PORTS[scheme] else f"{name}:{port}"
