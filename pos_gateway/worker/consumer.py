"""Celery's consumer with a green loop, and the gateway's intake of messages."""

import time
from typing import Any

import structlog
from kombu.common import ignore_errors

from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.attempt import gateway
from pos_gateway.broker import topology
from pos_gateway.broker.properties import tolerate_bad_properties
from pos_gateway.runtime import limits
from pos_gateway.worker.celery_internals import Consumer, is_stopping, maybe_shutdown
from pos_gateway.worker.crash import watch_threads
from pos_gateway.worker.dead_lettering import DeadLettering
from pos_gateway.worker.declaring import Blueprint
from pos_gateway.worker.dispatcher import Dispatcher
from pos_gateway.worker.drain import Drain
from pos_gateway.worker.gc_tuning import tune_gc
from pos_gateway.worker.intake import MessageIntake
from pos_gateway.worker.loop import green_loop
from pos_gateway.worker.orders_first import OrdersFirst
from pos_gateway.worker.reporting import green_reporter
from pos_gateway.worker.standings import Standings

log = structlog.get_logger(__name__)

tolerate_bad_properties()

#: Always off: each takes a queue and a connection, and workers need not hear of each other.
_QUIET = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}


class OrderConsumer(Consumer):
    """Consumes orders: through a dispatcher on a green pool, else as Celery does."""

    Blueprint = Blueprint

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._gateway = gateway.current()
        self.dispatcher: Dispatcher | None = None
        self._drain = Drain(self._begin_to_stop)
        self._reads = False
        self._stops = False
        self._wakes_up = False
        pool = options["pool"]
        is_green = getattr(pool, "is_green", False)
        if is_green:
            self.loop = green_loop
            # Celery's flags and variables have no say: admission divides the window among the merchants.
            options["initial_prefetch_count"] = min(WINDOW * pool.limit, MOST)
        options["worker_options"] = {**(options.get("worker_options") or {}), **_QUIET}
        super().__init__(*arguments, **options)
        self._dead_letter = DeadLettering(self._gateway, self.connection_errors, is_green=is_green)
        if is_green:
            self.dispatcher = self._make_dispatcher(pool)
            self._gateway.events.yield_by(self.dispatcher.admission.cpu.pause)
            self._gateway.poller.yield_to(OrdersFirst(self.dispatcher))
            self._be_watched(self.dispatcher)
        queues = self.app.amqp.queues.consume_from
        if queues.keys() >= {topology.ORDERS_KEY, topology.CANARY_KEY}:
            queues[topology.CANARY_KEY] = topology.canary_standby
        # Celery unsets it under gevent (an old gevent bug); a peer accepting and then stalling in
        # the handshake would block the worker forever.
        self.app.conf.broker_connection_timeout = CONNECT_TIMEOUT

    def start(self) -> None:
        if self.dispatcher is not None:
            self._drain.listen()
            self._gateway.metrics_port.start()  # before connecting: /readyz says what is missing
        super().start()

    def ensure_connected(self, connection: Any) -> Any:
        """Connect, retrying forever; the broker's return is noticed within seconds."""
        connection.ensure_connection(
            _not_connected,
            None,
            interval_start=1,
            interval_step=1,
            interval_max=RECONNECT_AFTER,
            callback=maybe_shutdown,
        )
        self.first_connection_attempt = False
        return connection

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """The broker refuses this worker (password, vhost): retry after a pause."""
        super().on_connection_error_before_connected(exc)
        time.sleep(RECONNECT_AFTER)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Drop a lost connection, or a connection with a channel closed by the broker.

        A connection lost before anything was consumed would be lost again at once (a queue that this user
        may not read, a cluster without a quorum): the reconnect waits.
        """
        super().on_connection_error_after_connected(exc)
        if not self._reads:
            time.sleep(RECONNECT_AFTER)

    def create_task_handler(self, *arguments: Any, **options: Any) -> Any:
        """The handler of every message.

        A green pool does without Celery's own handler, and the handler's two promises for each message: the
        first is for an event loop, and a green worker has no such loop; the second restores the prefetch
        window, and the gateway never reduces the window.
        """
        celerys = super().create_task_handler(*arguments, **options)
        is_green = self.dispatcher is not None
        return MessageIntake(
            self, self._gateway, self._dead_letter, None if is_green else celerys
        ).handle

    def on_ready(self) -> None:
        """Start the background work once the consumer reads the queue. Also after a reconnect."""
        self._reads = True
        if self.dispatcher is None:  # the children have threads; a parent that forks has no thread
            self._wake_up_for_stops()
        else:
            self._gateway.start()
            if self.dispatcher.start():
                watch_threads()
                tune_gc()
                limits.return_large_blocks()
                limits.allow_files(2 * self.dispatcher.admission.limits.slots + limits.OTHER_FILES)
                green_reporter(self._gateway, self.dispatcher, self.app).start()
        super().on_ready()

    def _wake_up_for_stops(self) -> None:
        """Have Celery's loop look for a stop often, not only when a heartbeat is due."""
        if not self._wakes_up:
            self._wakes_up = True
            self.timer.call_repeatedly(STOP_SEEN_WITHIN, lambda: None)

    def on_close(self) -> None:
        """The connection is lost, or closes once nothing is in flight (``stop``)."""
        self._reads = False
        if self.dispatcher is not None and not self._stops:
            self.dispatcher.connection_lost()
        super().on_close()

    def stop(self) -> None:
        """Stop consuming and requeue waiting orders at once; orders in flight may finish."""
        if self.dispatcher is not None:
            self._drain.bound(self._longest_exchange() + DRAIN_MARGIN, self._requeue_in_flight)
            self.dispatcher.close()
            self._stops = True
            if self._reads and self._stop_consuming():
                self.dispatcher.requeue_waiting(CANCEL_TIMEOUT)
            else:
                # The broker does not answer, and requeues unacknowledged messages anyway.
                self.dispatcher.connection_lost()
                self._abandon_connection()
        super().stop()

    def shutdown(self) -> None:
        """Close the connection. Celery calls this once nothing is in flight."""
        if self.dispatcher is not None:
            self.dispatcher.join(CANCEL_TIMEOUT)
        super().shutdown()

    def _begin_to_stop(self) -> None:
        if self._reads:  # the loop checks for a stop after each wait for a message
            self._drain.end_wait(lambda: self.connection is not None and self.connection.waits)
        else:  # connecting: Celery checks for a stop only afterwards
            self._drain.interrupt()

    def _stop_consuming(self) -> bool:
        """Cancel the consumer; returns whether the broker has confirmed."""
        import gevent  # noqa: PLC0415  (a synchronous worker runs without it)

        with gevent.Timeout(CANCEL_TIMEOUT, False):
            if self.task_consumer is not None:
                ignore_errors(self, self.task_consumer.cancel)
            return True
        return False

    @property
    def is_full(self) -> bool:
        """Whether this worker's memory has no room for a further message."""
        return self._dead_letter.is_full or (
            self.dispatcher is not None and self.dispatcher.is_full
        )

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Dead-letter an order that Celery cannot decode: Celery reads some texts as times or bytes.

        The reason quotes no part of the body, which may be personal data.
        """
        root = next((each for each in exc.args if isinstance(each, Exception)), exc)
        reason = f"the body cannot be decoded: {type(root).__name__}"
        self._dead_letter(message, "undecodable", reason)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        self._dead_letter(message, "invalid_message", str(exc))

    def _abandon_connection(self) -> None:
        """Drop a connection without an answer: nothing waits for the broker any more."""
        self.task_consumer = None
        if self.connection is not None:
            self.connection.collect(socket_timeout=1)

    def _requeue_in_flight(self) -> None:
        """Stop orders still in flight, unacknowledged: Celery would wait forever.

        The ledger has the orders' progress for the next attempt.
        """
        dispatcher = self.dispatcher
        if dispatcher is None:
            return
        if dispatcher.in_flight:
            log.warning("worker.requeued", orders=dispatcher.in_flight)
        # Green threads first: closing the publisher would wait for a thread that is connecting.
        dispatcher.requeue_in_flight()
        self._gateway.publisher.close()

    def _longest_exchange(self) -> float:
        settings, directory = self._gateway.settings, self._gateway.directory
        return max(settings.request_timeout, directory.longest_timeout())

    def _be_watched(self, dispatcher: Dispatcher) -> None:
        """Register the gauges, pages and readiness checks of this worker.

        A synchronous worker has no metrics port: a lock held by a thread of the parent during a fork
        would block the child forever.
        """
        port = self._gateway.metrics_port
        standings = Standings(dispatcher.admission, self._gateway.directory.provider_of)
        port.before_scrape(dispatcher.show)
        port.before_scrape(standings.show)
        port.add("/debug/merchants", standings.page)
        port.require("broker", self._why_not_consuming)
        port.require("draining", self._why_draining)

    def _why_not_consuming(self) -> str | None:
        return None if self._reads else "nothing is taken from the queue: there is no connection"

    def _why_draining(self) -> str | None:
        return "this worker is stopping" if self._drain.has_begun or is_stopping() else None

    def _make_dispatcher(self, pool: Any) -> Dispatcher:
        settings, half = self._gateway.settings, pool.limit * WINDOW // 2
        return Dispatcher(
            gate=self._gateway,
            pool=pool,
            limits=AdmissionLimits(
                slots=pool.limit,
                cores=min(1.0, limits.cpu_limit() or 1.0),
                slow_after=settings.slow_after,
                max_waiting=min(settings.max_waiting, half),
                local_wait_timeout=settings.local_wait_timeout,
                park_delay_max=settings.park_delay_max,
                park_delay_min=min(1.0, settings.park_delay_max),
                max_blocked=half,
                max_bytes=max_bytes(),
            ),
            dead_letter=self._dead_letter,
        )


#: Seconds to connect to the broker, handshake included.
CONNECT_TIMEOUT = 5.0
#: Longest seconds between connection attempts.
RECONNECT_AFTER = 3.0
#: Seconds for the broker to confirm a cancelled consumer, and to store orders being parked.
CANCEL_TIMEOUT = 2.0

#: Seconds after which an idle synchronous worker looks for a stop.
STOP_SEEN_WITHIN = 0.5

#: Messages in the prefetch window for each slot, and maximum messages: AMQP's prefetch count has 16 bits.
WINDOW, MOST = 10, 65_535
#: Part of the memory limit for large orders, and their bytes without a limit.
LARGE, LARGE_BYTES = 0.25, 128 * 2**20


def max_bytes() -> int:
    """Bytes of memory for large orders in this process."""
    limit = limits.memory_limit()
    return LARGE_BYTES if limit is None else int(LARGE * limit)


#: Seconds to commit outcomes after the longest exchange, when stopping.
DRAIN_MARGIN = 5.0


def _not_connected(error: BaseException, interval: float) -> None:
    log.warning("broker.not_connected", error=str(error), again_in=interval)
