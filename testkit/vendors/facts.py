"""The facts of a seller's orders, for tests to read."""

from typing import Any, Protocol


class HasFacts(Protocol):
    """A simulated vendor."""

    def facts(self) -> Any: ...


class OrderFacts:
    """One seller's orders, as the vendor has them.

    Args:
        vendor: the seller's; ``facts`` is the orders' facts, or has them as ``orders``.
    """

    def __init__(self, vendor: HasFacts) -> None:
        self._vendor = vendor

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Each order's facts, oldest first."""
        found = self._vendor.facts()
        orders = found["orders"] if isinstance(found, dict) else found
        return list(orders.values() if isinstance(orders, dict) else orders)

    @property
    def fact(self) -> dict[str, Any]:
        """The facts of the only order."""
        [fact] = self.facts
        return fact
