"""Access tokens of grants: refreshed by one process of the fleet, and stored before they are used.

A refresh token may be good for a single use (at Clover): after a second refresh with the same token, or the
loss of a new pair, only the merchant can grant access again. Therefore a grant's row in the database has the mark of
the refresh in progress, and a new pair is committed before any request has the access token. A process may
still die between the endpoint's answer and the commit.

No clocks of two machines are compared: a process takes over the mark of a dead process after seeing the mark
unchanged for ``LEASE`` seconds of the process's own clock.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.auth.grant_store import GrantStore, Pair, StoredGrant, problem_of
from pos_gateway.auth.token_endpoint import is_usable, require_taken, token_request
from pos_gateway.domain.credentials import OAuth2Grant, unix_time
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.transport.errors import Misconfigured, NotSent, TransportError
from pos_gateway.transport.exchange import Reply, Request

log = structlog.get_logger(__name__)

#: Seconds after which an unchanged mark is a dead process's: longer than a token request and a commit.
LEASE = 30.0
#: Seconds for which a refresh waits for a durable mark.
CLAIM = LEASE / 3
#: Without a usable token: seconds between two looks for the pairs of processes that refresh, and seconds until
#: the last look. With a usable token: seconds until the next look.
LOOK, LOOK_FOR, LOOK_BESIDE = 0.2, 10.0, 1.0
#: Seconds between two attempts to store a pair.
STORE_AGAIN = 0.5
#: Seconds for which no process repeats a refused refresh, and for which a POS's refusal of a new access token
#: causes no refresh.
LEFT_ALONE = 60.0
#: Seconds until a failed refresh is repeated while the present token is usable.
PAUSE = 5.0
#: Seconds for which ``stop`` waits: a token request, and a commit.
STOP = 12.0
#: How vendors say when a token ends: names of seconds, and of moments (RFC 6749; Square; Clover).
_ACCESS_ENDS = ("expires_in", ("expires_at", "access_token_expiration"))
_REFRESH_ENDS = (
    "refresh_token_expires_in",
    ("refresh_token_expires_at", "refresh_token_expiration"),
)


class GrantToken(NamedTuple):
    """An access token to use. Times are seconds.

    Attributes:
        since: grows with each refresh.
        lasts: until the token ends.
        due_in: until the next look at the grant's row.
    """

    value: str
    since: float
    lasts: float
    due_in: float


@dataclass(slots=True, eq=False)
class _Look:
    """A look at the rows of all grants in refresh elsewhere, for all waiting threads."""

    ids: set[str] = field(default_factory=set)
    marks: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class Grants:
    """Grants' access tokens. Safe from threads and green threads.

    Args:
        store: the grants' rows.
        fetch: calls a token endpoint; raises TransportError.
    """

    def __init__(
        self,
        store: GrantStore,
        fetch: Callable[[OAuth2Grant, Request], Reply],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._fetch = store, fetch
        self._now = clock.monotonic
        #: Marks of refreshes elsewhere, and since when each is seen unchanged.
        self._seen: dict[str, tuple[str, float]] = {}
        self._look: _Look | None = None
        self._refreshes = 0
        self._changed = threading.Condition()

    def token(self, grant: OAuth2Grant, rejected: str | None = None) -> GrantToken:
        """The grant's access token, refreshed first if due.

        Args:
            rejected: an access token refused by a POS: refreshed ahead of time.

        Raises:
            TransportError: no token is usable.
        """
        until = self._now() + LOOK_FOR
        found = self._read(grant)
        while True:
            age = found.now - found.refreshed_at
            is_rejected = found.access == rejected and not 0 <= age < LEFT_ALONE
            if found.due_in > 0 and not is_rejected:
                return _token(found, found.due_in)
            is_usable_yet = found.access and found.lasts > 0 and not is_rejected
            refused = found.refused_for
            problem: TransportError
            if refused is not None and 0 <= refused < LEFT_ALONE:
                problem = Misconfigured(CREDENTIAL_REFUSED, found.refusal)
            elif claimed := self._claimed(found):
                try:
                    return self._refreshed(grant, claimed)
                except TransportError as error:
                    problem = error
            elif is_usable_yet:
                return _token(found, LOOK_BESIDE)
            elif self._now() < until:
                if self._has_changed(found):
                    found = self._read(grant)
                continue
            else:
                problem = NotSent("token", "another process refreshes it")
            if not is_usable_yet:
                raise problem
            log.warning("grant.not_refreshed", grant=grant.grant_id, error=str(problem))
            is_refused = isinstance(problem, Misconfigured)
            return _token(found, LEFT_ALONE if is_refused else PAUSE)

    def problem(self, grant: OAuth2Grant) -> str | None:
        """Why the grant soon needs an operator; None: no need. Raises NotSent: the row cannot be read."""
        found = self._read(grant)
        age = found.now - found.refreshed_at
        return problem_of(found.refusal, found.lasts, found.refresh_lasts, age)

    def stop(self) -> None:
        """Wait until fetched pairs are stored: a lost pair may be the last good pair. Idempotent."""
        with self._changed:
            self._changed.wait_for(lambda: not self._refreshes, STOP)

    def _read(self, grant: OAuth2Grant) -> StoredGrant:
        try:
            return self._store.read(grant)
        except SQLAlchemyError as error:
            # Once the database is back, a process with a pair to store goes first.
            self._seen.clear()
            raise _away(error) from None
        except CannotOpen as error:
            raise NotSent("secret_key", f"the tokens of its grant are {error}") from None

    def _has_changed(self, found: StoredGrant) -> bool:
        """Whether the grant's row has changed, after ``LOOK`` seconds.

        The first waiting thread looks for all threads waiting by then.
        """
        with self._changed:
            is_first = self._look is None
            look = self._look = self._look or _Look()
            look.ids.add(found.id)
        if is_first:
            try:
                threading.Event().wait(LOOK)
            finally:  # also when a green thread is killed
                with self._changed:
                    self._look = None
                try:
                    look.marks = self._store.marks(look.ids)
                except LedgerUnavailable:
                    pass  # the next read of a row raises
                finally:
                    look.done.set()
        look.done.wait()
        return look.marks.get(found.id) != found.mark

    def _claimed(self, found: StoredGrant) -> StoredGrant | None:
        """The grant with the mark of this process's refresh; None: a refresh is in progress elsewhere."""
        now, theirs = self._now(), found.refresher
        if theirs is not None:
            seen, since = self._seen.get(found.id, ("", 0.0))
            if seen != theirs:
                self._seen[found.id] = theirs, now
                return None
            if now - since < LEASE:
                return None
        self._seen.pop(found.id, None)
        try:
            claimed = self._store.claim(found)
        except SQLAlchemyError as error:
            raise _away(error) from None
        # While this process paused, the mark may have been taken over.
        return claimed if self._now() - now < CLAIM else None

    def _refreshed(self, grant: OAuth2Grant, claimed: StoredGrant) -> GrantToken:
        self._begin()
        try:
            pair = self._fetched(grant, claimed)
            if not self._is_stored(claimed, pair):
                self._store_later(claimed, pair)
                raise NotSent("database", "a new token waits until the database has stored it")
        finally:
            self._end()
        if not pair.access:
            raise NotSent("token", "no usable token in the endpoint's 200")
        stored = self._read(grant)  # perhaps newer already
        return _token(stored, stored.due_in)

    def _fetched(self, grant: OAuth2Grant, claimed: StoredGrant) -> Pair:
        """The endpoint's next pair; on failure any process may refresh the grant."""
        fields = {"grant_type": "refresh_token", "refresh_token": claimed.refresh}
        try:
            reply = self._fetch(grant, token_request(grant, fields))
            failpoints.reach("grant.answered")
            return _pair(reply, claimed)
        except TransportError as error:
            refusal = str(error) if isinstance(error, Misconfigured) else None
            try:
                self._store.give_up(claimed, refusal)
            except SQLAlchemyError as away:  # the mark is taken over after a while
                log.error("grant.not_given_up", grant=claimed.id, error=str(away.__cause__))
            raise

    def _is_stored(self, claimed: StoredGrant, pair: Pair) -> bool:
        """Whether the database has this pair, or a newer pair."""
        try:
            # Also if an attempt before was committed, unheard.
            if not self._store.replace(claimed, pair):
                log.info("grant.newer", grant=claimed.id)
        except SQLAlchemyError as error:
            log.error("grant.not_stored", grant=claimed.id, error=str(error.__cause__))
            return False
        return True

    def _store_later(self, claimed: StoredGrant, pair: Pair) -> None:
        """Store the pair as soon as the database is back, while this process lives."""

        def store() -> None:
            while not self._is_stored(claimed, pair):
                threading.Event().wait(STORE_AGAIN)
            self._end()

        self._begin()
        threading.Thread(target=store, name="grant", daemon=True).start()

    def _begin(self) -> None:
        with self._changed:
            self._refreshes += 1

    def _end(self) -> None:
        with self._changed:
            self._refreshes -= 1
            self._changed.notify_all()


