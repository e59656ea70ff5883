"""Who may call: access tokens, scopes, the OAuth endpoints ObtainToken and RevokeToken, rates.

*Document*: access tokens end after 30 days, 24 hours if ``short_lived``; the code flow returns the
same refresh token again, PKCE a new refresh token, for a single use within 90 days; RevokeToken
wants ``Authorization: Client SECRET`` and ends all tokens of the seller for the application, or a single
access token with ``revoke_only_access_token``. *Judgement*: an unknown, used, ended or
revoked refresh token is answered with 401 UNAUTHORIZED. Square publishes no rates: tests set a rate.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from testkit.vendors.http import VendorRequest
from testkit.vendors.square.refusals import Refused

#: Scopes for an order, and for the state of a merchant.
SCOPES = (
    "ORDERS_READ",
    "ORDERS_WRITE",
    "PAYMENTS_WRITE",
    "PAYMENTS_READ",
    "ITEMS_READ",
    "MERCHANT_PROFILE_READ",
)
_LIFE, _SHORT_LIFE, _PKCE_LIFE = timedelta(days=30), timedelta(days=1), timedelta(days=90)


@dataclass(slots=True)
class Token:
    """An access token or a refresh token."""

    ends_at: datetime | None
    scopes: frozenset[str]
    is_revoked: bool = False


class Access:
    """An application's tokens for a seller.

    Args:
        clock: the time.
        merchant_id: the seller's.
        pkce: the application has no secret; refresh tokens are used once.
        revoked: called when the seller's authorization ends.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        merchant_id: str,
        *,
        pkce: bool,
        revoked: Callable[[], None],
    ) -> None:
        self._clock, self._merchant_id, self._pkce = clock, merchant_id, pkce
        self._revoked = revoked
        self.client_id, self.client_secret = "sq0idp-application", "sq0csp-secret"
        self.access: dict[str, Token] = {}
        self.refresh: dict[str, Token] = {}
        self._made = 0
        self._recent: deque[datetime] = deque()

    def grant(self, scopes: Iterable[str] = SCOPES, *, short_lived: bool = False) -> dict[str, Any]:
        """Authorize the application; returns ObtainToken's reply."""
        known = frozenset(scopes)
        refresh = self._name("refresh")
        ends_at = self._clock() + _PKCE_LIFE if self._pkce else None
        self.refresh[refresh] = Token(ends_at, known)
        return self._issued(refresh, known, short_lived=short_lived)

    def check(self, request: VendorRequest, scopes: Iterable[str], per_second: int | None) -> None:
        """Raises Refused unless the request may be made now."""
        kind, _, name = request.headers.get("authorization", "").partition(" ")
        token = self.access.get(name) if kind == "Bearer" else None
        if token is None:
            raise Refused("UNAUTHORIZED", "This request could not be authorized.")
        if token.is_revoked:
            raise Refused("ACCESS_TOKEN_REVOKED", "The access token has been revoked.")
        if token.ends_at is not None and self._clock() >= token.ends_at:
            raise Refused("ACCESS_TOKEN_EXPIRED", "The access token has expired.")
        if missing := sorted(set(scopes) - token.scopes):
            detail = f"The merchant has not given your application {', '.join(missing)}."
            raise Refused("INSUFFICIENT_SCOPES", detail)
        self._keep_rate(per_second)

    def status(self, request: VendorRequest) -> dict[str, Any]:
        """RetrieveTokenStatus, for a request that was checked."""
        token = self.access[request.headers["authorization"].partition(" ")[2]]
        ends = {} if token.ends_at is None else {"expires_at": moment(token.ends_at)}
        known = {"client_id": self.client_id, "merchant_id": self._merchant_id}
        return {"scopes": sorted(token.scopes), **ends, **known}

    def _keep_rate(self, per_second: int | None) -> None:
        now = self._clock()
        while self._recent and now - self._recent[0] >= timedelta(seconds=1):
            self._recent.popleft()
        if per_second is not None and len(self._recent) >= per_second:
            raise Refused("RATE_LIMITED", "Too many requests. Try again later.")
        self._recent.append(now)

    def obtain(self, given: dict[str, Any]) -> dict[str, Any]:
        """ObtainToken with the refresh grant."""
        if given["grant_type"] != "refresh_token":
            raise Refused("INVALID_VALUE", "only refresh_token is simulated", "grant_type")
        is_client = given["client_id"] == self.client_id
        if not is_client or not (self._pkce or given.get("client_secret") == self.client_secret):
            raise Refused("UNAUTHORIZED", "The client is not known, or its secret is another.")
        name = given.get("refresh_token")
        if not name:
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "refresh_token")
        token = self.refresh.get(name)
        is_over = token is not None and token.ends_at is not None and self._clock() >= token.ends_at
        if token is None or token.is_revoked or is_over:
            raise Refused("UNAUTHORIZED", "The refresh token is not valid.")
        scopes = token.scopes & frozenset(given.get("scopes") or token.scopes)
        if self._pkce:
            del self.refresh[name]
            return self.grant(scopes, short_lived=bool(given.get("short_lived")))
        return self._issued(name, scopes, short_lived=bool(given.get("short_lived")))

    def _issued(self, refresh: str, scopes: frozenset[str], *, short_lived: bool) -> dict[str, Any]:
        access = self._name("access")
        ends_at = self._clock() + (_SHORT_LIFE if short_lived else _LIFE)
        self.access[access] = Token(ends_at, scopes)
        issued = {
            "access_token": access,
            "token_type": "bearer",
            "expires_at": moment(ends_at),
            "merchant_id": self._merchant_id,
            "refresh_token": refresh,
            "short_lived": short_lived,
        }
        until = self.refresh[refresh].ends_at
        return issued if until is None else {**issued, "refresh_token_expires_at": moment(until)}

    def revoke_request(self, request: VendorRequest, given: dict[str, Any]) -> dict[str, Any]:
        """RevokeToken."""
        if request.headers.get("authorization") != f"Client {self.client_secret}":
            raise Refused("UNAUTHORIZED", "The Authorization header must be Client SECRET.")
        name, merchant = given.get("access_token"), given.get("merchant_id")
        if (name is None) == (merchant is None):
            detail = "either access_token or merchant_id"
            raise Refused("CONFLICTING_PARAMETERS", detail, "access_token")
        if given.get("client_id") != self.client_id:
            raise Refused("NOT_FOUND", "The client is not known.", "client_id")
        if merchant not in (None, self._merchant_id) or name not in (None, *self.access):
            raise Refused("NOT_FOUND", "There is nothing to revoke.")
        if name is not None and given.get("revoke_only_access_token"):
            self.access[name].is_revoked = True
        else:
            self.revoke()
        return {"success": True}

    def revoke(self) -> None:
        """End the seller's authorization, with all tokens."""
        for token in (*self.access.values(), *self.refresh.values()):
            token.is_revoked = True
        self._revoked()

    def expire(self) -> None:
        """The access tokens end now; refresh tokens go on."""
        for token in self.access.values():
            token.ends_at = self._clock()

    def _name(self, what: str) -> str:
        self._made += 1
        return f"{what}-{self._made}"


def moment(when: datetime) -> str:
    """A timestamp in Square's form."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03}Z"
