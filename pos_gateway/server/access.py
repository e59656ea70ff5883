"""Who asks, whether it may, and how often: every route but health asks here first."""

import time
from collections.abc import Iterable

import structlog

from pos_gateway.server.body import header
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.rate import RateLimits
from pos_gateway.tokens.token import Capability, Token, is_well_formed
from pos_gateway.tokens.tokens import Tokens

log = structlog.get_logger(__name__)

_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="pos-gateway"'}
#: Longest header that is read: a token has 53 characters.
_LONGEST = 256


class Access:
    """Finds a request's token. For the event loop.

    Args:
        tokens: the valid ones.
        limits: the tokens' rate limits.
    """

    def __init__(self, tokens: Tokens, limits: RateLimits) -> None:
        self._tokens = tokens
        self._limits = limits

    def require(self, headers: Iterable[tuple[bytes, bytes]], needed: Capability) -> Token:
        """The request's token, which pays for one request.

        Args:
            headers: the request's.
            needed: what the request does.

        Raises:
            Problem: 401, 403, 429; 503 while the tokens are unknown.
        """
        token = self._find(header(headers, b"authorization"))
        if not token.role.allows(needed):
            raise Problem(
                403,
                "not_allowed",
                f"the token {token.name!r} has the role {token.role}, which may not {needed}",
            )
        self._charge(token, 1, taken=0)
        return token

    def charge_batch(self, token: Token, orders: int) -> None:
        """Have the token, which ``require`` gave, pay for this many requests. Raises Problem 429."""
        self._charge(token, orders, taken=1)

    def _charge(self, token: Token, cost: int, *, taken: int) -> None:
        wait = self._limits.take(token, time.monotonic(), cost, taken=taken)
        if wait:
            raise Problem(
                429,
                "rate_limited",
                f"the token {token.name!r} sends more requests a second than it may; "
                f"wait {wait:.1f} s",
                retry_after=wait,
            )

    def _find(self, given: bytes | None) -> Token:
        if given is None:
            raise self._unauthorized("send the header Authorization: Bearer TOKEN")
        if len(given) > _LONGEST or given[: len(_BEARER)].lower() != _BEARER:
            raise self._unauthorized("the header should be Authorization: Bearer TOKEN")
        text = given[len(_BEARER) :].strip().decode("latin-1")
        found = self._tokens.find(text)
        if found is not None:
            return found
        if self._tokens.problem is not None:
            raise Problem(503, "tokens_unknown", self._tokens.problem, retry_after=1)
        if not is_well_formed(text):
            raise self._unauthorized("that is no token; one begins with pgw_ and has 53 characters")
        raise self._unauthorized("no valid token is like this one: it is unknown, or was revoked")

    def _unauthorized(self, detail: str) -> Problem:
        if self._tokens.is_empty:
            detail += "; there is no token yet: pos-gateway tokens create NAME --role backend"
        return Problem(401, "unauthorized", detail, headers=_CHALLENGE)
