"""Who is at the other end of a connection: what no header can change."""

from collections.abc import Awaitable, Callable

from pos_gateway.server.body import Receive, Scope, Send

#: Where a request's scope has it: address and port; ``client`` may be what a trusted proxy says.
PEER = "peer"


_App = Callable[[Scope, Receive, Send], Awaitable[None]]


def noting_peer(app: _App) -> _App:
    """The application, for requests before any ``X-Forwarded-For`` is believed."""

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await app(scope, receive, send)

    return noting
