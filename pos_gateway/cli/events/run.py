"""``pos-gateway events run``: the event pipeline as a separate process."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import click

from pos_gateway.cli.database import database


@click.command()
@click.option("--until-eof", is_flag=True, hidden=True, help="End when standard input does.")
def run(*, until_eof: bool) -> None:
    """Publish status events, and do nothing else, until SIGTERM or Ctrl-C.

    Of all processes that publish events one leads, and the others stand by: any number of these may
    run, beside workers or instead of them (with POS_GATEWAY_PUBLISH_EVENTS=false workers do not).
    It logs when it leads and when it stands by, and survives the loss of the broker or the
    database.

    \b
    Examples:
      pos-gateway events run
      POS_GATEWAY_METRICS_PORT=9809 pos-gateway events run     # a second one on this machine

    Exit code: 0. A second SIGTERM or Ctrl-C ends it at once; the next leader then publishes the
    events in flight again.
    """
    import structlog

    from pos_gateway.domain.errors import BrokerUnavailable, LedgerUnavailable
    from pos_gateway.events.hydration import Hydration
    from pos_gateway.events.relay import Relay
    from pos_gateway.ledger.ledger import Ledger
    from pos_gateway.ledger.payloads import Payloads
    from pos_gateway.ledger.schema_watch import SchemaWatch
    from pos_gateway.runtime import failpoints
    from pos_gateway.runtime.vault import Vault
    from pos_gateway.settings import DAY, Settings
    from pos_gateway.telemetry import log
    from pos_gateway.telemetry.port import MetricsPort

    settings = Settings.from_environment()
    log.configure(lines=settings.log_buffer)
    log.tell_of_crashes()
    failpoints.arm_all(settings.failpoints)
    tracing = None
    if settings.tracing:
        from pos_gateway.telemetry.tracing import ExportedTracing

        tracing = ExportedTracing()
        tracing.start()
    with _until_told() as told_to_stop, database() as engine:
        payloads = Payloads(Vault(settings.secret_keys))
        ledger, schema = Ledger(engine, payloads), SchemaWatch(engine)
        relay = Relay(
            engine,
            Hydration(payloads),
            lambda: ledger.lease,
            broker_url=settings.broker_url,
            keep=settings.keep_events * DAY,
            keep_orders=settings.keep_orders * DAY,
            tracing=tracing,
        )
        try:
            relay.publisher.connect()  # reports a queue with other arguments now
        except BrokerUnavailable as error:
            structlog.get_logger(__name__).warning("broker.unavailable", error=str(error))
        port = MetricsPort(settings.metrics_port, settings.metrics_host)
        port.readiness.require("database", lambda: schema.problem or ledger.problem)
        port.scrape.before(relay.show)
        port.start()
        ledger.start()
        schema.start()
        with contextlib.suppress(LedgerUnavailable):
            ledger.catch_up()  # the first heartbeat, which leading requires
        relay.start()
        if until_eof:
            threading.Thread(target=_at_eof, args=(told_to_stop.set,), daemon=True).start()
        told_to_stop.wait()
        schema.stop()
        relay.stop()
        ledger.close()  # last: its lease keeps other processes from leading
        if tracing is not None:
            tracing.stop()
        port.stop()


def _at_eof(do: Callable[[], None]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    do()


@contextlib.contextmanager
def _until_told() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or SIGINT; the second has its default effect."""
    told_to_stop = threading.Event()
    before: dict[signal.Signals, object] = {}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        told_to_stop.set()
        for each in before:
            signal.signal(each, signal.SIG_DFL)

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, on_signal)
    try:
        yield told_to_stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
