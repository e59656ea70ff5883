"""A request's head, as bytes: a merchant's template, filled with each request's values."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pos_gateway.transport.errors import Misconfigured

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_METHOD = re.compile(_NAME)
#: Without line ends, which would inject a header, and without unprintable characters.
_FIELD = re.compile(_NAME + r": [\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(r"[\x21-\x7e]+")
#: Characters forbidden in a head; line ends are counted apart.
_UNPRINTABLE = re.compile(r"[^\t\r\n\x20-\x7e\x80-\xff]")
#: Methods without a Content-Length where the body is missing; other methods send 0.
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class Head(NamedTuple):
    """The heads of requests to a host with the same header names and different values."""

    #: The requests' own headers.
    names: tuple[str, ...]
    #: The text, with ``%s`` for the target and each value; the header of each value; the line ends.
    template: str
    places: tuple[int, ...]
    lines: int

    @classmethod
    def of(
        cls, method: str, before: Mapping[str, str], names: tuple[str, ...], *, has_body: bool
    ) -> Self:
        """The head of requests with a method. The last header of a name counts, whatever the case.

        Args:
            method: the requests' method.
            before: headers of every request, replaced by ``names``.
            names: the requests' own headers.
            has_body: whether the requests have a body.

        Raises:
            Misconfigured: HTTP cannot carry a name.
        """
        said: dict[str, tuple[str, str | int]] = {
            name.lower(): (name, value) for name, value in before.items()
        }
        said.update({name.lower(): (name, place) for place, name in enumerate(names)})
        if has_body or method not in _WITHOUT_BODY:
            said["content-length"] = ("Content-Length", -1)
        if not _METHOD.fullmatch(method):
            raise Misconfigured("url", "its method has characters that cannot be sent")
        lines = [f"{method} %s HTTP/1.1"]
        places = []
        for name, value in said.values():
            line = f"{name}: {value}"
            if not _FIELD.fullmatch(line):
                raise Misconfigured("header", f"the header {name[:64]!r} cannot be sent")
            if isinstance(value, int):
                places.append(value)
                line = f"{name}: \0"
            lines.append(line.replace("%", "%%").replace("\0", "%s"))
        template = "\r\n".join((*lines, "", ""))
        return cls(names, template, tuple(places), len(lines) + 1)

    def filled(self, target: str, values: Sequence[str], length: int) -> bytes:
        """The request line, the headers, and the closing empty line.

        Args:
            target: the request target.
            values: the headers' values, in the order of ``names``.
            length: bytes of the body.

        Raises:
            Misconfigured: HTTP cannot carry the target or a value. The message omits the value, a
                possible secret.
        """
        if not _TARGET.fullmatch(target):
            raise Misconfigured("url", "its path or query has characters that cannot be sent")
        all_values = (*values, str(length))  # the length is last, at place -1
        text = self.template % (target, *[all_values[place] for place in self.places])
        lines = self.lines
        if text.count("\n") != lines or text.count("\r") != lines or _UNPRINTABLE.search(text):
            raise Misconfigured("header", f"the header {self._wrong(values)!r} cannot be sent")
        return text.encode("latin-1")

    def _wrong(self, values: Sequence[str]) -> str:
        """The name of the first header with an invalid value."""
        pairs = zip(self.names, values, strict=True)
        return next(name[:64] for name, value in pairs if not _FIELD.fullmatch(f"X: {value}"))


def host(name: str, port: int, scheme: str) -> str:
    """The value of the Host header: IPv6 addresses in brackets, international names in ASCII."""
    name = name.partition("%")[0] if name.isascii() else name.encode("idna").decode("ascii")
    if ":" in name:
        name = f"[{name}]"
    return name if port == {"http": 80, "https": 443}[scheme] else f"{name}:{port}"
