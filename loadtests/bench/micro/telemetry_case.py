"""Milliseconds that it costs to count an order, and to scrape a worker with ten thousand merchants."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import gevent
from prometheus_client import Counter, Gauge, Histogram

from loadtests.bench.micro import logging_case
from loadtests.bench.micro.runner import Play, thread_cpu
from pos_gateway.admission.admission import Admission
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.attempt.decision import Decision
from pos_gateway.domain.order import timestamp
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.states import AttemptHistory, Claim, Entry, Key, State
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.transport.deadline import CallContext
from pos_gateway.worker.standings import Standings

MERCHANTS, PROVIDERS = 10_000, 60
PLACED_AT = "2026-01-31T12:00:00+00:00"
#: Orders whose two writes share a transaction, as they do under load.
SHARED = 5

#: The figures of ``pos_gateway.telemetry.metrics``, as prometheus_client's documentation has them.
naive = SimpleNamespace(
    orders=Counter("orders_total", "", ("outcome", "provider"), registry=None),
    attempts=Counter("attempts_total", "", ("outcome", "provider"), registry=None),
    attempt_seconds=Histogram("attempt_seconds", "", ("provider",), registry=None),
    queue_wait=Histogram("queue_wait_seconds", "", registry=None),
    order_seconds=Histogram("order_seconds", "", registry=None),
    commits=Histogram("commit_seconds", "", ("phase",), registry=None),
    connections=Gauge("connections", "", ("state",), registry=None),
    events=Histogram("event_seconds", "", ("segment",), registry=None),
)


class Counting:
    """All that is done for the metrics of an order, and nothing else of it."""

    def __init__(self) -> None:
        self._exchanges: set[CallContext] = set()
        key = Key("m", "o")
        claim = Claim(key, "worker-1", 1, 1, AttemptHistory(), sending=True)
        entry = Entry(State.ACCEPTED, 0.0, 1, event=dehydrated(key, Kind.ACCEPTED))
        self._decision = Decision(Outcome(Kind.ACCEPTED), [(claim, entry)])

    def count(self, number: int) -> None:
        """Everything that the way of one order calls, in its order."""
        provider = f"provider-{number % PROVIDERS}"
        placed_at = timestamp(PLACED_AT) or 0.0
        metrics.queue_wait.observe(max(0.0, time.time() - placed_at))
        if number % SHARED == 0:
            for _ in range(2):
                metrics.ledger_commit_seconds.observe(0.004)
                metrics.ledger_commit_writes.observe(2 * SHARED)
        context = CallContext()
        self._exchanges.add(context)
        self._exchanges.discard(context)
        metrics.attempted(Kind.ACCEPTED, provider, 0.2)
        metrics.outcome_recorded("accepted", provider)
        for _, entry in self._decision.entries:
            if entry.event is not None and entry.event.kind is Kind.ACCEPTED:
                metrics.order_seconds.observe(max(0.0, time.time() - placed_at))
        metrics.event_picked_up.observe(0.02)

    def count_and_log(self, number: int) -> None:
        """And its attempt's line, as INFO has it."""
        self.count(number)
        logging_case.attempt()


def count_and_log_naively(number: int) -> None:
    """The same figures, each by its labels, and the line written at once."""
    provider, kind, age = f"provider-{number % PROVIDERS}", Kind.ACCEPTED, 0.2
    naive.queue_wait.observe(time.time() - (timestamp(PLACED_AT) or 0.0))
    for phase in ("claim", "outcome"):
        naive.commits.labels(phase).observe(0.004)
    with naive.connections.labels("leased").track_inprogress():
        naive.attempts.labels(kind.value, provider).inc()
        naive.attempt_seconds.labels(provider).observe(age)
    naive.orders.labels(kind.value, provider).inc()
    naive.order_seconds.observe(time.time() - (timestamp(PLACED_AT) or 0.0))
    naive.events.labels("picked_up").observe(0.02)
    logging_case.attempt()


def stand_in(number: int) -> None:
    """The cost of an order's stand-in by itself."""
    f"provider-{number % PROVIDERS}"


def a_port_of_many() -> MetricsPort:
    """Of a worker whose merchants are in trouble."""
    admission: Admission[str] = Admission(AdmissionLimits(), lambda _: Terms(1))
    provider_of = {f"m{n}": f"provider-{n % PROVIDERS}" for n in range(MERCHANTS)}
    for merchant_id in provider_of:
        admission.offer(merchant_id, "o", 0.0)
        admission.open_breaker(merchant_id, 60.0)
        admission.parked_count.add(merchant_id, 64, 30.0)
    for provider in provider_of.values():
        for kind in Kind:
            metrics.outcome_recorded(kind, provider)
            metrics.attempted(kind, provider, 0.1)
    port = MetricsPort(1)
    port.before_scrape(Standings(admission, provider_of.get).show)
    return port


def scraped(port: MetricsPort) -> tuple[float, float]:
    """A scrape's CPU time, and the longest time for which no other green thread ran."""
    turns: list[float] = []

    def others() -> None:
        while True:
            turns.append(time.perf_counter())
            gevent.sleep(0)

    other = gevent.spawn(others)
    gevent.sleep(0)
    began, cpu = time.perf_counter(), time.process_time()
    port.text()
    used, ended = time.process_time() - cpu, time.perf_counter()
    other.kill()
    moments = [began, *(each for each in turns if each > began), ended]
    held = max(after - before for before, after in pairwise(moments))
    return used * 1000, held * 1000


@contextmanager
def opened(number: int) -> Iterator[Play]:
    """An order in each way, then a scrape."""
    counting, port = Counting(), a_port_of_many()

    def play(_turn: int) -> dict[str, float]:
        logging_case.log_like(logging_case.gateway)
        loop = thread_cpu(number, stand_in)
        figures = {
            "an order's metrics, CPU": thread_cpu(number, counting.count),
            "and its attempt's line, CPU of the green thread": thread_cpu(
                number, counting.count_and_log
            ),
        }
        logging_case.log_like(logging_case.at_once)
        figures["naive: labels looked up for each, the line written at once"] = thread_cpu(
            number, count_and_log_naively
        )
        used, held = scraped(port)
        return {name: (cpu - loop) * 1000 for name, cpu in figures.items()} | {
            "a scrape, CPU": used,
            "the longest that a scrape blocks the loop": held,
        }

    with logging_case.a_reader():
        yield play
