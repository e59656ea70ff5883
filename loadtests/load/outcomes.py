"""What an order backend knows of its orders: which were confirmed, and what came of each."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Events after which the backend waits for nothing more. An order in doubt is an operator's.
CONCLUDING = frozenset(
    f"order.{word}"
    for word in ("accepted", "rejected", "cancelled", "expired", "failed", "in_doubt")
)


@dataclass(slots=True)
class _Placed:
    merchant_class: str
    at: float
    confirmed: bool = False
    outcome: str | None = None


@dataclass(slots=True)
class Outcomes:
    """Orders of one backend. ``class`` is what stands before the dash in a merchant's id."""

    #: Events that told again what was known; they are published at least once.
    repeated: int = 0
    #: Seconds from submitting to the event, by class.
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _orders: dict[str, _Placed] = field(default_factory=dict)

    def placed(self, order_id: str, merchant_id: str, now: float) -> None:
        """The order is about to be submitted."""
        self._orders[order_id] = _Placed(class_of(merchant_id), now)

    def confirmed(self, order_id: str) -> None:
        """``submit`` has returned: from now on the order must come to an end."""
        self._orders[order_id].confirmed = True

    def told(self, event: Mapping[str, Any], now: float) -> tuple[str, float] | None:
        """An event has come; the class and the seconds it took if it concludes one of our orders."""
        order = self._orders.get(event["order_id"])
        if order is None or event["type"] not in CONCLUDING:
            return None
        if order.outcome is not None:
            self.repeated += 1
            return None
        order.outcome = event["type"].removeprefix("order.")
        took = now - order.at
        self.seconds[order.merchant_class].append(took)
        return order.merchant_class, took

    @property
    def missing(self) -> list[str]:
        """Orders that were confirmed and that nothing was heard of since."""
        return [
            order_id
            for order_id, order in self._orders.items()
            if order.confirmed and order.outcome is None
        ]

    def as_json(self) -> dict[str, Any]:
        """What came of the orders, in numbers and by class; complete for ``missing`` ones."""
        by_class: dict[str, Counter[str]] = defaultdict(Counter)
        for order in self._orders.values():
            unheard = "missing" if order.confirmed else "unconfirmed"
            by_class[order.merchant_class][order.outcome or unheard] += 1
        accepted = [key for key, order in self._orders.items() if order.outcome == "accepted"]
        return {
            "sent": len(self._orders),
            "outcomes": {name: dict(counts) for name, counts in by_class.items()},
            "repeated": self.repeated,
            "missing": self.missing,
            "accepted": accepted,
            "seconds": dict(self.seconds),
        }


def class_of(merchant_id: str) -> str:
    """``hang`` of ``hang-7``."""
    return merchant_id.partition("-")[0]
