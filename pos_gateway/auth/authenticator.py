"""Authenticates requests to a merchant's POS."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pos_gateway.auth.redaction import redacted
from pos_gateway.auth.signing import headers_for
from pos_gateway.auth.tokens import Client, PosToken, PosTokens
from pos_gateway.cache.refresh_ahead import Shared
from pos_gateway.domain.credentials import Credentials, UnreadableCredentials
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Outcome
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.exchange import Exchange, Reply, Request, Transport

#: Deadline of a token request, in seconds.
TOKEN_TIMEOUT = 10.0
#: Connections to one client's token endpoint: requests are single flight.
_CONNECTIONS = 1


class Authenticator:
    """Adds each merchant's credentials to requests. Safe from green threads.

    Args:
        transport: sends token requests.
        tokens: the cache shared with other workers.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock = SYSTEM_CLOCK,
        tokens: Shared[PosToken] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._tokens = PosTokens(self._fetch, clock, tokens)

    def sending(self, merchant: Merchant, send: Exchange, left: Callable[[], float]) -> Exchange:
        """The same ``send``, with the merchant's credentials on every request.

        Args:
            merchant: whose credentials to use.
            send: sends a request unchanged.
            left: seconds left in all, the wait for a token included.

        A 401 to a token is retried once with another one, if there is one: the POS has not processed
        the request.
        Raises NotSent where no credentials are available.
        """
        auth = _opened(merchant)
        if isinstance(auth, Client):
            return self._with_token(auth, send, left)

        def signed(request: Request) -> Reply:
            added = headers_for(auth, request, self._clock.now())
            return send(_with(request, added) if added else request)

        return signed

    def prepare(self, merchant: Merchant, timeout: float) -> None:
        """Check that ``sending`` has credentials; waits at most ``timeout`` seconds for a token.

        Raises:
            NotSent: it has none.
        """
        auth = _opened(merchant)
        if isinstance(auth, Client):
            self._tokens.get(auth, timeout)

    def redacted(self, merchant: Merchant, outcome: Outcome) -> Outcome:
        """The outcome without the merchant's secrets, which its POS may have repeated."""
        auth = merchant.auth
        tokens = self._tokens.known(auth) if isinstance(auth, Client) else ()
        return redacted(outcome, (*auth.secrets, *tokens))

    def _with_token(self, auth: Client, send: Exchange, left: Callable[[], float]) -> Exchange:
        def with_token(request: Request, token: str) -> Reply:
            return send(_with(request, {"Authorization": f"Bearer {token}"}))

        def authorised(request: Request) -> Reply:
            token = self._tokens.get(auth, left())
            reply = with_token(request, token)
            if reply.status == 401:
                another = self._tokens.instead(auth, token, left())
                return reply if another is None else with_token(request, another)
            return reply

        return authorised

    def _fetch(self, auth: Client, request: Request) -> Reply:
        return self._transport.send(
            request,
            key=f"token {auth.fingerprint}",
            connections=_CONNECTIONS,
            seconds=TOKEN_TIMEOUT,
            identity=auth.tls,
        )


def _opened(merchant: Merchant) -> Credentials:
    auth = merchant.auth
    if isinstance(auth, UnreadableCredentials):
        raise NotSent("secret_key", f"the merchant's secrets are {auth.problem}")
    return auth


def _with(request: Request, headers: Mapping[str, str]) -> Request:
    return replace(request, headers={**request.headers, **headers})
