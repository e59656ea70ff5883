"""Finds edited and removed records, and edited catalogs, since the last look; see ``stamps.py``."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.stamps import seconds
from pos_gateway.merchants.store import YIELD_EVERY
from pos_gateway.runtime.clock import Clock
from pos_gateway.runtime.green import cooperatively

#: A table's edited rows: each id with its stamp.
Edited = Iterable[tuple[str, float]]

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
#: SQLAlchemy's text for a time in SQLite, for want of a type.
_TEXT = "%Y-%m-%d %H:%M:%S.%f"


class Edits:
    """Reports each edit of a table once. For a single caller at a time.

    Edits of the first release, without the lock, may become visible after an edit with a higher
    stamp. Readers see such an edit when the record expires.

    Args:
        last_edit: returns the table's highest stamp; 0 without a row.
        on_edit: called with each edited row's id and stamp.
        known_for: seconds before the first look from which edits are reported.
    """

    def __init__(
        self,
        last_edit: Callable[[], float],
        on_edit: Callable[[str, float], None],
        *,
        known_for: float,
        clock: Clock,
    ) -> None:
        self._last_edit, self._on_edit = last_edit, on_edit
        self._known_for = known_for
        self._clock = clock
        #: The highest stamp reported; None before the first look.
        self._highest: float | None = None

    def since(self) -> float:
        """The stamp from which to read edits now. Raises as ``last_edit``."""
        if self._highest is None:
            # Stamps may be ahead of the time of day, or behind it since the last edit.
            present = min(self._last_edit(), self._clock.now().timestamp())
            self._highest = max(0.0, present - self._known_for)
        return self._highest

    def report(self, edited: Edited) -> None:
        """Report the rows read, all with a stamp above ``since``."""
        highest = self.since()
        for each, stamp in edited:
            self._on_edit(each, stamp)
            highest = max(highest, stamp)
        self._highest = highest


def read_edits(polls: Polls, since: float, catalogs_since: float) -> list[Edited]:
    """The records edited or removed since a stamp, and the catalogs edited since another.

    Each may be iterated over once, and raises ValueError at a row with an invalid stamp.

    Raises:
        LedgerUnavailable: the database is away.
    """
    at: Any = datetime.fromtimestamp(since, UTC)
    values = {
        "at": at.strftime(_TEXT) if polls.is_sqlite else at,
        "since": since,
        "catalogs_since": catalogs_since,
    }
    rows = polls.rows(_SQLITE if polls.is_sqlite else _POSTGRESQL, values)
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
