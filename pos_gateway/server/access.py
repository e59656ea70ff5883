"""Authenticates requests by token, checks roles, and charges rate limits: for every route but health."""

import asyncio
import time
from collections import Counter

import structlog

from pos_gateway.server.body import Scope, header
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.audit import TokenAudit
from pos_gateway.tokens.rate import RateLimits
from pos_gateway.tokens.token import Capability, Role, Token, is_well_formed
from pos_gateway.tokens.tokens import Tokens

log = structlog.get_logger(__name__)

#: Where a request's scope has its token's digest, once that was found.
HOLDER = "holder"
_BEARER = b"bearer "
_CHALLENGE = {"www-authenticate": 'Bearer realm="pos-gateway"'}
#: Longest header that is read: a token has 53 characters.
_LONGEST = 256
#: Longest text of an address; a proxy may have passed on something else.
_LONGEST_ADDRESS = 45
#: Seconds between two lines of the log about refused tokens, and maximum clients counted in that time.
_LOG_EVERY, _MAX_CLIENTS = 1.0, 1000


class Access:
    """Finds a request's token. For the event loop.

    Args:
        tokens: the valid ones.
        limits: the tokens' rate limits.
        audit: of what their holders do.
    """

    def __init__(self, tokens: Tokens, limits: RateLimits, audit: TokenAudit) -> None:
        self._tokens = tokens
        self._limits = limits
        self._audit = audit
        self._refusals = _Refusals()

    def require(self, scope: Scope, needed: Capability) -> Token:
        """The request's token, which pays for one request.

        Args:
            scope: the request's.
            needed: what the request does.

        Raises:
            Problem: 401, 403, 429; 503 while the tokens are unknown.
        """
        name = None
        try:
            token = self._find(header(scope["headers"], b"authorization"))
            name = token.name
            self._require_role(token, needed)
        except Problem as problem:
            if problem.status in (401, 403):
                self._refusals.add(_client(scope), problem.status, name)
            raise
        self.charge(token)
        scope[HOLDER] = token.digest
        return token

    def charge(self, token: Token) -> None:
        """Have a page's token pay for one request. Raises Problem 429."""
        self._charge(token, 1, taken=0)

    def charge_batch(self, token: Token, orders: int) -> None:
        """Have the token, which ``require`` gave, pay for this many requests. Raises Problem 429."""
        self._charge(token, orders, taken=1)

    def acted(self, token: Token, scope: Scope, what: str, merchant_id: str, order_id: str) -> None:
        """Write to the audit what the request does."""
        self._audit.note(token, what, _client(scope), merchant_id=merchant_id, order_id=order_id)

    def revealed(
        self, token: Token, scope: Scope, what: str, merchant_id: str = "", order_id: str = ""
    ) -> None:
        """Write to the audit that personal data was shown, if to an operator: a backend has sent it itself."""
        if token.role is Role.OPERATOR:
            self.acted(token, scope, what, merchant_id, order_id)

    def refused(self, scope: Scope, status: int, token: str | None) -> None:
        """Log that a token was refused."""
        self._refusals.add(_client(scope), status, token)

    def client(self, scope: Scope) -> str:
        """The client's address."""
        return _client(scope)

    def is_valid(self, token: Token) -> bool:
        """Whether the token still is: neither revoked, nor of another role now."""
        current = self._tokens.current(token.digest)
        return current is not None and current.role is token.role

    def confirm(self, token: Token) -> None:
        """After a wait: raise Problem if the token is not valid any more."""
        if not self.is_valid(token):
            raise self._unknown()

    def _require_role(self, token: Token, needed: Capability) -> None:
        if not token.role.allows(needed):
            raise Problem(
                403,
                "not_allowed",
                f"the token {token.name!r} has the role {token.role}, which may not {needed}",
            )

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
        if self._tokens.problem is None and not is_well_formed(text):
            raise self._unauthorized("that is no token; one begins with pgw_ and has 53 characters")
        raise self._unknown()

    def _unknown(self) -> Problem:
        if self._tokens.problem is not None:
            return Problem(503, "tokens_unknown", self._tokens.problem, retry_after=1)
        return self._unauthorized("no valid token is like this one: it is unknown, or was revoked")

    def _unauthorized(self, detail: str) -> Problem:
        if self._tokens.is_empty:
            detail += "; there is no token yet: pos-gateway tokens create NAME --role backend"
        return Problem(401, "unauthorized", detail, headers=_CHALLENGE)


class _Refusals:
    """Logs refused tokens: a line a second at most, so that guessing is seen, and fills no log."""

    def __init__(self) -> None:
        self._clients: Counter[str] = Counter()
        self._count = 0
        #: The last one's status, and the name of its token, if that is known.
        self._last: tuple[int, str | None] = 0, None

    def add(self, client: str, status: int, token: str | None) -> None:
        if self._count == 0:
            asyncio.get_running_loop().call_later(_LOG_EVERY, self._log)
        self._count += 1
        self._last = status, token
        if client in self._clients or len(self._clients) < _MAX_CLIENTS:
            self._clients[client] += 1

    def _log(self) -> None:
        """With the client that had most refusals, and the last one's status."""
        [(client, _)] = self._clients.most_common(1)
        status, token = self._last
        log.warning(
            "token.refused",
            client=client,
            clients=len(self._clients),
            count=self._count,
            status=status,
            token=token,
        )
        self._clients.clear()
        self._count = 0


def _client(scope: Scope) -> str:
    """The client's address."""
    client = scope.get("client")
    return str(client[0])[:_LONGEST_ADDRESS] if client else ""
