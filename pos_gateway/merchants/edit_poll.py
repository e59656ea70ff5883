"""One query for the edits of records and catalogs, and for removals."""

from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.stamps import seconds
from pos_gateway.merchants.store import YIELD_EVERY
from pos_gateway.runtime.green import cooperatively

#: The edits of a table: the rows' ids, each with its stamp.
Edited = Iterator[tuple[str, float]]

_EDITED = """
select 0, id, {stamp} from merchants where updated_at > {at}
union all select 0, id, removed_at from removed_merchants where removed_at > {since}
union all select 1, merchant_id, updated_at from catalogs where updated_at > {catalogs_since}"""
_POSTGRESQL = _EDITED.format(
    stamp="extract(epoch from updated_at)::float8",
    at="%(at)s",
    since="%(since)s",
    catalogs_since="%(catalogs_since)s",
)
_SQLITE = _EDITED.format(
    stamp="updated_at", at=":at", since=":since", catalogs_since=":catalogs_since"
)
#: How SQLAlchemy writes a time into SQLite, which has no type for it.
_TEXT = "%Y-%m-%d %H:%M:%S.%f"


class EditPoll:
    """Reads what was edited since two stamps. Safe from threads and green threads.

    Args:
        polls: where the tables are.
    """

    def __init__(self, polls: Polls) -> None:
        self._polls = polls

    def __call__(self, since: float, catalogs_since: float) -> list[Edited]:
        """The records edited or removed since a stamp, and the catalogs edited since another one.

        Each may be iterated over once, and raises ValueError at a row with an invalid stamp.

        Raises:
            LedgerUnavailable: the database is away.
        """
        at: Any = datetime.fromtimestamp(since, UTC)
        is_sqlite = self._polls.is_sqlite
        values = {
            "at": at.strftime(_TEXT) if is_sqlite else at,
            "since": since,
            "catalogs_since": catalogs_since,
        }
        rows = self._polls.rows(_SQLITE if is_sqlite else _POSTGRESQL, values)
        return [_of(table, rows) for table in (0, 1)]


def _of(table: int, rows: list[tuple[Any, ...]]) -> Edited:
    for of, each, stamp in cooperatively(rows, YIELD_EVERY):
        if of == table:
            yield each, _stamp(stamp)


def _stamp(stamp: str | float) -> float:
    found = seconds(datetime.fromisoformat(stamp)) if isinstance(stamp, str) else stamp
    if not isfinite(found):
        raise ValueError(f"an invalid stamp: {found}")
    return found
