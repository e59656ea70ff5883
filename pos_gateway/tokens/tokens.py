"""The valid tokens, in memory: every request needs one."""

import threading

import structlog

from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Token, digest

log = structlog.get_logger(__name__)

#: Seconds between two calls of ``refresh``: a revoked token is refused after that at the latest.
REFRESH_EVERY = 2.0
#: Seconds that known tokens are valid while the database is away.
STALE_AFTER = 600.0
#: Seconds between two writes of last uses.
WRITE_EVERY = 60.0


class Tokens:
    """Finds tokens, and records when they were last used. Safe from threads.

    The server calls ``refresh`` every ``REFRESH_EVERY`` seconds, on a thread of its own.

    Args:
        store: the database's tokens.
        stale_after: seconds without the database after which no token is valid: one may have been
            revoked.
    """

    def __init__(
        self, store: TokenStore, clock: Clock = SYSTEM_CLOCK, *, stale_after: float = STALE_AFTER
    ) -> None:
        self._store = store
        self._clock = clock
        self._stale_after = stale_after
        #: The valid tokens by digest, and when they were read; replaced as one.
        self._known: tuple[dict[str, Token], float] | None = None
        self._is_away = False
        self._refreshing = threading.Lock()
        self._uses_lock = threading.Lock()
        self._uses: dict[str, float] = {}
        self._write_at = clock.monotonic()

    def find(self, token: str) -> Token | None:
        """The valid token with this text; None if there is none. Does not block.

        The text is hashed and its digest looked up; no secret is compared with it, so the time that
        this takes says nothing of a valid token but the look-up of a hash, which can't be chosen.
        """
        return self.current(digest(token))

    def current(self, of: str) -> Token | None:
        """The valid token with this digest: one that was found may have been revoked since."""
        known = self._known
        if known is None or self._age(known[1]) > self._stale_after:
            return None
        found = known[0].get(of)
        if found is not None:
            with self._uses_lock:
                self._uses[found.digest] = self._clock.now().timestamp()
        return found

    def refresh(self) -> None:
        """Read the valid tokens, and write last uses if it is time. Never raises.

        While the database is away the tokens stay as they are.
        """
        with self._refreshing:
            began = self._clock.monotonic()  # a token that is revoked from now on may be missed
            try:
                self._known = self._store.all_valid(), began
                if self._uses and began >= self._write_at:
                    self._write_at = began + WRITE_EVERY
                    self._write()
            except Exception as error:  # noqa: BLE001  (any failure: the next refresh tries again)
                if not self._is_away:
                    log.warning("tokens.unavailable", error=str(error))
                self._is_away = True
                return
            if self._is_away:
                log.info("tokens.available")
            self._is_away = False

    def flush(self) -> None:
        """Write the last uses that are not written yet. For a server's end; never raises."""
        try:
            self._write()
        except Exception as error:  # noqa: BLE001  (they are for information)
            log.warning("tokens.unavailable", error=str(error))

    @property
    def is_empty(self) -> bool:
        """Whether it is known that no token is valid."""
        return self._known is not None and not self._known[0]

    @property
    def problem(self) -> str | None:
        """Why no token is valid, if they could not be read; for readiness."""
        known = self._known
        if known is None:
            return "the tokens have not been read from the database yet"
        age = self._age(known[1])
        if age <= self._stale_after:
            return None
        return f"the tokens could not be read from the database for {age:.0f} s: none is valid"

    def _age(self, read_at: float) -> float:
        return self._clock.monotonic() - read_at

    def _write(self) -> None:
        with self._uses_lock:
            uses, self._uses = self._uses, {}
        try:
            self._store.note_use(uses)
        except BaseException:
            with self._uses_lock:
                self._uses = uses | self._uses  # those since then are later
            raise
