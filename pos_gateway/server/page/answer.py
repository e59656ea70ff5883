"""What a page's request is answered with."""

from typing import NamedTuple

from pos_gateway.server.body import Send
from pos_gateway.server.page.security import HEADERS, NO_STORE
from pos_gateway.server.unread import reply


class PageResponse(NamedTuple):
    """Status, body, and the headers beside those of every page."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]

    async def send(self, send: Send) -> None:
        """Send it."""
        await reply(self.status, self.body, [*self.headers, *HEADERS], send)


def html(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> PageResponse:
    """A page, which no cache keeps."""
    content_type = (b"content-type", b"text/html; charset=utf-8")
    return PageResponse(status, body, [content_type, NO_STORE, *headers])


def redirect(address: str, *headers: tuple[bytes, bytes]) -> PageResponse:
    """Have the browser GET this path."""
    return PageResponse(303, b"", [(b"location", address.encode("ascii")), NO_STORE, *headers])
