"""The metrics port of this process.

    /metrics           for Prometheus
    /healthz           200 while the event loop runs: the reply waits for a turn of the loop
    /readyz            200, or 503 with the reasons
    /debug/merchants   the state of merchants (in a green worker)

No page calls a system outside the process.
"""

import platform
from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from pos_gateway import __version__
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.loop_lag import LoopLag, Turn, own_turn
from pos_gateway.telemetry.readiness import Readiness
from pos_gateway.telemetry.scrape import Scrape
from pos_gateway.telemetry.serving import LOOPBACK, Page, PageReply, Server, one_at_a_time

#: Seconds for which ``/healthz`` waits for the event loop: less than a probe's time limit.
LOOP_TIMEOUT = 4.0


class MetricsPort:
    """A process's port for monitoring. The constructor does no I/O.

    Args:
        port: 0 turns the port off.
        host: the local address to bind.
        turn: waits for the event loop's turn, if the port's threads are not on the loop.
    """

    def __init__(self, port: int, host: str = LOOPBACK, turn: Turn = own_turn) -> None:
        self.is_on = bool(port)
        self.scrape, self.readiness = Scrape(), Readiness()
        self.scrape.before(self.readiness.show)
        self._turn = turn
        self._loop_lag = LoopLag(turn)
        self._server = Server(
            port,
            {
                "/metrics": one_at_a_time(self._metrics),
                "/healthz": self._healthz,
                "/readyz": self._readyz,
            },
            host=host,
        )

    def add(self, path: str, page: Page) -> None:
        """Serve an additional page."""
        self._server.pages[path] = one_at_a_time(page)

    def start(self) -> None:
        """Serve, if the port is on. Idempotent."""
        if not self.is_on:
            return
        # Else each counter and histogram gets a second series, with the creation time.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        metrics.build_info.labels(__version__, platform.python_version(), version("celery")).set(1)
        self._server.start()
        self._loop_lag.start()

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        self._loop_lag.stop()
        self._server.stop()

    def _metrics(self, _query: Mapping[str, str]) -> PageReply:
        return PageReply(200, self.scrape.text(), CONTENT_TYPE_PLAIN_0_0_4)

    def _readyz(self, _query: Mapping[str, str]) -> PageReply:
        problems = self.readiness.problems()
        return PageReply.of({"ready": not problems, "reasons": problems}, 503 if problems else 200)

    def _healthz(self, _query: Mapping[str, str]) -> PageReply:
        is_healthy = self._turn(LOOP_TIMEOUT)
        return PageReply.of({"healthy": is_healthy}, 200 if is_healthy else 503)
