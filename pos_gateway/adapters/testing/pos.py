"""The POS in a test of an adapter: the author's own simulator, in memory."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qs, unquote, urlsplit

from pos_gateway.domain.order import Order
from pos_gateway.transport.exchange import Reply, Request

#: A POS: a reply to each request, computed from the orders at the POS.
Pos = Callable[[Request], Reply]


@dataclass(frozen=True, slots=True)
class Made:
    """An order at the POS, whatever the replies were."""

    #: The POS's total in minor units; None: the POS computes no total.
    total: int | None = None
    #: Recorded payments, less the refunded ones.
    payments: int = 0
    is_cancelled: bool = False


@runtime_checkable
class CountsOrders(Protocol):
    """A POS with facts: the suite finds orders made or paid twice."""

    def made(self, order: Order) -> Sequence[Made]:
        """Everything made of this order, cancelled or not."""
        ...


@runtime_checkable
class AddsToTotals(Protocol):
    """A POS with prices."""

    def dearer(self, minor: int) -> None:
        """Add this much, in minor units, to the total of every order from now on."""
        ...


@runtime_checkable
class HasOtherOrders(Protocol):
    """A POS with a look-up by search, in pages perhaps."""

    def crowd(self, number: int) -> None:
        """Put orders of foreign clients into the POS, newer than the orders there."""
        ...


@runtime_checkable
class HasClock(Protocol):
    """A POS with acts later than asked: the printer's, for example."""

    def passes(self, seconds: float) -> None:
        """Have time go by."""
        ...


def json_reply(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """A reply with this JSON body; names of headers in lower case."""
    text = b"" if body is None else json.dumps(body).encode()
    return Reply(status, {"content-type": "application/json", **(headers or {})}, text)


def path_of(request: Request) -> str:
    """A request's path, decoded."""
    return unquote(urlsplit(request.url).path)


def query_of(request: Request) -> dict[str, str]:
    """A request's query parameters; the last of a repeated parameter."""
    found = parse_qs(urlsplit(request.url).query, keep_blank_values=True)
    return {name: values[-1] for name, values in found.items()}


def json_of(request: Request) -> Any:
    """A request's body as JSON; None without a body."""
    return json.loads(request.body) if request.body else None
