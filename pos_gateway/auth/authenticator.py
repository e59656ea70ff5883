"""Requests that a merchant's POS takes for ours."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pos_gateway.auth.redaction import redacted
from pos_gateway.auth.signing import headers_for
from pos_gateway.auth.tokens import Client, Token, Tokens
from pos_gateway.cache.refresh_ahead import Shared
from pos_gateway.domain.credentials import Credentials, Unreadable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Outcome
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.exchange import Reply, Request, Send, Transport

#: Seconds that a token endpoint has.
TOKEN_TIMEOUT = 10.0
#: Connections to one client's token endpoint; there is one request at a time.
_CONNECTIONS = 1


class Authenticator:
    """Adds what each merchant's record asks for. Safe from green threads.

    Args:
        transport: what requests for tokens go through.
        tokens: where other workers' tokens are.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock = SYSTEM_CLOCK,
        tokens: Shared[Token] | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._tokens = Tokens(self._fetch, clock, tokens)

    def sending(self, merchant: Merchant, send: Send, left: Callable[[], float]) -> Send:
        """The same ``send``, with the merchant's credentials on every request.

        Args:
            merchant: whose record says what it asks for.
            send: sends a request as it is.
            left: the seconds that are left for all of it, the wait for a token included.

        A POS that answers 401 to a token is asked once more, with a new one: it has not looked at
        the request. Raises Misconfigured and NotSent where there are no credentials to be had.
        """
        auth = _opened(merchant)
        if isinstance(auth, Client):
            return self._with_token(auth, send, left)

        def signed(request: Request) -> Reply:
            added = headers_for(auth, request, self._clock.now())
            return send(_with(request, added) if added else request)

        return signed

    def prepare(self, merchant: Merchant, timeout: float) -> None:
        """See that there is what ``sending`` adds; a token is waited for so many seconds.

        Raises:
            Misconfigured, NotSent: there is not.
        """
        auth = _opened(merchant)
        if isinstance(auth, Client):
            self._tokens.get(auth, timeout)

    def redacted(self, merchant: Merchant, outcome: Outcome) -> Outcome:
        """The outcome without the merchant's secrets, which its POS may have repeated."""
        auth = merchant.auth
        tokens = self._tokens.known(auth) if isinstance(auth, Client) else ()
        return redacted(outcome, (*auth.secrets, *tokens))

    def _with_token(self, auth: Client, send: Send, left: Callable[[], float]) -> Send:
        def once(request: Request) -> tuple[Reply, str]:
            token = self._tokens.get(auth, left())
            return send(_with(request, {"Authorization": f"Bearer {token}"})), token

        def authorised(request: Request) -> Reply:
            reply, token = once(request)
            if reply.status == 401:
                self._tokens.forget(auth, token)
                reply, _ = once(request)
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
    if isinstance(auth, Unreadable):
        raise NotSent("secret_key", f"the merchant's secrets are {auth.problem}")
    return auth


def _with(request: Request, headers: Mapping[str, str]) -> Request:
    return replace(request, headers={**request.headers, **headers})
