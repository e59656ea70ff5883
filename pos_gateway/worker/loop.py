"""The consumer's loop on green threads, in place of Celery's ``synloop``.

``synloop`` polls the monitoring connection for 0.1 s after every message: a worker with events takes at most ten
orders a second. Here a green thread reads the monitoring connection.
"""

from collections.abc import Callable
from time import thread_time
from typing import Any

import gevent

from pos_gateway.runtime.green import yield_control
from pos_gateway.worker.celery_internals import RUN, maybe_shutdown
from pos_gateway.worker.crew import Crew

#: Messages, and seconds of this thread's CPU time, after which the loop yields: while the next message is buffered,
#: reading never blocks, and no green thread would run. The largest messages take hundreds of times as long as an
#: order.
YIELD_EVERY, BUSY = 30, 0.002
#: Seconds between checks for a stop while no message arrives. A signal ends the wait (``Drain``), but
#: with TLS, and for a stop by remote control. Each check costs a timer and an exception.
IDLE = 1.0
#: Seconds between checks for room while no message is read for want of room. The broker waits at the socket, and keeps
#: unwritten messages.
FULL = 0.01
#: Seconds per read of the monitoring connection: a read looks for nothing.
_READ = 60.0


def green_loop(
    consumer: Any,
    connection: Any,
    task_consumer: Any,
    blueprint: Any,
    hub: Any,
    qos: Any,
    heartbeat: Any,
    clock: Any,
    hbrate: float = 2.0,
    **_: Any,
) -> None:
    """Read messages and hand each to its task's strategy, until the worker stops.

    Raises the connection's errors: Celery then reconnects and calls again.
    """
    missed = [_watch_heartbeats(consumer.timer, connection, hbrate)]
    monitor = None
    if consumer.event_dispatcher is not None:
        monitoring = consumer.event_dispatcher.connection
        missed.append(_watch_heartbeats(consumer.timer, monitoring, hbrate))
        monitor = gevent.spawn(_drain, monitoring)
    # Acknowledgements are written in their own turn, on a lasting green thread.
    writers = Crew[Callable[[], None]](lambda: gevent, lambda write: write(), lambda _: None)
    connection.acknowledge_together(writers.take)
    task_consumer.on_message = consumer.create_task_handler()
    task_consumer.consume()
    consumer.on_ready()
    cpu = consumer.dispatcher.admission.cpu
    messages, since = 0, thread_time()
    try:
        while blueprint.state == RUN and consumer.connection:
            maybe_shutdown()
            for errors in missed:
                if errors:
                    raise errors[0]
            if qos.prev != qos.value:
                qos.update()
            consumer.perform_pending_operations()
            messages += 1
            if messages % YIELD_EVERY == 0 or thread_time() - since >= BUSY:
                cpu.reads_on()
                yield_control()
                since = thread_time()
                if consumer.is_full:
                    messages = -1  # checked again before the next message
                    connection.excuse_silence()
                    gevent.sleep(FULL)
                    continue
            try:
                connection.drain_events(timeout=IDLE)
            except TimeoutError:
                pass  # no message: check for a stop
            except OSError:
                if blueprint.state == RUN:
                    raise
    finally:
        writers.dismiss()
        if monitor is not None:
            monitor.kill()


def _watch_heartbeats(timer: Any, connection: Any, rate: float) -> list[Exception]:
    """Check the connection's heartbeats from now on, ``rate`` times an interval.

    Also while the worker stops, after the loop: orders in flight are still to be acknowledged.

    Returns:
        A list with an error after a missed heartbeat.
    """
    errors: list[Exception] = []

    def check() -> None:
        try:
            connection.heartbeat_check(rate)
        except Exception as error:  # noqa: BLE001  (the loop raises it)
            errors[:] = [error]

    interval = connection.get_heartbeat_interval()
    if interval and connection.supports_heartbeats:
        timer.call_repeatedly(interval / rate, check)
    return errors


def _drain(connection: Any) -> None:
    """Read the broker's heartbeats on a connection that only publishes."""
    while True:
        try:
            connection.drain_events(timeout=_READ)
        except TimeoutError:
            continue
        except connection.connection_errors:
            return  # the heartbeat reports the loss to the main loop
