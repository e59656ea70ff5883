"""A line of the audit, written in the transaction of what it is about."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert

from pos_gateway.database.schema import audit

#: Characters kept of a line's details, of its reason, and of each id.
DETAILS, REASON, ID = 512, 2000, 128
#: Lines per statement; SQLite takes no more than 32,766 parameters in one.
_BATCH = 500

#: What was changed, by field: the value before and after, or a word for a secret.
Changes = Mapping[str, tuple[Any, Any] | str]


@dataclass(frozen=True, slots=True)
class By:
    """Who does something, and why."""

    operator: str
    reason: str | None = None


#: The gateway itself.
GATEWAY = "pos-gateway"


@dataclass(frozen=True, slots=True)
class Note:
    """What was done."""

    what: str
    merchant_id: str = ""
    order_id: str = ""
    details: str = ""
    changes: Changes = field(default_factory=dict)


def write(connection: Connection, notes: Iterable[Note], *, by: By, at: float) -> None:
    """Write a line for each. ``at`` is Unix time."""
    rows = [
        {
            "at": at,
            "operator": by.operator,
            "what": each.what,
            "merchant_id": each.merchant_id[:ID],
            "order_id": each.order_id[:ID],
            "details": each.details[:DETAILS],
            "reason": by.reason[:REASON] if by.reason else None,
            "changes": json.dumps(each.changes) if each.changes else None,
        }
        for each in notes
    ]
    for start in range(0, len(rows), _BATCH):
        connection.execute(insert(audit), rows[start : start + _BATCH])
