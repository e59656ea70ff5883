"""What each form of the page has done: a second submit of the same form does nothing again.

A double click, a reload, or a browser that sends again after a lost connection may reach another
process, so this is in the database.
"""

import hashlib
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import page_acts

#: Seconds for which a form is known: longer than a session lasts.
KEPT = 24 * 3600.0


class ActResult(StrEnum):
    """What a form's first submit came to."""

    DONE = "done"
    #: Done, and what it found is no good news.
    WARNED = "warned"
    REFUSED = "refused"


class Notice(NamedTuple):
    """What a form has done."""

    says: str
    warns: bool


class StoredAct(NamedTuple):
    """A form that was submitted."""

    #: None: its result is not known, as it runs, or its process died.
    result: ActResult | None
    #: For a person: the notice, or why it was refused.
    says: str
    #: Where the page goes on.
    address: str
    #: Seconds since the first submit.
    age: float


def act_id(session: str, form: str) -> str:
    """A form's key: another session's form with the same id is another one."""
    return hashlib.sha256(f"{session}:{form}".encode()).hexdigest()


class ActStore:
    """Safe from threads. Every call raises SQLAlchemyError while the database is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self, of: str) -> StoredAct | None:
        """None: it is the form's first submit, and the caller acts. Else what that came to."""
        old = select(page_acts.c.id).where(page_acts.c.at < Now() - KEPT)
        with self._engine.begin() as connection:
            ids = sorted(connection.scalars(old.limit(100).with_for_update(skip_locked=True)))
            connection.execute(delete(page_acts).where(page_acts.c.id.in_(ids)))
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(page_acts).values(id=of, at=Now()))
        except IntegrityError:
            return self.earlier(of)
        return None

    def earlier(self, of: str) -> StoredAct | None:
        """What is known of a form; None: it was not submitted."""
        query = select(page_acts, (Now() - page_acts.c.at).label("age")).where(page_acts.c.id == of)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        result = None if row.result is None else ActResult(row.result)
        return StoredAct(result, row.says or "", row.address or "", max(0.0, row.age))

    def finish(self, of: str, result: ActResult, says: str, address: str = "") -> None:
        """Record the result."""
        # Words of others are in it, and a text that the table refuses would leave the result unknown.
        says = says.encode("utf-8", "replace").decode().replace("\0", "\N{SYMBOL FOR NULL}")
        change = update(page_acts).where(page_acts.c.id == of)
        with self._engine.begin() as connection:
            connection.execute(change.values(result=result.value, says=says, address=address))

    def take_notice(self, of: str) -> Notice | None:
        """The notice of what was done, the first time; None: there is none, or it was shown."""
        new = (
            page_acts.c.shown.is_(False),
            page_acts.c.result.in_([ActResult.DONE, ActResult.WARNED]),
        )
        change = update(page_acts).where(page_acts.c.id == of, *new).values(shown=True)
        with self._engine.begin() as connection:
            if connection.execute(change).rowcount == 0:
                return None
            query = select(page_acts.c.says, page_acts.c.result).where(page_acts.c.id == of)
            row = connection.execute(query).one()
        return Notice(row.says or "", row.result == ActResult.WARNED)
