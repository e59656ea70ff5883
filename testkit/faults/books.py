"""What the ledger says, read as an auditor reads it: from the tables, past the gateway's code."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, select

from pos_gateway.database.schema import events, orders
from testkit.faults.backend import Name


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the ledger."""

    state: str
    last_event: str | None
    reason: str | None
    attempts: int
    deaths: int


@dataclass(frozen=True, slots=True)
class Books:
    """All of the ledger."""

    submissions: Mapping[Name, Entry]
    cancellations: Mapping[Name, Entry]
    #: The ids of the events written of each order, in their order.
    events: Mapping[Name, Sequence[str]]


def read(database: Engine) -> Books:
    """The ledger as it is now."""
    actions: dict[str, dict[Name, Entry]] = {"submit": {}, "cancel": {}}
    written: dict[Name, list[str]] = defaultdict(list)
    row, event = orders.c, events.c
    with database.connect() as connection:
        columns = (row.state, row.last_event, row.reason_code, row.attempts, row.deaths)
        for merchant, order, action, *rest in connection.execute(
            select(row.merchant_id, row.order_id, row.action, *columns)
        ):
            actions[action][merchant, order] = Entry(*rest)
        for merchant, order, event_id in connection.execute(
            select(event.merchant_id, event.order_id, event.event_id).order_by(event.id)
        ):
            written[merchant, order].append(event_id)
    return Books(actions["submit"], actions["cancel"], written)


def sending(database: Engine, pid: int, merchants: str) -> list[Name]:
    """The orders of the merchants with this prefix that a process has left in SENDING."""
    query = select(orders.c.merchant_id, orders.c.order_id).where(
        orders.c.state == "sending",
        orders.c.owner.like(f"%-{pid}-%"),
        orders.c.merchant_id.like(f"{merchants}%"),
    )
    with database.connect() as connection:
        return [(merchant, order) for merchant, order in connection.execute(query)]
