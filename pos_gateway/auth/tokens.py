"""Access tokens: one request for all who need one, made again before it expires."""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from pos_gateway.auth.signing import basic
from pos_gateway.cache.refresh_ahead import REFRESH, Loaded, RefreshAheadCache, Shared
from pos_gateway.domain.credentials import OAuth2, ToastLogin
from pos_gateway.domain.errors import NotLoaded
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import green
from pos_gateway.transport.errors import Misconfigured, NotSent, TransportError
from pos_gateway.transport.exchange import Reply, Request

#: Seconds before its end that a token is not used any more: it has to get there, and clocks differ.
EARLY = 30.0
#: Seconds by which the next token is newer at least than one that is not taken any more.
NEWER = 0.001
#: Seconds that a token lives that does not say how long, and that one is kept at most.
UNSAID, LONGEST = 300.0, 24 * 3600.0
#: Seconds for which a refusal is believed before the endpoint is asked again.
REFUSED = 5.0
#: The same of Toast's ("Authentication rate limit", "Refreshing authentication tokens"): no more
#: than two logins an hour, and one that is asked for earlier than so long before its end is the
#: same token again.
TOAST_REUSED, TOAST_RENEWED = 1800.0, 60.0
#: What a reply calls a token, its kind and its life in seconds (RFC 6749, 5.1); Toast's differ.
_NAMES = ("access_token", "token_type", "expires_in")
_TOAST_NAMES = ("accessToken", "tokenType", "expiresIn")
#: Credentials whose tokens are kept.
MOST = 20_000

#: Sends a request to a token endpoint within a deadline of its own.
Fetch = Callable[["Client", Request], Reply]
#: Credentials that are good for a token.
Client = OAuth2 | ToastLogin


@dataclass(frozen=True, slots=True)
class Token:
    """An access token, and when it was asked for (Unix time)."""

    value: str
    since: float


class _Refused(Exception):
    """There is no token to be had."""

    def __init__(self, problem: TransportError, pause: float) -> None:
        super().__init__(str(problem))
        self.problem = problem
        #: Seconds until it makes sense to ask again.
        self.pause = pause


