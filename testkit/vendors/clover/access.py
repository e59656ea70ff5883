"""Who may call Clover, and how often: the tokens of OAuth v2, and the limits of requests.

Documented ("Use refresh token to generate new expiring token", "401 Unauthorized", "API usage and rate
limits"): a refresh token is used once; both expiries are Unix times in seconds; a missing permission is
a 401, too; 16 requests a second and 5 at once with a token, 50 and 10 by an app; a 429's headers; a wait
that grows if a request comes before its end.

Judgement: an access token outlives the refresh that replaces its pair; how long tokens last.
"""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from testkit.vendors.clover.refusal import Body, Refusal

#: Seconds that access and refresh tokens last.
_LASTS = (1_800, 31_536_000)


class _Limit(NamedTuple):
    header: str
    most: int
    of_app: bool
    at_once: bool


_LIMITS = (
    _Limit("X_RateLimit_tokenLimit", 16, of_app=False, at_once=False),
    _Limit("X_RateLimit_crossTokenLimit", 50, of_app=True, at_once=False),
    _Limit("X_RateLimit_tokenConcurrentLimit", 5, of_app=False, at_once=True),
    _Limit("X_RateLimit_crossTokenConcurrentLimit", 10, of_app=True, at_once=True),
)


class _Served(NamedTuple):
    """A request: its token, and its time in progress."""

    token: str
    start: float
    end: float


class App:
    """What all merchants of an app have asked of late. ``refused`` counts requests too many of any of them."""

    def __init__(self) -> None:
        self.served: list[_Served] = []
        self.refused = 0


class Access:
    """An app's tokens for one merchant, and its requests.

    Attributes:
        app: what counts for all merchants of the app.
        app_id, secret: the app's ``client_id`` and ``client_secret``.
        tokens: the end of each access token; None: never, as of a merchant's own API token.
        refresh_tokens: the end of each one that is not used yet.
        codes: authorization codes that are not used yet.
        missing: permissions that the merchant has not given.
    """

    app_id, secret = "APP0123456789", "app-secret"

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self.app = App()
        self.tokens: dict[str, float | None] = {"api-token": None}
        self.refresh_tokens: dict[str, float] = {}
        self.codes = {"code-1"}
        self.missing: set[str] = set()
        self._pairs = 0
        #: Of a token with too many requests at once: the end of its wait, and the wait's seconds.
        self._waits: dict[str, tuple[float, int]] = {}

    def revoke(self) -> None:
        """The merchant removes the app."""
        self.tokens, self.refresh_tokens, self.codes = {}, {}, set()

    def exchange(self, sent: Body) -> Body:
        """``/oauth/v2/token``: the first pair, for a code."""
        if (sent.get("client_id"), sent.get("client_secret")) != (self.app_id, self.secret):
            raise Refusal(401, "401 Unauthorized")
        if sent.get("code") not in self.codes:
            raise Refusal(401, "Failed to validate authentication code")
        self.codes.remove(sent["code"])
        return self.pair()

    def refresh(self, sent: Body) -> Body:
        """``/oauth/v2/refresh``: a new pair, for a refresh token."""
        if sent.get("client_id") != self.app_id:
            raise Refusal(401, "401 Unauthorized")
        end = self.refresh_tokens.pop(str(sent.get("refresh_token")), 0)
        if end <= self._now:
            raise Refusal(401, "Invalid refresh token")
        return self.pair()

    def pair(self) -> Body:
        """A new pair."""
        self._pairs += 1
        found: Body = {}
        for kind, seconds in zip(("access_token", "refresh_token"), _LASTS, strict=True):
            found[kind] = f"{kind}-{self._pairs}"
            found[f"{kind}_expiration"] = int(self._now + seconds)
        self.tokens[found["access_token"]] = found["access_token_expiration"]
        self.refresh_tokens[found["refresh_token"]] = found["refresh_token_expiration"]
        return found

    def admit(self, authorization: str, permission: str, seconds: float) -> None:
        """Count a request that is in progress for these seconds. Raises Refusal."""
        scheme, _, token = authorization.partition(" ")
        now, end = self._now, self.tokens.get(token, 0.0)
        is_valid = scheme == "Bearer" and (end is None or end > now)
        if not is_valid or permission in self.missing:
            raise Refusal(401, "401 Unauthorized")
        served = [each for each in self.app.served if max(each.start + 1, each.end) > now]
        self.app.served = served
        until, wait = self._waits.get(token, (0, 0))
        if until > now:
            self._refuse(_LIMITS[2], token, 2 * wait)
        for limit in _LIMITS:
            counted = [each for each in served if limit.of_app or each.token == token]
            if limit.most <= sum(
                (each.end if limit.at_once else each.start + 1) > now for each in counted
            ):
                self._refuse(limit, token, int(limit.at_once))
        served.append(_Served(token, now, now + seconds))

    def _refuse(self, limit: _Limit, token: str, wait: int) -> None:
        self.app.refused += 1
        headers = {limit.header: str(limit.most)}
        if wait:
            self._waits[token] = (self._now + wait, wait)
            headers["retry_after"] = str(wait)
        raise Refusal(429, "429 Too Many Requests", **headers)

    @property
    def _now(self) -> float:
        return self._clock().timestamp()
