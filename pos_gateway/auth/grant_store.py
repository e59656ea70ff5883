"""The tokens of grants in the database: a row for each grant, with a version that grows with each refresh.

Moments are of the database's clock, since workers' clocks may differ. A write names the version
read before, and changes nothing once the row has a newer version; but for a pair fetched under the present mark,
newer than the pair of a process before the takeover.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Engine, and_, case, delete, exists, func, insert, not_, or_, select, update
from sqlalchemy.exc import IntegrityError

from pos_gateway.auth.token_endpoint import DEFAULT_LIFETIME
from pos_gateway.database.clock import Now
from pos_gateway.database.engine import changing
from pos_gateway.database.schema import grants, merchants
from pos_gateway.domain.credentials import OAuth2Grant
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.polls import Polls
from pos_gateway.ledger.resealing import Resealed
from pos_gateway.runtime.vault import CannotOpen, Vault

_DAY = 86_400.0
#: Seconds after which an access token is refreshed at the latest, and at the earliest. Square: "every 7
#: days or less".
DUE_WITHIN, DUE_AFTER = 7 * _DAY, 5.0
#: Seconds before the end of a refresh token from which on operators are warned.
AHEAD = 14 * _DAY
#: Seconds from the last refresh for which the tokens of a grant without a merchant are kept: an operator may have
#: replaced the grant by mistake.
KEPT_FOR = 90 * _DAY
#: Minimum seconds between the stamps of two refreshes.
_STEP = 0.001
_LONGEST = 10 * 365 * _DAY
_MARKS = "select id, version, refresher from grants where id = any(%(ids)s)"
_MARKS_ON_SQLITE = (
    "select id, version, refresher from grants where id in (select value from json_each(:ids))"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """An access token and a refresh token.

    Attributes:
        access: may be empty.
        lasts: seconds until the access token ends; None: unknown.
        refresh_lasts: seconds until the refresh token ends; None: never, or unknown.
    """

    access: str
    refresh: str
    lasts: float | None
    refresh_lasts: float | None


@dataclass(frozen=True, slots=True)
class StoredGrant:
    """A grant's row, as read. Durations are seconds, and negative once over."""

    id: str
    version: int
    access: str
    refresh: str
    now: float
    refreshed_at: float
    lasts: float
    due_in: float
    refresh_lasts: float | None
    #: Mark of the refresh in progress: of this process's, once claimed.
    refresher: str | None
    #: Seconds since the endpoint refused the refresh token; None: never.
    refused_for: float | None
    refusal: str

    @property
    def mark(self) -> tuple[int, str | None]:
        """Changes with each write."""
        return self.version, self.refresher


class GrantInTrouble(NamedTuple):
    """A merchant with a grant that soon ends, or is refused."""

    merchant_id: str
    problem: str


