"""The listening server: the merchants' API and the control API on one port."""

import asyncio
import ssl
from types import TracebackType

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.connection import ClientConnection, ClientConnections, Exchange
from pos_gateway.simulated_merchants.control import Control
from pos_gateway.simulated_merchants.orders import NEAR
from pos_gateway.simulated_merchants.pos import PointOfSale
from pos_gateway.simulated_merchants.records import Records
from pos_gateway.simulated_merchants.scenario import Scenario

#: Clients that connect all at once are let in all at once.
_BACKLOG = 4096


class MerchantServer:
    """Plays the merchants of a scenario while the context is open."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        keep_bodies: bool = False,
        near: int = NEAR,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connections = ClientConnections()
        self._pos = PointOfSale(scenario, Records(keep_bodies=keep_bodies, near=near), seed)
        self._control = Control(self._pos, self._connections)
        self._server: asyncio.Server

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port = self._server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def __aenter__(self) -> "MerchantServer":
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self._handle, self._connections),
            self._host,
            self._port,
            ssl=self._tls,
            backlog=_BACKLOG,
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self._connections.drop()

    def _handle(self, exchange: Exchange) -> None:
        if exchange.target.startswith(b"/m/"):
            self._pos.handle(exchange)
        elif exchange.target.startswith(b"/_/"):
            self._control.handle(exchange)
        else:
            exchange.answer(replies.NOT_FOUND)
