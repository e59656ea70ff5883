"""Access tokens: single flight per client, refreshed ahead of expiry."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pos_gateway.auth.grants import Grants, GrantToken
from pos_gateway.auth.token_endpoint import (
    DEFAULT_LIFETIME,
    is_usable,
    require_taken,
    token_request,
)
from pos_gateway.cache.refresh_ahead import REFRESH, Loaded, RefreshAheadCache, Shared
from pos_gateway.domain.credentials import OAuth2, OAuth2Grant, ToastLogin
from pos_gateway.domain.errors import NotLoaded, copy_of
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import green
from pos_gateway.transport.errors import Misconfigured, NotSent, TransportError
from pos_gateway.transport.exchange import Reply, Request

#: Seconds before its expiry that a token is no longer used: requests take time, and clocks differ.
EARLY = 30.0
#: After a rejected token, the next one is newer by at least this, in seconds.
NEWER = 0.001
#: The longest that a token is kept, in seconds.
LONGEST = 24 * 3600.0
#: Seconds that a failure is cached before the endpoint is asked again. With each further refusal in
#: a row they grow by this factor, up to the last: endpoints lock clients that are refused too often.
REFUSED, GROWTH, REFUSED_MAX = 5.0, 12.0, 60.0
#: Likewise the most for Toast, which allows two logins an hour; and the seconds before expiry until
#: which it returns the same token ("Authentication rate limit", "Refreshing authentication tokens").
TOAST_REUSED, TOAST_RENEWED = 1800.0, 60.0
#: Refusals are in a row unless more seconds than these lie between two.
ROW_ENDS_AFTER = 3600.0
#: Names of a reply's token, type and lifetime in seconds (RFC 6749, 5.1); Toast's differ.
_NAMES = ("access_token", "token_type", "expires_in")
_TOAST_NAMES = ("accessToken", "tokenType", "expiresIn")
#: Credentials whose tokens are cached.
MAX_TOKENS = 20_000

#: Sends a request to a token endpoint, within the token request's deadline.
Fetch = Callable[["Client", Request], Reply]
#: Credentials that a token is requested with.
Client = OAuth2 | OAuth2Grant | ToastLogin


@dataclass(frozen=True, slots=True)
class PosToken:
    """An access token, and when it was requested (Unix time)."""

    value: str
    since: float


class _Refused(Exception):
    """No token is available."""

    def __init__(self, problem: NotSent, pause: float = REFUSED, at: float = 0.0) -> None:
        super().__init__(str(problem))
        #: What the order's attempt raises: an operator gives another credential meanwhile.
        self.problem = NotSent(problem.code, problem)
        #: Seconds until the next request.
        self.pause = pause
        #: When the endpoint refused.
        self.at = at


class PosTokens:
    """PosTokens by credentials. Safe from green threads.

    Args:
        fetch: calls an endpoint; raises TransportError.
        shared: the cache shared with other workers: a client's token is good for all of them.
        grants: the tokens of grants; None: they cannot be used here.
    """

    def __init__(
        self,
        fetch: Fetch,
        clock: Clock = SYSTEM_CLOCK,
        shared: Shared[PosToken] | None = None,
        grants: Grants | None = None,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._grants = grants
        #: The last token of each grant that a POS has refused.
        self._rejected: OrderedDict[str, str] = OrderedDict()
        #: Credentials by fingerprint; and each one's current and previous token.
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._seen: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        #: The last refusal of each client that has had no token since.
        self._refusals: OrderedDict[str, _Refused] = OrderedDict()
        self._cache = RefreshAheadCache(
            "tokens",
            self._load,
            lifetime=DEFAULT_LIFETIME,
            absent=0.0,
            stale=0.0,
            max_weight=MAX_TOKENS,
            failures=(_Refused,),
            pause=_pause,
            apart=True,  # a hanging endpoint must not delay other clients' tokens
            shared=shared,
            may_thread=green,
            clock=clock,
        )
        self._cache.listen(self._came)

    def get(self, credentials: Client, timeout: float) -> str:
        """A token that will not expire soon, waited for at most ``timeout`` seconds.

        After a timeout the request continues for other callers.

        Raises:
            NotSent: no token now; the order was not sent.
        """
        key = credentials.fingerprint
        if key not in self._clients:
            _remember(self._clients, key, credentials)
        try:
            token = self._cache.get(key, timeout)
        except NotLoaded:
            raise NotSent("token", f"no token within {timeout:.3g} s") from None
        except _Refused as refused:
            raise copy_of(refused.problem) from None
        if token is None:
            raise NotSent("token", "no token could be had")
        return token.value

    def instead(self, credentials: Client, value: str, timeout: float) -> str | None:
        """Another token than this one, which a POS has refused; None: there is none now.

        Many merchants may share the client, and the POS that refuses its token may be wrong: their orders go
        on with the token until there is a newer one. It is asked for once for each token, and not as soon
        after the last one as the endpoint is left alone: what a POS refuses with a token as
        young, it refuses with the next one, too.
        """
        key = credentials.fingerprint
        token = self._cache.peek(key)
        if token is not None and token.value == value:
            age = self._clock.now().timestamp() - token.since
            if 0 <= age < _left_alone(credentials):  # negative: this clock was turned back
                return None
            if isinstance(credentials, OAuth2Grant):
                _remember(self._rejected, key, value)
            self._cache.renew(key, token.since + NEWER, timeout)
            token = self._cache.peek(key)
        if token is None or token.value == value:
            return None
        return self.get(credentials, timeout)

    def known(self, credentials: Client) -> tuple[str, ...]:
        """The token values that a POS may have seen lately."""
        return self._seen.get(credentials.fingerprint, ())

    def _came(self, key: str, token: PosToken | None) -> None:
        before = self._seen.get(key, ())
        if token is not None and token.value not in before[:1]:
            _remember(self._seen, key, (token.value, *before[:1]))
            self._refusals.pop(key, None)

    def _load(self, keys: Sequence[str]) -> dict[str, Loaded[PosToken]]:
        [key] = keys
        credentials = self._clients[key]
        try:
            if isinstance(credentials, OAuth2Grant):
                loaded = self._of_grant(key, credentials)
            else:
                loaded = self._fetched(credentials)
        except TransportError as error:
            # Whatever the token request's outcome, the order itself was not sent.
            problem = error if isinstance(error, NotSent) else NotSent("token", error)
            raise self._refused(key, problem) from None
        self._refusals.pop(key, None)
        return {key: loaded}

    def _fetched(self, credentials: OAuth2 | ToastLogin) -> Loaded[PosToken]:
        since = self._clock.now().timestamp()
        value, life = _parsed(credentials, self._fetch(credentials, _request(credentials)))
        used = max(life - EARLY, life / 2)
        is_toasts = isinstance(credentials, ToastLogin)
        due = max(used * REFRESH, life - TOAST_RENEWED) if is_toasts else None
        return Loaded(PosToken(value, since), since, used, due)

    def _of_grant(self, key: str, grant: OAuth2Grant) -> Loaded[PosToken]:
        if self._grants is None:
            raise NotSent("token", "this process has no database for grants")
        found: GrantToken = self._grants.token(grant, self._rejected.get(key))
        used = min(max(found.lasts - EARLY, found.lasts / 2), LONGEST)
        due = min(found.due_in, LONGEST * REFRESH)
        return Loaded(PosToken(found.value, found.since), found.since, used, due)

    def _refused(self, key: str, problem: NotSent) -> _Refused:
        if not isinstance(problem, Misconfigured):
            return _Refused(problem)
        now, last = self._clock.monotonic(), self._refusals.get(key)
        pause = REFUSED
        if last is not None and now - last.at <= ROW_ENDS_AFTER:
            pause = min(last.pause * GROWTH, _left_alone(self._clients[key]))
        refused = _Refused(problem, pause, now)
        _remember(self._refusals, key, refused)
        return refused


def _left_alone(credentials: Client) -> float:
    """Seconds for which an endpoint is not asked again, at most."""
    return TOAST_REUSED if isinstance(credentials, ToastLogin) else REFUSED_MAX


def _pause(refused: Exception) -> float:
    return refused.pause if isinstance(refused, _Refused) else REFUSED


def _remember(kept: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Add as the newest; at most ``MAX_TOKENS`` are kept."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MAX_TOKENS:
        kept.popitem(last=False)


def _request(credentials: OAuth2 | ToastLogin) -> Request:
    if isinstance(credentials, ToastLogin):
        return _login(credentials)
    fields = {"grant_type": "client_credentials"}
    fields |= {"scope": credentials.scope} if credentials.scope else {}
    fields |= {"audience": credentials.audience} if credentials.audience else {}
    return token_request(credentials, fields)


def _login(credentials: ToastLogin) -> Request:
    fields = {
        "clientId": credentials.client_id,
        "clientSecret": credentials.client_secret.get_secret_value(),
        "userAccessType": "TOAST_MACHINE_CLIENT",
    }
    headers = {"Content-Type": "application/json"}
    return Request("POST", credentials.token_url, json.dumps(fields).encode(), headers)


def _parsed(credentials: OAuth2 | ToastLogin, reply: Reply) -> tuple[str, float]:
    """A token, and its lifetime in seconds."""
    require_taken(reply)
    try:
        value, kind, life = _said(credentials, reply.body)
    except Exception:  # noqa: BLE001  (untrusted: 1e999 seconds, unclosed brackets)
        raise NotSent("token", f"no token in the endpoint's {reply.status}") from None
    if reply.status != 200 or not is_usable(value) or kind != "bearer" or not life > 0:
        raise NotSent("token", f"no usable token in the endpoint's {reply.status}")
    return value, min(life, LONGEST)


def _said(credentials: OAuth2 | ToastLogin, body: bytes) -> tuple[str, str, float]:
    """A reply's token, its type, and its lifetime in seconds. Raises whatever parsing raises."""
    record, names = json.loads(body), _NAMES
    if isinstance(credentials, ToastLogin):
        record, names = record["token"], _TOAST_NAMES
    value, kind = record[names[0]], record.get(names[1], "bearer")
    life = record.get(names[2])
    return value, str(kind).lower(), DEFAULT_LIFETIME if life is None else float(life)
