"""What helpers of the client call: ``OrderClient``, or ``HttpOrderClient``."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from pos_gateway.domain.order import Order
from pos_gateway.domain.submit_result import SubmitResult


class SubmittingClient(Protocol):
    """Submits what an outbox has."""

    def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        """Submit orders together; a result for each."""

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        """Request an order's cancellation."""


class BlockingClient(SubmittingClient, Protocol):
    """Either client."""

    def submit(self, order: Order | Mapping[str, Any], *, again: bool = False) -> str | None:
        """Submit an order."""

    def close(self) -> None:
        """Close the connections."""


class ReadingClient(BlockingClient, Protocol):
    """``HttpOrderClient``."""

    def find(self, order_id: str, merchant_id: str) -> dict[str, Any] | None:
        """The order's state, attempts and events."""

    def events(self, after: int = 0, *, wait: float = 30.0) -> Iterator[dict[str, Any]]:
        """Every event after this position, for ever."""
