"""Which dead letters, or orders in doubt, an operator means."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.ledger.order_admin import OrderStanding

#: What ``only`` may be, and the task of such letters.
ONLY = {"orders": wire.SUBMIT_ORDER, "cancel-requests": wire.CANCEL_ORDER}


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """Conditions that all have to hold; an empty one always does. Times are Unix time.

    Args:
        codes: any of these reasons.
        merchants: any of these merchants.
        providers: any of these merchants' providers.
        ids: any of these orders (or letters).
        since, until: dead-lettered, or in doubt, in this time; a letter without a time is not.
        only: a key of ``ONLY``; None: both, and whatever else is in the queue.
    """

    codes: tuple[str, ...] = ()
    merchants: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    only: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The filter from its ``record``."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        return cls(**values)

    @property
    def record(self) -> dict[str, Any]:
        """The filter as JSON, without empty conditions."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in (None, ())
        }

    def has_letter(self, letter: DeadLetter, provider_of: Mapping[str, str | None]) -> bool:
        """Whether the filter selects the letter."""
        return (
            self._has(letter.code, letter.merchant_id, letter.at, provider_of)
            and (not self.ids or letter.id in self.ids or letter.order_id in self.ids)
            and (self.only is None or letter.headers.get("task") == ONLY[self.only])
        )

    def has_order(self, order: OrderStanding, provider_of: Mapping[str, str | None]) -> bool:
        """Whether the filter selects the order in doubt."""
        since = order.updated_at if order.first_doubt is None else order.first_doubt
        return self._has(order.reason_code, order.merchant_id, since, provider_of) and (
            not self.ids or order.order_id in self.ids
        )

    def _has(
        self,
        code: str | None,
        merchant_id: str | None,
        at: float | None,
        provider_of: Mapping[str, str | None],
    ) -> bool:
        if self.codes and code not in self.codes:
            return False
        if self.merchants and merchant_id not in self.merchants:
            return False
        if self.providers and provider_of.get(merchant_id or "") not in self.providers:
            return False
        if self.since is not None and (at is None or at < self.since):
            return False
        return self.until is None or (at is not None and at < self.until)
