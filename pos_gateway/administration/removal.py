"""Removes a merchant, unless orders of it have not ended."""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Engine

from pos_gateway.audit.note import By
from pos_gateway.domain.errors import AdminError
from pos_gateway.merchants.admin import MerchantAdmin, in_numbers
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.reports.words import orders

#: What becomes of the orders of a merchant that is gone.
AFTERWARDS = (
    "those that its POS cannot have end as order.failed (unknown_merchant) and are dead-lettered: "
    "pos-gateway dlq replay sends them, once the merchant is imported again. Those that its POS may have "
    "stay in doubt: ask the merchant, then pos-gateway orders resolve"
)


@dataclass(frozen=True, slots=True)
class Removed:
    """The orders of a removed merchant that have not ended."""

    #: In the ledger, by state.
    open: Counter[str]
    #: Not in the ledger, perhaps: those that workers have waiting, or have parked.
    held_up: int


def remove(
    admin: MerchantAdmin, engine: Engine, merchant_id: str, by: By, *, force: bool = False
) -> Removed:
    """Remove the merchant.

    Orders that are still in the queue, and that no worker has taken, are not known here.

    Raises:
        UnknownMerchant: there is none.
        AdminError: orders of it have not ended, and ``force`` is not given; nothing is written.
        SQLAlchemyError: the database is away.
    """
    trouble = FleetView(engine).now().trouble(merchant_id)
    held_up = trouble.waiting + trouble.parked if trouble else 0
    if held_up and not force:
        numbers = orders(held_up, "waits or is parked", "wait or are parked")
        raise AdminError(f"workers have orders of merchant {merchant_id!r}: {numbers}; {_ADVICE}")
    try:
        return Removed(admin.remove(merchant_id, by, force=force), held_up)
    except AdminError as error:
        raise AdminError(f"{error}; {_ADVICE}") from None


_ADVICE = f"wait until they have ended, or say --force: {AFTERWARDS}"


def counted(removed: Removed) -> str:
    """The orders in numbers; empty if there are none."""
    parts = [in_numbers(removed.open)] if removed.open else []
    parts += (
        [orders(removed.held_up, "waits or is parked", "wait or are parked")]
        if removed.held_up
        else []
    )
    return ", ".join(parts)