class GrantStore:
    """Safe from threads and green threads. Every call raises SQLAlchemyError.

    Args:
        engine: the database.
        vault: seals and opens the tokens.
        polls: the same database, for looks at rows; default: a connection of its own.
        run: where writes run (``off_the_loop``).
    """

    def __init__(
        self, engine: Engine, vault: Vault, polls: Polls | None = None, run: Run = here
    ) -> None:
        self._engine, self._vault = engine, vault
        self._polls, self._run = polls or Polls(engine), run

    def read(self, grant: OAuth2Grant) -> StoredGrant:
        """The grant's tokens; at first the operator's.

        Raises:
            CannotOpen: no key opens them.
        """
        query = select(grants, Now().label("now")).where(grants.c.id == grant.grant_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            self._run(lambda: self._add(grant))
            with self._engine.connect() as connection:
                row = connection.execute(query).one()
        access, refresh = json.loads(self._vault.open_bytes(row.sealed, whose=_whose(row.id)))
        ends, refused = row.refresh_expires_at, row.refused_at
        return StoredGrant(
            row.id,
            row.version,
            access,
            refresh,
            row.now,
            row.refreshed_at,
            lasts=row.expires_at - row.now,
            due_in=row.due_at - row.now,
            refresh_lasts=None if ends is None else ends - row.now,
            refresher=row.refresher,
            refused_for=None if refused is None else row.now - refused,
            refusal=row.refusal or "",
        )

    def marks(self, ids: Collection[str]) -> Mapping[str, tuple[int, str | None]]:
        """The ``mark`` of each of these grants, in one look. Raises LedgerUnavailable."""
        is_sqlite = self._polls.is_sqlite
        wanted: Any = json.dumps([*ids]) if is_sqlite else [*ids]
        text = _MARKS_ON_SQLITE if is_sqlite else _MARKS
        return {
            each: (version, mark) for each, version, mark in self._polls.rows(text, {"ids": wanted})
        }

    def claim(self, found: StoredGrant) -> StoredGrant | None:
        """The grant, marked as being refreshed here. None: a process was faster."""
        mark = uuid4().hex
        is_marked = self._changed(found, _is_same(found), _has_mark(found), refresher=mark)
        return replace(found, refresher=mark) if is_marked else None

    def replace(self, claimed: StoredGrant, pair: Pair) -> bool:
        """Store the next pair. False: the row has a newer pair, and this pair is dropped.

        After a takeover the later process's mark stays, for a newer pair.
        """
        is_ours = _has_mark(claimed)
        return self._changed(
            claimed,
            or_(_is_same(claimed), is_ours),
            version=grants.c.version + 1,
            refreshed_at=max(claimed.now, claimed.refreshed_at + _STEP),
            refresher=case((is_ours, None), else_=grants.c.refresher),
            refused_at=None,
            refusal=None,
            **self._values(claimed.id, pair, claimed.now),
        )

    def give_up(self, claimed: StoredGrant, refusal: str | None) -> None:
        """Let any process refresh the grant.

        Args:
            refusal: the endpoint's refusal of the refresh token; None: the refresh failed otherwise.
        """
        values = {} if refusal is None else {"refused_at": Now(), "refusal": refusal[:256]}
        self._changed(claimed, _is_same(claimed), _has_mark(claimed), refresher=None, **values)

    def _changed(self, found: StoredGrant, *terms: Any, **values: Any) -> bool:
        change = update(grants).where(grants.c.id == found.id, *terms).values(**values)

        def write() -> bool:
            with changing(self._engine) as connection:
                return connection.execute(change).rowcount == 1

        is_changed: bool = self._run(write)
        return is_changed

    def _add(self, grant: OAuth2Grant) -> None:
        """Store the operator's pair, unless a process was faster; and drop grants of long ago."""
        row, known = grants.c, grant.access_token
        access = "" if known is None else known.get_secret_value()
        is_kept = exists().where(merchants.c.auth["grant"].as_string() == row.id)
        with changing(self._engine) as connection:
            now = float(connection.execute(select(Now())).scalar_one())
            pair = Pair(
                access,
                grant.refresh_token.get_secret_value(),
                None if grant.expires_at is None else max(0.0, grant.expires_at - now),
                None if grant.refresh_expires_at is None else grant.refresh_expires_at - now,
            )
            connection.execute(
                delete(grants).where(row.refreshed_at < now - KEPT_FOR, not_(is_kept))
            )
            values = self._values(grant.grant_id, pair, now)
            if grant.expires_at is None:  # how old the token is already is not known
                values["due_at"] = now
            # Of unknown age: a POS may refuse the access token at once, and the end may be near.
            values |= {"id": grant.grant_id, "version": 1, "refreshed_at": now - AHEAD}
            with suppress(IntegrityError), connection.begin_nested():
                connection.execute(insert(grants).values(**values))

    def _values(self, grant_id: str, pair: Pair, now: float) -> dict[str, Any]:
        lasts = DEFAULT_LIFETIME if pair.lasts is None else min(pair.lasts, _LONGEST)
        lasts = lasts if pair.access else 0.0
        due = min(max(lasts / 2, DUE_AFTER), DUE_WITHIN) if lasts > 0 else 0.0
        ends = pair.refresh_lasts
        text = json.dumps([pair.access, pair.refresh]).encode()
        return {
            "sealed": self._vault.seal_bytes(text, whose=_whose(grant_id)),
            "expires_at": now + lasts,
            "due_at": now + due,
            "refresh_expires_at": None if ends is None else now + min(ends, _LONGEST),
        }

    def reseal(self, batch: int = 500) -> Iterator[Resealed]:
        """Seal all tokens with the vault's current key; yields each batch's result.

        A pair stored by a worker in the same moment is left as sealed by the worker.
        """
        last = ""
        while True:
            query = select(grants.c.id, grants.c.sealed).where(grants.c.id > last)
            with self._engine.connect() as connection:
                rows = connection.execute(query.order_by(grants.c.id).limit(batch)).all()
            if not rows:
                return
            last, sealed, unopened = rows[-1].id, 0, list[str]()
            for row in rows:
                if row.sealed.startswith(f"{self._vault.current}."):
                    continue
                try:
                    opened = self._vault.open_bytes(row.sealed, whose=_whose(row.id))
                except CannotOpen as error:
                    unopened.append(f"the tokens of the grant {row.id} are {error}")
                    continue
                anew = self._vault.seal_bytes(opened, whose=_whose(row.id))
                same = and_(grants.c.id == row.id, grants.c.sealed == row.sealed)
                with changing(self._engine) as connection:
                    change = update(grants).where(same).values(sealed=anew)
                    sealed += connection.execute(change).rowcount
            yield Resealed(len(rows), sealed, tuple(unopened))

    def count_stale(self) -> int:
        """How many grants' tokens are under an earlier key."""
        stale = not_(grants.c.sealed.startswith(f"{self._vault.current}.", autoescape=True))
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).where(stale)) or 0


