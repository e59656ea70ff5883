"""The sessions of the operations page, in memory: every page, and each second of a stream, needs one."""

import threading
from dataclasses import dataclass, field

import structlog

from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.tokens.session_store import (
    IDLE,
    LiveSession,
    SessionStore,
    csrf_token,
    is_secret,
    session_digest,
)
from pos_gateway.tokens.token import Role, Token
from pos_gateway.tokens.tokens import Tokens

log = structlog.get_logger(__name__)

#: Roles that may log in: a backend's token belongs to a program.
ROLES = frozenset({Role.VIEWER, Role.OPERATOR})
#: Seconds between two removals of what has ended.
PRUNE_EVERY = 600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A person who is logged in."""

    digest: str
    #: What the session's forms carry.
    csrf: str = field(repr=False)
    token: Token
    #: Of a user whom a proxy has logged in: until when that counts, by this process's clock.
    until: float | None = None
    #: The secret that such a user's browser has yet to get.
    cookie: str | None = field(default=None, repr=False)

    @property
    def is_by_proxy(self) -> bool:
        """Whether a proxy has logged the user in."""
        return self.until is not None


@dataclass(slots=True)
class _Known:
    """When a session ends, by this process's clock."""

    token: str
    ends_at: float
    idle_at: float


class Sessions:
    """Finds sessions. Safe from threads; none of ``find`` and ``is_valid`` blocks.

    The server calls ``refresh`` as often as it refreshes the tokens, on the same thread: a session
    that was ended in another process, or whose token was revoked, is refused after that.
    """

    def __init__(self, store: SessionStore, tokens: Tokens, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._known: dict[str, _Known] = {}
        #: Those that ended here, which a read that began before may bring back.
        self._ended: set[str] = set()
        self._used: set[str] = set()
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._prune_at = clock.monotonic()
        self._is_away = False

    def start(self, token: Token, replaces: str | None = None) -> str:
        """Start a session, and return its cookie's secret. Blocks.

        Args:
            token: of one of ``ROLES``.
            replaces: the secret that the browser had, whose session ends.

        Raises:
            SQLAlchemyError: the database is away.
        """
        secret = self._store.start(token.digest)
        now = self._clock.monotonic()
        lives = LiveSession(token.digest, IDLE, IDLE)  # until the next refresh knows better
        with self._lock:
            self._known[session_digest(secret)] = _known(lives, now)
        if replaces is not None and is_secret(replaces):
            self.end(session_digest(replaces))
        return secret

    def end(self, digest: str) -> None:
        """End a session: here at once, elsewhere at the next refresh. Blocks; SQLAlchemyError."""
        self._forget(digest)
        self._store.end(digest)
        self._forget(digest)  # a refresh may have read it before it was gone

    def _forget(self, digest: str) -> None:
        with self._lock:
            self._known.pop(digest, None)
            self._ended.add(digest)

    def find(self, secret: str | None) -> Session | None:
        """The session of a cookie; None: it has ended, or is not known here (yet)."""
        if secret is None or not is_secret(secret):
            return None
        digest = session_digest(secret)
        token = self._token_of(digest)
        return None if token is None else Session(digest, csrf_token(secret), token)

    def touch(self, session: Session) -> None:
        """Record a use, which puts off its end."""
        known = self._known.get(session.digest)
        if known is not None:
            known.idle_at = self._clock.monotonic() + IDLE
            with self._lock:
                self._used.add(session.digest)

    def is_valid(self, session: Session) -> bool:
        """Whether what goes on may: the session has not ended, and its token has the same role."""
        token = self._token_of(session.digest)
        return token is not None and token.role is session.token.role

    def refresh(self) -> None:
        """Write the uses, and read the sessions. Never raises: while the database is away they stay
        as they are, and the tokens' age ends them."""
        with self._refreshing:
            began = self._clock.monotonic()
            with self._lock:
                used, self._used = self._used, set()
                before = set(self._known)
                self._ended.clear()
            try:
                self._store.note_use(used)
                live = self._store.live()
                self._prune(began)
            except Exception as error:  # noqa: BLE001  (any failure: the next refresh tries again)
                with self._lock:
                    self._used |= used
                if not self._is_away:
                    log.warning("sessions.unavailable", error=str(error))
                self._is_away = True
                return
            self._is_away = False
            with self._lock:
                known = {each: _known(row, began) for each, row in live.items()}
                # Those that started meanwhile are not in what was read, perhaps.
                new = {each: row for each, row in self._known.items() if each not in before}
                both = {**new, **known}
                for each in self._used & both.keys() & self._known.keys():
                    both[each].idle_at = self._known[each].idle_at
                self._known = {k: row for k, row in both.items() if k not in self._ended}

    def _prune(self, now: float) -> None:
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            self._store.prune()

    def _token_of(self, digest: str) -> Token | None:
        known, now = self._known.get(digest), self._clock.monotonic()
        if known is None or now >= known.ends_at or now >= known.idle_at:
            return None
        token = self._tokens.current(known.token)
        return token if token is not None and token.role in ROLES else None


def _known(row: LiveSession, at: float) -> _Known:
    return _Known(row.token, at + row.lasts, at + row.idle)
