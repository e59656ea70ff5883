"""Refusals of requests: problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import ceil
from typing import Any

from pydantic_core import to_json

from pos_gateway.domain.errors import ABSENT, FieldError, InvalidRecord

CONTENT_TYPE = b"application/problem+json"
#: The prefix of a problem's type; its code follows.
TYPE = "urn:pos-gateway:problem:"
#: Maximum characters of a field's value that are repeated.
_SHOWN = 80


class Problem(Exception):
    """Why a request is refused. A person can act on ``detail``, a program on ``code``.

    Args:
        status: HTTP's.
        code: stable, in snake case.
        detail: a sentence with the remedy.
        errors: the wrong fields.
        retry_after: seconds until the request may succeed.
        close: the rest of the request is not read: the connection is closed after the reply.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(status, code, detail)
        self.status, self.code, self.detail = status, code, detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        self.close = close
        self._headers = dict(headers or {})

    def content(self) -> dict[str, Any]:
        """As JSON has it."""
        content: dict[str, Any] = {
            "type": TYPE + self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.errors:
            content["errors"] = [_shown(error) for error in self.errors]
        return content

    def body(self) -> bytes:
        """As JSON."""
        return to_json(self.content())

    def headers(self) -> list[tuple[bytes, bytes]]:
        """All but the body's length."""
        headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, ceil(self.retry_after))))
        if self.close:
            headers.append((b"connection", b"close"))
        headers += [(name.encode(), value.encode()) for name, value in self._headers.items()]
        return headers


def invalid(error: InvalidRecord, what: str) -> Problem:
    """422 for a record that breaks the contract."""
    return Problem(
        422,
        f"invalid_{what.replace(' ', '_')}",
        f"the {what} breaks the contract: " + "; ".join(map(str, error.errors)),
        errors=error.errors,
    )


def _shown(error: FieldError) -> dict[str, Any]:
    shown: dict[str, Any] = {"field": error.field, "problem": error.problem}
    if error.value is not ABSENT and isinstance(error.value, str | int | float | bool | None):
        value = error.value
        shown["value"] = value[:_SHOWN] if isinstance(value, str) else value
    return shown
