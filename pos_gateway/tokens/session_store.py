"""Sessions in the database, by a digest alone; every time is the database's."""

import hashlib
import re
import secrets
from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Engine, and_, delete, func, insert, not_, select, update

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import sessions

#: Seconds after which a session ends in any case, and without a use.
LASTS: Final = 12 * 3600.0
IDLE: Final = 3600.0
#: Sessions of one token at once: one more ends the oldest.
MAX_SESSIONS: Final = 50
#: Seconds between two writes of a session's last use.
_WRITE_EVERY = 30.0
#: Seconds by which a row may be ahead of the database's clock, which was set back.
_AHEAD = 5.0

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")


class LiveSession(NamedTuple):
    """A session that has not ended."""

    #: The token's digest.
    token: str
    #: Seconds until it ends in any case, and without a use.
    lasts: float
    idle: float


def new_secret() -> str:
    """What the cookie has: 256 random bits."""
    return secrets.token_urlsafe(32)


def is_secret(text: str) -> bool:
    """Whether it can be a cookie's."""
    return _SECRET.fullmatch(text) is not None


def session_digest(secret: str) -> str:
    """What the database knows a session by. A fast hash, as of tokens: the secret is random."""
    return hashlib.sha256(b"session:" + secret.encode()).hexdigest()


def csrf_token(secret: str) -> str:
    """What a session's forms carry: it says nothing of the cookie, and is stored nowhere."""
    return hashlib.sha256(b"csrf:" + secret.encode()).hexdigest()


class SessionStore:
    """Starts, reads and ends sessions. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self, token: str) -> str:
        """Start a session of the token with this digest; returns the cookie's secret."""
        secret = new_secret()
        own = session_digest(secret)
        others = select(sessions.c.digest).where(
            sessions.c.token == token, sessions.c.digest != own
        )
        # Those that a clock set back has ended are ahead of all others, and go first.
        ranked = others.order_by(not_(_is_live()), sessions.c.created_at.desc(), sessions.c.digest)
        surplus = sessions.c.digest.in_(ranked.offset(MAX_SESSIONS - 1))
        # A row that another login removes at this moment is skipped: neither waits for the other.
        free = select(sessions.c.digest).where(surplus).with_for_update(skip_locked=True)
        with self._engine.begin() as connection:
            row = {"digest": own, "token": token, "created_at": Now(), "used_at": Now()}
            connection.execute(insert(sessions).values(row))
            # One statement has one snapshot: a session that begins meanwhile is no surplus.
            connection.execute(delete(sessions).where(sessions.c.digest.in_(free)))
        return secret

    def end(self, digest: str) -> None:
        """End a session. Idempotent."""
        with self._engine.begin() as connection:
            connection.execute(delete(sessions).where(sessions.c.digest == digest))

    def live(self) -> dict[str, LiveSession]:
        """The sessions that have not ended, by digest."""
        age, idle = _age().label("age"), _idle().label("idle")
        query = select(sessions.c.digest, sessions.c.token, age, idle).where(_is_live())
        with self._engine.connect() as connection:
            return {
                row.digest: LiveSession(row.token, LASTS - row.age, IDLE - row.idle)
                for row in connection.execute(query)
            }

    def note_use(self, digests: Collection[str]) -> None:
        """Record that these are used now, those that have not ended."""
        if not digests:
            return
        these = sessions.c.digest.in_(sorted(digests))
        change = update(sessions).where(these, _is_live(), _idle() > _WRITE_EVERY)
        with self._engine.begin() as connection:
            connection.execute(change.values(used_at=Now()))

    def prune(self) -> int:
        """Remove those that have ended; returns how many."""
        ended = select(sessions.c.digest).where(not_(_is_live())).with_for_update(skip_locked=True)
        with self._engine.begin() as connection:
            these = sorted(connection.scalars(ended))
            connection.execute(delete(sessions).where(sessions.c.digest.in_(these)))
        return len(these)

    def count(self) -> int:
        """How many rows there are."""
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(sessions)) or 0


def _age() -> ColumnElement[float]:
    return Now() - sessions.c.created_at


def _idle() -> ColumnElement[float]:
    return Now() - sessions.c.used_at


def _is_live() -> ColumnElement[bool]:
    # Without the lower bounds a clock that was set back would give a session more than its time.
    return and_(_age() < LASTS, _age() > -_AHEAD, _idle() < IDLE, _idle() > -_AHEAD)
