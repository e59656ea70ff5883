"""Authenticates requests to a merchant's POS."""

from collections.abc import Mapping
from datetime import datetime
from uuid import uuid4

from standardwebhooks import Webhook

from pos_gateway.auth.grant_store import GrantStore
from pos_gateway.auth.grants import Grants
from pos_gateway.auth.redaction import redacted
from pos_gateway.auth.tokens import Client, PosToken, PosTokens
from pos_gateway.cache.refresh_ahead import Shared
from pos_gateway.domain.credentials import (
    ApiKey,
    Basic,
    Bearer,
    Credentials,
    OAuth2Grant,
    Signature,
    UnreadableCredentials,
    basic,
)
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Outcome
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.exchange import Reply, Request, Transport

#: Deadline of a token request, in seconds.
TOKEN_TIMEOUT = 10.0
#: Connections to one client's token endpoint: requests are single flight.
_CONNECTIONS = 1
_BEARER = "Bearer "
#: Code of a grant that an operator has to replace soon.
GRANT = "grant"


class Authenticator:
    """Authenticates requests to each merchant, by headers. Safe from green threads.

    Args:
        transport: sends token requests.
        tokens: the cache shared with other workers.
        grants: the grants' rows; None: no merchant with a grant can be called.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock = SYSTEM_CLOCK,
        tokens: Shared[PosToken] | None = None,
        grants: GrantStore | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._grants = None if grants is None else Grants(grants, self._fetch, clock)
        self._tokens = PosTokens(self._fetch, clock, tokens, self._grants)

    def headers(self, auth: Credentials, request: Request, timeout: float) -> Mapping[str, str]:
        """The request's credentials; waits at most ``timeout`` seconds for a token.

        Raises:
            NotSent: there is no token.
        """
        if isinstance(auth, Client):
            return _bearer(self._tokens.get(auth, timeout))
        match auth:
            case ApiKey():
                return {auth.header: auth.key.get_secret_value()}
            case Basic():
                return {"Authorization": basic(auth.username, auth.password.get_secret_value())}
            case Bearer():
                return _bearer(auth.token.get_secret_value())
            case Signature():
                return _signature(auth, request, self._clock.now())
        return {}

    def instead(
        self, auth: Credentials, refused: Mapping[str, str], timeout: float
    ) -> Mapping[str, str] | None:
        """The credentials with a new token, after a 401; None: there is no new token.

        A request answered with 401 was not processed. Waits at most ``timeout`` seconds.
        """
        if not isinstance(auth, Client):
            return None
        token = refused["Authorization"].removeprefix(_BEARER)
        another = self._tokens.instead(auth, token, timeout)
        return None if another is None else _bearer(another)

    def prepare(self, merchant: Merchant, timeout: float) -> None:
        """Check that the merchant has credentials; waits at most ``timeout`` seconds for a token.

        Raises:
            NotSent: it has none, or its grant soon ends or is refused.
        """
        auth = credentials_of(merchant)
        if isinstance(auth, Client):
            self._tokens.get(auth, timeout)
        if isinstance(auth, OAuth2Grant) and self._grants and (found := self._grants.problem(auth)):
            raise NotSent(GRANT, found)

    def stop(self) -> None:
        """Wait until tokens that were fetched are stored. Idempotent."""
        if self._grants is not None:
            self._grants.stop()

    def redacted(self, merchant: Merchant, outcome: Outcome) -> Outcome:
        """The outcome without the merchant's secrets, which its POS may have repeated."""
        auth = merchant.auth
        tokens = self._tokens.known(auth) if isinstance(auth, Client) else ()
        return redacted(outcome, (*auth.secrets, *tokens))

    def _fetch(self, auth: Client, request: Request) -> Reply:
        return self._transport.send(
            request,
            key=f"token {auth.fingerprint}",
            connections=_CONNECTIONS,
            seconds=TOKEN_TIMEOUT,
            identity=auth.tls,
        )


def credentials_of(merchant: Merchant) -> Credentials:
    """The merchant's credentials. Raises NotSent: unreadable here."""
    auth = merchant.auth
    if isinstance(auth, UnreadableCredentials):
        raise NotSent("secret_key", f"the merchant's secrets are {auth.problem}")
    return auth


def _bearer(token: str) -> Mapping[str, str]:
    return {"Authorization": f"{_BEARER}{token}"}


def _signature(credentials: Signature, request: Request, now: datetime) -> Mapping[str, str]:
    # A retry of the same order is the same message.
    message_id = request.headers.get("Idempotency-Key") or f"msg_{uuid4().hex}"
    body = (request.body or b"").decode()
    signature = Webhook(credentials.secret.get_secret_value()).sign(message_id, now, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
