"""A worker's report, read from counts that the components keep anyway."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pos_gateway import __version__
from pos_gateway.attempt.gateway import Gateway, off_the_loop
from pos_gateway.broker.topology import CANARY_KEY
from pos_gateway.reports.counters import Counters, counters
from pos_gateway.reports.report import GREEN, SYNCHRONOUS, WorkerReport
from pos_gateway.reports.reporter import Figures, Reporter
from pos_gateway.worker.trouble_watch import TroubleWatch

if TYPE_CHECKING:
    from pos_gateway.worker.dispatcher import Dispatcher


def green_reporter(gate: Gateway, dispatcher: "Dispatcher", app: Any) -> Reporter:
    """Reports a green worker."""
    canary = _is_canary(app)
    watch = TroubleWatch(dispatcher.admission, dispatcher.now)
    started = gate.clock.monotonic()

    def figures() -> Figures:
        admission, troubles = dispatcher.admission, watch.troubles()
        report = WorkerReport(
            kind=GREEN,
            canary=canary,
            release=__version__,
            uptime=round(gate.clock.monotonic() - started, 1),
            slots=admission.slots,
            waiting=dispatcher.waiting,
            parked=admission.parked_count.total,
            uncommitted=dispatcher.uncommitted,
            events_age=gate.events.age,
            queues=gate.queue_metrics.ready,
            consumers=gate.queue_metrics.consumers,
            in_trouble=watch.in_trouble,
            lacks_cpu=admission.cpu.is_used_up,
            cores=round(admission.limits.cores, 2),
            troubles=troubles,
        )
        return Figures(report, _counters(gate, dispatcher.healthy_waits))

    return _reporter(gate, figures)


@cache
def synchronous_reporter(gate: Gateway, app: Any) -> Reporter:
    """Reports a process of a synchronous worker, without admission, and with one order at a time."""
    canary = _is_canary(app)
    started = gate.clock.monotonic()

    def figures() -> Figures:
        uptime = round(gate.clock.monotonic() - started, 1)
        report = WorkerReport(
            kind=SYNCHRONOUS,
            canary=canary,
            release=__version__,
            uptime=uptime,
            events_age=gate.events.age,
            queues=gate.queue_metrics.ready,
            consumers=gate.queue_metrics.consumers,
        )
        return Figures(report, _counters(gate, ()))

    return _reporter(gate, figures)


def _reporter(gate: Gateway, figures: Callable[[], Figures]) -> Reporter:
    reporter = Reporter(
        gate.database,
        lambda: gate.ledger.lease.worker,
        figures,
        run=off_the_loop(gate.database),
        clock=gate.clock,
    )
    gate.before_stop(reporter.stop)
    return reporter


def _is_canary(app: Any) -> bool:
    return set(app.amqp.queues.consume_from) == {CANARY_KEY}


def _counters(gate: Gateway, waits: Sequence[int]) -> Counters:
    return counters(gate.ledger.new_orders, gate.commit.outcomes, waits)
