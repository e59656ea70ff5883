"""The Celery app. ``celery -A pos_gateway worker -P prefork -c 4`` runs it synchronously.

The green worker, the one to run, is ``pos_gateway.gcelery``.
"""

import logging
import sys
from typing import Any

import structlog
from celery import Celery, signals
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.attempt import gateway
from pos_gateway.broker import topology
from pos_gateway.domain.errors import (
    InvalidSettings,
    PendingMigration,
    PublishRefused,
    SchemaTooNew,
)
from pos_gateway.runtime.streams import open_closed
from pos_gateway.settings import Settings, celerys, setting
from pos_gateway.telemetry import log
from pos_gateway.worker.celery_internals import (
    get_multiprocessing_logger,
    log_level,
    pool_module,
)
from pos_gateway.worker.command_line import contradictions, refused_command, refused_options
from pos_gateway.worker.crash import watch_threads
from pos_gateway.worker.declaring import Broker
from pos_gateway.worker.reporting import synchronous_reporter
from pos_gateway.worker.tasks import CancelTask, OrderTask

#: Exit code of a process with a faulty configuration (sysexits.h).
EX_CONFIG = 78


def _configured() -> Celery:
    settings = gateway.current().settings
    refused = refused_command() or "; ".join(contradictions(settings.broker_url, celerys()))
    if refused:
        raise SystemExit(_refusal(refused))
    app = Celery(
        "pos_gateway",
        broker=settings.broker_url,
        amqp=Broker,
        set_as_current=True,
    )
    app.conf.update(
        # The queues, and what is accepted from them.
        task_queues=(topology.orders_queue, topology.canary_queue),
        task_default_queue=topology.orders_queue.name,
        task_default_exchange=topology.orders_exchange.name,
        task_default_exchange_type=topology.orders_exchange.type,
        task_default_routing_key=topology.ORDERS_KEY,
        task_create_missing_queues=False,
        accept_content=["json"],
        task_serializer="json",
        # A message is acknowledged once its outcome is committed; a failure of the task itself
        # dead-letters it to orders.dead through the queue's dead-letter exchange.
        task_acks_late=True,
        task_acks_on_failure_or_timeout=False,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        # Celery kills a child that is not up by then; a child's first look may wait for a database that is away.
        worker_proc_alive_timeout=60.0,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # Admission bounds what starts, and what was in flight may have ended long since.
        worker_enable_prefetch_count_reduction=False,
        # A dead broker is noticed within half a minute; connecting is retried forever.
        broker_heartbeat=15,
        broker_heartbeat_checkrate=2,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A channel that the broker closes (a message was unacknowledged for longer than its
        # ``consumer_timeout``, say) is a lost connection; by default it would end the worker.
        broker_channel_error_retry=True,
        broker_transport_options={"confirm_publish": True, **_memory_options(settings)},
        worker_enable_remote_control=settings.remote_control,
        worker_consumer="pos_gateway.worker.consumer:OrderConsumer",
    )
    app.register_task(OrderTask())
    app.register_task(CancelTask())
    return app


def _memory_options(settings: Settings) -> dict[str, Any]:
    # The in-memory broker (demo, experiments) is polled, every second by default.
    return {"polling_interval": 0.01} if settings.broker_url.startswith("memory") else {}


@signals.setup_logging.connect
def _log_here(loglevel: int, logfile: str | None, **_: Any) -> None:
    """Send Celery's log lines to the gateway's log; else each thread would write its own."""
    try:
        log.configure(loglevel, file=logfile or None, lines=setting("log_buffer"))
    except OSError as error:
        why = f"nothing can be written to the log file {logfile}: {error.strerror}"
        raise SystemExit(_refusal(why)) from None
    get_multiprocessing_logger().handlers = [log.LibraryHandler(logging.ERROR)]
    log.report_crashes()


#: The pools that a worker runs on: green threads, or processes with one order at a time each.
_GREEN = "celery.concurrency.gevent"
_POOLS = (_GREEN, "celery.concurrency.prefork", "celery.concurrency.solo")


@signals.celeryd_init.connect
def _with_options(options: dict[str, Any], **_: Any) -> None:
    if refused := refused_options(options, [each.name for each in app.conf.task_queues]):
        raise SystemExit(_refusal(refused))


@signals.worker_init.connect
def _before_start(sender: Any, **_: Any) -> None:
    log.configure(log_level(sender), lines=setting("log_buffer"))
    pool = pool_module(sender)
    if pool not in _POOLS:
        why = f"in the pool {pool} several orders would share one connection to the database"
        how = "-P prefork or -P solo; celery -A pos_gateway.gcelery worker needs no -P"
        raise SystemExit(_refusal(f"{why}; use {how}"))
    if pool == _GREEN and "pos_gateway.gcelery" not in sys.modules:
        why = f"for the pool {pool} modules are to be patched before anything else is imported"
        raise SystemExit(_refusal(f"{why}; use celery -A pos_gateway.gcelery worker"))
    try:
        gateway.current().check()
    except (PendingMigration, SchemaTooNew, PublishRefused, InvalidSettings) as error:
        raise SystemExit(_refusal(error)) from None
    except SQLAlchemyError as error:
        # Exit and be restarted, rather than take orders and hold them.
        why = str(error.__cause__ or error).splitlines()[0]
        raise SystemExit(_refusal(f"the database cannot be asked: {why}")) from None


@signals.worker_before_create_process.connect
def _before_fork(**_: Any) -> None:
    gateway.current().disconnect()


@signals.worker_process_init.connect
def _child_ready(**_: Any) -> None:
    _log_what_is_printed()
    watch_threads()
    gate = gateway.current()
    try:
        gate.start()
        synchronous_reporter(gate, app).start()
    except Exception as error:
        # Celery would go on, and this process take orders without a lease's beat. Celery replaces it.
        structlog.get_logger(__name__).critical("process.crashed", exc_info=error)
        log.flush()
        raise SystemExit(1) from error


@signals.worker_shutdown.connect
def _stopped(**_: Any) -> None:
    gateway.current().stop()


@signals.worker_process_shutdown.connect
def _child_stopped(**_: Any) -> None:
    gateway.current().stop()
    log.flush()  # a child ends without Python's exit handlers


@signals.worker_ready.connect
def _log_what_is_printed(**_: Any) -> None:
    """Log what is still printed: gevent prints errors on the event loop, which must not block.

    Only once orders arrive; until then a person may be reading the banner.
    """
    if app.conf.worker_redirect_stdouts:
        app.log.redirect_stdouts(app.conf.worker_redirect_stdouts_level)


def _refusal(error: object) -> int:
    """Print why this process does not start; returns its exit code."""
    sys.stderr.write(f"pos-gateway does not start: {error}\n")
    return EX_CONFIG


open_closed()
sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115  (Celery flushes both before a fork)

try:
    app = _configured()
except InvalidSettings as error:
    raise SystemExit(_refusal(error)) from None
