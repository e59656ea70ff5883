"""A request's head, as bytes.

http.client makes it in sixty calls, a seventh of an exchange's CPU.
"""

import re
from collections.abc import Mapping

from pos_gateway.transport.errors import Misconfigured

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_METHOD = re.compile(_NAME)
#: No line ends, which would inject a header, and nothing unprintable.
_FIELD = re.compile(_NAME + r": [\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e]+")
#: Methods that send no Content-Length without a body; any other sends 0.
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


def head(method: str, target: str, fields: Mapping[str, str]) -> bytes:
    """The request line, its headers and the empty line behind them.

    Raises:
        Misconfigured: HTTP cannot carry it. A header's value is not in the message: it may be a
            secret.
    """
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise Misconfigured("url", "its path or query has characters that cannot be sent")
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in fields.items():
        line = f"{name}: {value}"
        if not _FIELD.fullmatch(line):
            raise Misconfigured("header", f"the header {name[:64]!r} cannot be sent")
        lines.append(line)
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def host(name: str, port: int, scheme: str) -> str:
    """The value of the Host header: IPv6 addresses in brackets, international names in ASCII."""
    name = name.partition("%")[0] if name.isascii() else name.encode("idna").decode("ascii")
    if ":" in name:
        name = f"[{name}]"
    return name if port == {"http": 80, "https": 443}[scheme] else f"{name}:{port}"


def framing(method: str, body: bytes | None) -> dict[str, str]:
    """The header with the body's length."""
    if body is None and method in _WITHOUT_BODY:
        return {}
    return {"Content-Length": str(len(body or b""))}
