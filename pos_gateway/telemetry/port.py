"""The metrics port of this process.

    /metrics           for Prometheus
    /healthz           200 while the event loop runs: the reply waits for a turn of the loop
    /readyz            200, or 503 with the reasons
    /debug/merchants   the state of merchants (in a green worker)

No page calls a system outside the process.

A worker has a single event loop. Writing three thousand series takes tens of milliseconds, a
standstill for orders: a scrape yields after each metric, and within a long metric. Values of a scrape
are of no single moment, as Prometheus permits.

Event-loop lag is every order's delay before any work on the order: a histogram, since a gauge of the
maximum is lost to a second scraper and to a missed scrape. Four samples a second find every standstill
of the loop of a tenth of a second.
"""

import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

import structlog
from prometheus_client import REGISTRY, Metric, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from pos_gateway import __version__
from pos_gateway.runtime.green import cooperatively
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.prometheus_internals import with_samples
from pos_gateway.telemetry.serving import LOOPBACK, POLL, Page, PageReply, PageServer, one_at_a_time

log = structlog.get_logger(__name__)

#: Seconds for which ``/healthz`` waits for the event loop: less than a probe's time limit.
LOOP_TIMEOUT = 4.0
#: Seconds between samples of the event loop's lag.
PERIOD = 0.25
#: Series of a metric written before yielding to other green threads.
YIELD_EVERY = 50

#: Waits for a turn of the event loop, within seconds (None: no bound). Returns whether the turn came.
Turn = Callable[[float | None], bool]


def own_turn(_timeout: float | None) -> bool:
    """The turn of a green thread: while a green thread runs, the loop runs."""
    return True


class MetricsPort(Collector):
    """A process's port for monitoring, and what a scrape reads. The constructor does no I/O.

    Safe from threads, if the functions of ``before_scrape`` are.

    Args:
        port: 0 turns the port off.
        host: the local address to bind.
        turn: waits for the event loop's turn, if the port's threads are not on the loop.
    """

    def __init__(self, port: int, host: str = LOOPBACK, turn: Turn = own_turn) -> None:
        self._refresh: list[Callable[[], None]] = [self._show_readiness]
        self._problems: dict[str, Callable[[], str | None]] = {}
        self._turn = turn
        self._stopping = threading.Event()
        self._lag_thread: threading.Thread | None = None
        self._port, self._host = port, host
        self._server: PageServer | None = None
        self.pages: dict[str, Page] = {
            "/metrics": one_at_a_time(self._metrics),
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

    def add(self, path: str, page: Page) -> None:
        """Serve an additional page."""
        self.pages[path] = one_at_a_time(page)

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` before each scrape, to set gauges. Must yield to other green threads."""
        self._refresh.append(refresh)

    def require(self, name: str, problem: Callable[[], str | None]) -> None:
        """Add a condition for readiness: ``problem()`` returns a sentence, or None if met.

        Must answer from memory, without a query: probes may ask at any rate.
        """
        self._problems[name] = problem

    def problems(self) -> dict[str, str]:
        """The sentences of unmet conditions, by condition name. Empty: the process is ready."""
        found = ((name, problem()) for name, problem in self._problems.items())
        return {name: problem for name, problem in found if problem is not None}

    def start(self) -> None:
        """Serve, if the port is on. A taken port is only logged: orders matter more than metrics.

        Idempotent.
        """
        if not self._port or self._lag_thread is not None:
            return
        # Else each counter and histogram gets a second series, with the creation time.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        metrics.build_info.labels(__version__, platform.python_version(), version("celery")).set(1)
        try:
            self._server = PageServer(self._host, self._port, self.pages)
        except OSError as error:
            log.warning("metrics.port_taken", port=self._port, error=str(error))
        else:
            serve = self._server.serve_forever
            threading.Thread(target=serve, args=(POLL,), name="metrics", daemon=True).start()
        self._lag_thread = threading.Thread(target=self._measure_lag, name="loop lag", daemon=True)
        self._lag_thread.start()

    def stop(self) -> None:
        """Stop serving. Idempotent."""
        self._stopping.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def text(self) -> bytes:
        """Every metric's current value, in Prometheus's text format."""
        for refresh in self._refresh:
            refresh()
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics and their series, lazily: ``text`` iterates once."""
        for metric in cooperatively(REGISTRY.collect(), 1):
            yield with_samples(metric, cooperatively(metric.samples, YIELD_EVERY))

    def _measure_lag(self) -> None:
        due = time.monotonic() + PERIOD
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._turn(None)
            now = time.monotonic()
            metrics.loop_lag.observe(max(0.0, now - due))
            due = now + PERIOD

    def _show_readiness(self) -> None:
        problems = self.problems()
        for name in self._problems:
            metrics.not_ready.labels(name).set(name in problems)

    def _metrics(self, _query: Mapping[str, str]) -> PageReply:
        return PageReply(200, self.text(), CONTENT_TYPE_PLAIN_0_0_4)

    def _readyz(self, _query: Mapping[str, str]) -> PageReply:
        problems = self.problems()
        return PageReply.of({"ready": not problems, "reasons": problems}, 503 if problems else 200)

    def _healthz(self, _query: Mapping[str, str]) -> PageReply:
        is_healthy = self._turn(LOOP_TIMEOUT)
        return PageReply.of({"healthy": is_healthy}, 200 if is_healthy else 503)