def problem_of(
    refusal: str | None, lasts: float, refresh_lasts: float | None, age: float
) -> str | None:
    """Why a grant soon needs an operator, in words; None: no need. Durations are seconds.

    Args:
        age: since the last refresh. The end of a refresh token is near only if nearer than the beginning:
            some vendors' last a few days.
    """
    if refusal:
        left = (
            f"its access token lasts another {_time(lasts)}" if lasts > 0 else "its tokens are over"
        )
        return f"its grant is refused ({refusal}); {left}"
    if refresh_lasts is None or refresh_lasts >= min(AHEAD, age):
        return None
    if refresh_lasts <= 0:
        return "its grant has ended"
    return f"its grant ends in {_time(refresh_lasts)}, unless it is refreshed before"


def in_trouble(engine: Engine, most: int) -> list[GrantInTrouble]:
    """Merchants with a refused or soon ending grant, without paused merchants. Raises SQLAlchemyError."""
    row = grants.c
    query = (
        select(
            merchants.c.id,
            row.refusal,
            (row.expires_at - Now()).label("lasts"),
            (row.refresh_expires_at - Now()).label("refresh_lasts"),
            (Now() - row.refreshed_at).label("age"),
        )
        .where(
            merchants.c.auth["grant"].as_string() == row.id,
            not_(merchants.c.paused),
            or_(row.refusal.is_not(None), row.refresh_expires_at < Now() + AHEAD),
        )
        .order_by(merchants.c.id)
        .limit(most)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    found = [(row[0], problem_of(*row[1:])) for row in rows]
    return [GrantInTrouble(merchant, problem) for merchant, problem in found if problem]


def _time(seconds: float) -> str:
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} days"


def _is_same(found: StoredGrant) -> Any:
    """The row has no newer pair."""
    return grants.c.version == found.version


def _has_mark(found: StoredGrant) -> Any:
    row, mark = grants.c, found.refresher
    return row.refresher.is_(None) if mark is None else row.refresher == mark


def _whose(grant_id: str) -> str:
    return f"grant {grant_id}"
