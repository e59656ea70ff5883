"""The seam between a simulated vendor and the ways to reach the vendor: one request, one reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class VendorRequest:
    """A request as it arrived.

    Attributes:
        path: decoded, without the query.
        query: each parameter's values, in order.
        headers: names in lower case.
    """

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class VendorReply:
    """A reply.

    Attributes:
        body: a JSON value; None: no body.
    """

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Vendor(Protocol):
    """A vendor's API in memory: each answer is computed from the facts it keeps.

    Not safe for two threads at once.
    """

    def answer(self, request: VendorRequest) -> VendorReply: ...


def dated(now: datetime) -> dict[str, str]:
    """The header of a vendor's own clock."""
    return {"Date": format_datetime(now.astimezone(UTC), usegmt=True)}
