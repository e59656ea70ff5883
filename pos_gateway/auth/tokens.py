"""Access tokens: one request for all who need one, made again before it expires."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any
from urllib.parse import quote, urlencode

from pos_gateway.auth.signing import basic
from pos_gateway.credentials import OAuth2, ToastLogin
from pos_gateway.green import green
from pos_gateway.transport.errors import Misconfigured, NotSent, TransportError
from pos_gateway.transport.exchange import Reply, Request

#: Seconds before its end that a token is not used any more: it has to get there, and clocks differ.
EARLY = 30.0
#: Part of a token's life after which it is fetched anew, beside the orders.
REFRESH = 0.5
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


@dataclass(slots=True)
class _Token:
    value: str
    since: float
    #: When it is to be fetched anew, beside the orders, and when it is not used any more.
    due: float
    until: float
    #: The value of the one before it.
    former: str = ""


class Tokens:
    """Tokens by credentials. Safe from green threads.

    Args:
        fetch: asks an endpoint, and raises TransportError.
        now: seconds of a clock that never jumps.
    """

    def __init__(self, fetch: Fetch, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._tokens: OrderedDict[str, _Token] = OrderedDict()
        self._refused: dict[str, tuple[float, TransportError]] = {}
        self._under_way: dict[str, Any] = {}

    def get(self, credentials: Client, timeout: float) -> str:
        """A token that is good for a while yet, waited for so many seconds at most.

        The request for it goes on for those who still wait.

        Raises:
            Misconfigured: the endpoint refuses the client.
            NotSent: it cannot be had at present; the order was not sent.
        """
        key = credentials.fingerprint
        token = self._tokens.get(key)
        if token is None or self._now() >= token.until:
            return self._wait(key, credentials, timeout)
        if self._now() >= token.due and green() and not self._is_refused(key):
            self._begin(key, credentials)
        return token.value

    def forget(self, credentials: Client, value: str) -> None:
        """The POS does not take this token any more. One that came since then is kept.

        So is one of Toast's that must be used for a while yet: a new one would be the same.
        """
        token, now = self._tokens.get(credentials.fingerprint), self._now()
        if token is None or token.value != value:
            return
        if not isinstance(credentials, ToastLogin) or now >= token.since + TOAST_REUSED:
            token.until = now

    def known(self, credentials: Client) -> tuple[str, ...]:
        """The values that a POS may have seen lately."""
        token = self._tokens.get(credentials.fingerprint)
        return () if token is None else tuple(filter(None, (token.value, token.former)))

    def _is_refused(self, key: str) -> bool:
        until, _ = self._refused.get(key, (-inf, None))
        return self._now() < until

    def _wait(self, key: str, credentials: Client, timeout: float) -> str:
        if self._is_refused(key):
            raise self._refused[key][1]
        if not green():
            return self._ask(key, credentials).value
        asking = self._begin(key, credentials)
        asking.join(timeout)
        if not asking.ready():
            raise NotSent("token", f"no token within {timeout:.3g} s")
        token: _Token | None = asking.value
        if token is None:
            problem = self._refused.get(key)
            raise problem[1] if problem else NotSent("token", "no token could be had")
        return token.value

    def _begin(self, key: str, credentials: Client) -> Any:
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        asking = self._under_way.get(key)
        if asking is None:
            asking = self._under_way[key] = gevent.spawn(self._try, key, credentials)
            asking.rawlink(lambda _: self._under_way.pop(key, None))
        return asking

    def _try(self, key: str, credentials: Client) -> _Token | None:
        try:
            return self._ask(key, credentials)
        except TransportError:
            return None

    def _ask(self, key: str, credentials: Client) -> _Token:
        began = self._now()
        try:
            token = _parsed(credentials, self._fetch(credentials, _request(credentials)), began)
        except TransportError as error:
            # Whatever came of asking for a token, the order itself was not sent.
            problem = error if isinstance(error, NotSent) else NotSent("token", error)
            too_often = isinstance(credentials, ToastLogin) and isinstance(problem, Misconfigured)
            self._refused[key] = (self._now() + (TOAST_REUSED if too_often else REFUSED), problem)
            raise problem from None
        self._refused.pop(key, None)
        before = self._tokens.get(key)
        token.former = "" if before is None else before.value
        self._tokens[key] = token
        self._tokens.move_to_end(key)
        if len(self._tokens) > MOST:
            self._tokens.popitem(last=False)
        return token


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


def _parsed(credentials: Client, reply: Reply, began: float) -> _Token:
    if reply.status in (400, 401, 403):
        raise Misconfigured("token", f"the token endpoint answered {reply.status}")
    is_toasts = isinstance(credentials, ToastLogin)
    try:
        record = json.loads(reply.body)
        if is_toasts:
            record = record["token"]
        names = _TOAST_NAMES if is_toasts else _NAMES
        value, kind = record[names[0]], record.get(names[1], "bearer")
        life = float(record.get(names[2], UNSAID))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NotSent("token", f"no token in the endpoint's {reply.status}") from None
    usable = isinstance(value, str) and value.isascii() and value.isprintable() and value.strip()
    if reply.status != 200 or not usable or str(kind).lower() != "bearer" or not life > 0:
        raise NotSent("token", f"no usable token in the endpoint's {reply.status}")
    life = min(life, LONGEST)
    used = max(life - EARLY, life / 2)
    due = max(used * REFRESH, life - TOAST_RENEWED if is_toasts else 0.0)
    return _Token(value, began, began + due, began + used)
