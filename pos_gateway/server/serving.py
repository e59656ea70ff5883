"""Runs the server until a signal stops it."""

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from pos_gateway.runtime.addresses import networks
from pos_gateway.runtime.limits import OTHER_FILES, allow_files, return_large_blocks
from pos_gateway.server.held import Held
from pos_gateway.server.peer import noting_peer, unquoting
from pos_gateway.server.site import Site
from pos_gateway.server.uvicorn_internals import HttpServer, Loop, Protocol

log = structlog.get_logger(__name__)

#: Seconds for requests in flight when it stops.
GRACE = 10
#: Seconds without a request after which a connection is closed: longer than a proxy's own limit
#: (60 s, mostly). A proxy with a longer one would send a request at the moment of closing.
KEEP_ALIVE = 75
#: Bytes of a reply that the kernel buffers for a connection; it allocates twice as many. By default up
#: to four megabytes, which count as the pod's memory.
SEND_BUFFER = 128 * 1024
#: Objects that are made between two searches for garbage in cycles; a batch of orders is some ten thousand,
#: and makes none.
_SEARCH_AFTER = 10_000


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dual = host == "::" and socket.has_dualstack_ipv6()  # both, as the metrics port
    listener = socket.create_server(
        (host, port), family=family, backlog=2048, dualstack_ipv6=is_dual
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections', too
    return listener


def serve(
    site: Site,
    listener: socket.socket,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    on_ready: Callable[[str, int], None],
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends the process at once.

    Args:
        listener: takes the connections.
        certificate, key: PEM files, for TLS.
        on_ready: called with address and port once it serves.
    """
    config = _config(site, certificate, key)
    config.load()  # reads the certificate
    server = HttpServer(config, on_stop=site.end_streams)
    gc.collect()
    gc.freeze()  # what is loaded by now is no garbage
    gc.set_threshold(_SEARCH_AFTER)
    return_large_blocks()
    address, bound = listener.getsockname()[:2]
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(_serve(site, server, listener, lambda: on_ready(address, bound)))


async def _serve(
    site: Site, server: HttpServer, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    site.start()
    try:
        on_ready()
        await server.serve(sockets=[listener])
    finally:
        site.stop()


def _config(site: Site, certificate: Path | None, key: Path | None) -> uvicorn.Config:
    proxies = [str(each) for each in networks(site.settings.trusted_proxies)]
    connections = _allowed(site.settings.http_connections)
    limits = {"max_connections": connections, "idle": {}, "held": Held()}
    app: Any = site.app
    if proxies:
        app = ProxyHeadersMiddleware(app, trusted_hosts=proxies)
        app = unquoting(app)
    return uvicorn.Config(
        noting_peer(app),
        http=type("Protocol", (Protocol,), limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _allowed(connections: int) -> int:
    """How many connections the system allows, at most this many.

    Without a descriptor a connection is neither taken nor refused, and broker and database are away.
    """
    files = allow_files(connections + OTHER_FILES)
    allowed = max(1, min(connections, files - OTHER_FILES))
    if allowed < connections:
        log.warning("server.few_files", connections=allowed, files=files)
    return allowed