class Tokens:
    """Tokens by credentials. Safe from green threads.

    Args:
        fetch: asks an endpoint, and raises TransportError.
        shared: where other workers' tokens are, those of one client being good for all.
    """

    def __init__(
        self, fetch: Fetch, clock: Clock = SYSTEM_CLOCK, shared: Shared[Token] | None = None
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        #: Whose tokens they are, by fingerprint; and what each has now, and had before.
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._seen: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._cache = RefreshAheadCache(
            "tokens",
            self._load,
            lifetime=UNSAID,
            absent=0.0,
            stale=0.0,
            most=MOST,
            failures=(_Refused,),
            pause=_pause,
            together=1,  # an endpoint that hangs is not to keep others' tokens waiting
            shared=shared,
            may_thread=green,
            clock=clock,
        )
        self._cache.listen(self._came)

    def get(self, credentials: Client, timeout: float) -> str:
        """A token that is good for a while yet, waited for so many seconds at most.

        The request for it goes on for those who still wait.

        Raises:
            Misconfigured: the endpoint refuses the client.
            NotSent: it cannot be had at present; the order was not sent.
        """
        key = credentials.fingerprint
        if key not in self._clients:
            _remember(self._clients, key, credentials)
        try:
            token = self._cache.get(key, timeout)
        except NotLoaded:
            raise NotSent("token", f"no token within {timeout:.3g} s") from None
        except _Refused as refused:
            raise refused.problem from None
        if token is None:
            raise NotSent("token", "no token could be had")
        return token.value

    def forget(self, credentials: Client, value: str) -> None:
        """The POS does not take this token any more. One that came since then is kept.

        So is one of Toast's that must be used for a while yet: a new one would be the same.
        """
        key = credentials.fingerprint
        token = self._cache.peek(key)
        if token is None or token.value != value:
            return
        age = self._clock.now().timestamp() - token.since
        if not isinstance(credentials, ToastLogin) or age >= TOAST_REUSED:
            self._cache.outdated(key, token.since + NEWER)

    def known(self, credentials: Client) -> tuple[str, ...]:
        """The values that a POS may have seen lately."""
        return self._seen.get(credentials.fingerprint, ())

    def _came(self, key: str, token: Token | None) -> None:
        before = self._seen.get(key, ())
        if token is not None and token.value not in before[:1]:
            _remember(self._seen, key, (token.value, *before[:1]))

    def _load(self, keys: Sequence[str]) -> dict[str, Loaded[Token]]:
        [key] = keys
        credentials, since = self._clients[key], self._clock.now().timestamp()
        try:
            value, life = _parsed(credentials, self._fetch(credentials, _request(credentials)))
        except TransportError as error:
            # Whatever came of asking for a token, the order itself was not sent.
            problem = error if isinstance(error, NotSent) else NotSent("token", error)
            too_often = isinstance(credentials, ToastLogin) and isinstance(problem, Misconfigured)
            raise _Refused(problem, TOAST_REUSED if too_often else REFUSED) from None
        used = max(life - EARLY, life / 2)
        is_toasts = isinstance(credentials, ToastLogin)
        due = max(used * REFRESH, life - TOAST_RENEWED) if is_toasts else None
        return {key: Loaded(Token(value, since), since, used, due)}


def _pause(refused: Exception) -> float:
    return refused.pause if isinstance(refused, _Refused) else REFUSED


def _remember(kept: OrderedDict[str, Any], key: str, value: Any) -> None:
    """As the newest of so many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MOST:
        kept.popitem(last=False)


def _request(credentials: Client) -> Request:
    if isinstance(credentials, ToastLogin):
        return _login(credentials)
    secret = credentials.client_secret.get_secret_value()
    fields = {"grant_type": "client_credentials"}
    fields |= {"scope": credentials.scope} if credentials.scope else {}
    fields |= {"audience": credentials.audience} if credentials.audience else {}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if credentials.style == "basic":
        # RFC 6749, 2.3.1: both parts are encoded as in a form first.
        headers["Authorization"] = basic(quote(credentials.client_id, ""), quote(secret, ""))
    else:
        fields |= {"client_id": credentials.client_id, "client_secret": secret}
    body = urlencode(fields).encode()
    if credentials.style == "json":
        headers["Content-Type"], body = "application/json", json.dumps(fields).encode()
    return Request("POST", credentials.token_url, body, headers)


def _login(credentials: ToastLogin) -> Request:
    fields = {
        "clientId": credentials.client_id,
        "clientSecret": credentials.client_secret.get_secret_value(),
        "userAccessType": "TOAST_MACHINE_CLIENT",
    }
    headers = {"Content-Type": "application/json"}
    return Request("POST", credentials.token_url, json.dumps(fields).encode(), headers)


def _parsed(credentials: Client, reply: Reply) -> tuple[str, float]:
    """A token, and the seconds that it lives."""
    if reply.status in (400, 401, 403):
        raise Misconfigured("token", f"the token endpoint answered {reply.status}")
    try:
        value, kind, life = _said(credentials, reply.body)
    except Exception:  # noqa: BLE001  (an endpoint may say anything: 1e999 seconds, brackets without end)
        raise NotSent("token", f"no token in the endpoint's {reply.status}") from None
    usable = value.isascii() and value.isprintable() and value.strip()
    if reply.status != 200 or not usable or kind != "bearer" or not life > 0:
        raise NotSent("token", f"no usable token in the endpoint's {reply.status}")
    return value, min(life, LONGEST)


def _said(credentials: Client, body: bytes) -> tuple[str, str, float]:
    """A reply's token, its kind, and the seconds that it lives. Raises whatever parsing raises."""
    record, names = json.loads(body), _NAMES
    if isinstance(credentials, ToastLogin):
        record, names = record["token"], _TOAST_NAMES
    value, kind = record[names[0]], record.get(names[1], "bearer")
    if not isinstance(value, str):
        raise TypeError("the token is no text")
    return value, str(kind).lower(), float(record.get(names[2], UNSAID))