def _token(found: StoredGrant, due_in: float) -> GrantToken:
    return GrantToken(found.access, found.refreshed_at, found.lasts, due_in)


def _away(error: SQLAlchemyError) -> NotSent:
    return NotSent("database", f"its grant cannot be read: {type(error).__name__}")


def _pair(reply: Reply, found: StoredGrant) -> Pair:
    """The next pair. Without an access token if only the refresh token is usable: the old refresh token may be used up.

    Raises:
        Misconfigured: the endpoint refuses the grant.
        NotSent: neither token is usable.
    """
    require_taken(reply)
    try:
        record = json.loads(reply.body)
        is_bearer = str(record.get("token_type", "bearer")).lower() == "bearer"
        access, refresh = record.get("access_token"), record.get("refresh_token")
    except Exception:  # noqa: BLE001  (untrusted: unclosed brackets)
        raise NotSent("token", f"no token in the endpoint's {reply.status}") from None
    access = access if is_usable(access) and is_bearer else ""
    refresh = refresh if is_usable(refresh) else found.refresh
    if reply.status != 200 or not (access or refresh != found.refresh):
        raise NotSent("token", f"no usable token in the endpoint's {reply.status}")
    ends = _lasts(record, _REFRESH_ENDS, found.now)
    if ends is None and refresh == found.refresh:
        ends = found.refresh_lasts
    return Pair(access, refresh, _lasts(record, _ACCESS_ENDS, found.now), ends)


def _lasts(record: Any, names: tuple[str, tuple[str, ...]], now: float) -> float | None:
    """Seconds until a token ends; None: the reply says nothing, or nonsense."""
    seconds, moments = names
    try:
        found = [float(record[seconds])] if seconds in record else []
        found += [unix_time(record[each]) - now for each in moments if each in record]
    except (TypeError, ValueError, OverflowError):
        return None
    return next((each for each in found if each > 0), None)  # NaN is not
