"""Who is at the other end of a connection: what no header can change."""

from collections.abc import Awaitable, Callable

from pos_gateway.server.body import Receive, Scope, Send

#: Where a request's scope has it: address and port; ``client`` may be what a trusted proxy says.
PEER = "peer"
#: Begins the address of a client over IPv4 on a socket for both.
_MAPPED = "::ffff:"

_App = Callable[[Scope, Receive, Send], Awaitable[None]]


def noting_peer(app: _App) -> _App:
    """The application, for requests before any ``X-Forwarded-For`` is believed."""

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client and client[0].startswith(_MAPPED):
            scope["client"] = client = (client[0].removeprefix(_MAPPED), client[1])
        scope[PEER] = client
        await app(scope, receive, send)

    return noting


def unquoting(app: _App) -> _App:
    """The application, for requests whose ``X-Forwarded-For`` may have quotes, as of RFC 7239."""

    async def unquoted(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"] = [
            (name, value.replace(b'"', b"") if name == b"x-forwarded-for" else value)
            for name, value in scope["headers"]
        ]
        await app(scope, receive, send)

    return unquoted
