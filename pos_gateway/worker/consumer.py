"""Celery's consumer with a green loop, admission, and dead-lettering of invalid messages."""

import time
from math import inf
from typing import Any

import structlog
from kombu.common import ignore_errors

from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.attempt import gateway
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import unparsed
from pos_gateway.broker import topology, wire
from pos_gateway.broker.bundle import BYTES_ALLOWED, PARKED_ORDERS
from pos_gateway.broker.bundle import HEADERS as BUNDLE_HEADERS
from pos_gateway.broker.message import Message
from pos_gateway.broker.properties import (
    COMPRESSION,
    UNREADABLE,
    WHY_UNREADABLE,
    tolerate_bad_properties,
)
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import LedgerUnavailable, PublishError
from pos_gateway.domain.outcome import Reason
from pos_gateway.domain.trace_context import TRACEPARENT, TRACESTATE, TraceContext
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.control_groups import cpu_limit, memory_limit
from pos_gateway.runtime.files import OTHER_FILES, allow_files
from pos_gateway.runtime.memory import return_large_blocks
from pos_gateway.worker import bundles
from pos_gateway.worker.celery_internals import Consumer, maybe_shutdown
from pos_gateway.worker.crash import watch_threads
from pos_gateway.worker.declaring import Blueprint
from pos_gateway.worker.dispatcher import Dispatcher
from pos_gateway.worker.drain import Drain
from pos_gateway.worker.gc_tuning import tune_gc
from pos_gateway.worker.loop import green_loop
from pos_gateway.worker.reporting import green_reporter
from pos_gateway.worker.request import OrderRequest, body_of
from pos_gateway.worker.standings import Standings
from pos_gateway.worker.strategy import KNOWN_HEADERS, why_undecodable
from pos_gateway.worker.tasks import SYNCHRONOUS_TIMEOUT

log = structlog.get_logger(__name__)

tolerate_bad_properties()

#: Always off: each takes a queue and a connection, and workers need not hear of each other.
_QUIET = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}


class OrderConsumer(Consumer):
    """Consumes orders: through admission on a green pool, else as Celery does."""

    Blueprint = Blueprint
    strategies: dict[str, Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._gateway = gateway.current()
        self.max_order_bytes = self._gateway.settings.max_order_bytes
        self._longest = max(GROWN * self.max_order_bytes, BYTES_ALLOWED)
        self.dispatcher: Dispatcher | None = None
        self._drain = Drain(self._begin_to_stop)
        self._reads = False
        self._stops = False
        self._wakes_up = False
        #: Bytes of messages that are being dead-lettered.
        self._set_aside = 0
        pool = options["pool"]
        if getattr(pool, "is_green", False):
            self.loop = green_loop
            self.dispatcher = self._make_dispatcher(pool)
            self._gateway.events.yield_by(self.dispatcher.admission.cpu.pause)
            self._be_watched(self.dispatcher)
        options["worker_options"] = {**(options.get("worker_options") or {}), **_QUIET}
        super().__init__(*arguments, **options)
        queues = self.app.amqp.queues.consume_from
        if queues.keys() >= {topology.ORDERS_KEY, topology.CANARY_KEY}:
            queues[topology.CANARY_KEY] = topology.canary_standby
        # Celery unsets it under gevent (an old gevent bug); a peer that accepts and then stalls in
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
        """The broker refuses this worker (its password, its vhost): retry after a pause."""
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

    def update_strategies(self) -> None:
        """Accept orders, cancel requests and parked bundles, and no built-in task of Celery."""
        super().update_strategies()
        self.strategies = {
            wire.SUBMIT_ORDER: self.strategies[wire.SUBMIT_ORDER],
            wire.CANCEL_ORDER: self.strategies[wire.CANCEL_ORDER],
            PARKED_ORDERS: bundles.returned(self, self._gateway),
        }

    def create_task_handler(self, *arguments: Any, **options: Any) -> Any:
        """The handler of every message; a malformed message is dead-lettered and stops nothing.

        A green pool does without Celery's own handler, and the handler's two promises for each message: the
        first is for an event loop, and a green worker has no such loop; the second restores the prefetch
        window, and the gateway never reduces the window.
        """
        green = self.dispatcher is not None
        celerys = None if green else super().create_task_handler(*arguments, **options)
        pass_on = (*self.connection_errors, *self.channel_errors)

        def handle(message: Any) -> None:
            try:
                if COMPRESSION in message.headers:
                    reason = "the header compression is set; bodies are taken as they are only"
                    self.quarantine(message, "compressed", reason)
                elif len(message.body) > self._longest:  # decoding would take many times the bytes
                    reason = f"the message has {len(message.body)} bytes; "
                    self.quarantine(
                        message, "too_large", f"{reason}{self.max_order_bytes} are allowed"
                    )
                elif message.content_type == UNREADABLE:
                    self.quarantine(message, "undecodable", WHY_UNREADABLE)
                elif not isinstance(message.headers.get("task", ""), str):
                    self.quarantine(message, "unknown_message", "the header task is no text")
                elif celerys is not None:
                    celerys(message)
                elif (name := message.headers.get("task")) is None:
                    self.on_unknown_message(None, message)
                elif name not in self.strategies:
                    self.on_unknown_task(None, message, KeyError(name))
                else:
                    take = self.strategies[name]
                    take(message, None, message.ack_log_error, message.reject_log_error, ())
            except pass_on:
                raise
            except Exception as error:  # noqa: BLE001  (the message would end every worker)
                self.quarantine(message, "invalid_message", type(error).__name__)

        return handle

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
                return_large_blocks()
                allow_files(2 * self.dispatcher.admission.limits.slots + OTHER_FILES)
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
                # The broker does not answer, and requeues unacknowledged messages by itself.
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

    def quarantine(self, message: Any, code: str, reason: str) -> None:
        """Dead-letter an invalid message, then acknowledge the message.

        The message is requeued if a different worker has taken over the order; by a synchronous worker, also if
        the database or the broker does not answer in time.
        """
        if self.dispatcher is None:
            try:
                self._quarantine(message, code, reason)
            finally:
                self._gateway.ledger.release()
        else:
            import gevent  # noqa: PLC0415  (a synchronous worker runs without it)

            size = len(message.body)
            self._set_aside += size
            gevent.spawn(self._quarantine, message, code, reason).rawlink(
                lambda _: self._no_more_aside(size)
            )

    def _no_more_aside(self, size: int) -> None:
        self._set_aside -= size

    @property
    def is_full(self) -> bool:
        """Whether this worker's memory has no room for a further message."""
        return self._set_aside > SET_ASIDE or (
            self.dispatcher is not None and self.dispatcher.is_full
        )

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        self.quarantine(message, "undecodable", why_undecodable(exc))

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self.quarantine(message, "unknown_message", "the header task is missing")

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self.quarantine(message, "unknown_task", f"there is no task {exc}")

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self.quarantine(message, "invalid_message", str(exc))

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

    def _quarantine(self, message: Any, code: str, reason: str) -> None:
        log.warning("message.quarantined", code=code, reason=reason)
        key = (message.delivery_info or {}).get("routing_key")
        original = Message(
            exchange=topology.orders_exchange.name,
            routing_key=wire.home_key(key),
            body=body_of(message),
            message_id=_number_of(message),
            headers={**_plain(message.headers), "x-content-type": str(message.content_type)[:64]},
        )
        task = message.headers.get("task")
        named = wire.named_in(original.body) if task == wire.SUBMIT_ORDER else {}
        action = Action.CANCEL if task == wire.CANCEL_ORDER else Action.SUBMIT
        raw = RawMessage(
            original.body, home=original.routing_key, trace=TraceContext.of(message.headers)
        )
        attempt = Attempt(unparsed(original, named, Reason.of(code, reason)), raw, action)
        # The parent of a synchronous worker waits here itself: it sends no heartbeat, and sees no stop.
        timeout = SYNCHRONOUS_TIMEOUT if self.dispatcher is None else inf
        try:
            decision = self._gateway.spine.attempt(attempt, timeout=timeout)
        except (PublishError, LedgerUnavailable):
            if self.dispatcher is not None:
                return  # this process is stopping; the unacknowledged message is redelivered
            decision = None
        if decision is None:  # nothing was published; the message may be the order's only one
            message.reject_log_error(log, self.connection_errors, requeue=True)
            return
        message.ack_log_error(log, self.connection_errors)

    def _be_watched(self, dispatcher: Dispatcher) -> None:
        """Register the gauges, pages and readiness checks of this worker.

        A synchronous worker has no metrics port: a lock that a thread of the parent holds during a
        fork would block the child forever.
        """
        port = self._gateway.metrics_port
        standings = Standings(dispatcher.admission, self._gateway.directory.provider_of)
        port.scrape.before(dispatcher.show)
        port.scrape.before(standings.show)
        port.add("/debug/merchants", standings.page)
        port.readiness.require("broker", self._why_not_consuming)
        port.readiness.require("draining", self._why_draining)

    def _why_not_consuming(self) -> str | None:
        return None if self._reads else "nothing is taken from the queue: there is no connection"

    def _why_draining(self) -> str | None:
        return "this worker is stopping" if self._drain.has_begun else None

    def _make_dispatcher(self, pool: Any) -> Dispatcher:
        settings = self._gateway.settings
        return Dispatcher(
            gate=self._gateway,
            pool=pool,
            limits=AdmissionLimits(
                slots=pool.limit,
                cores=min(1.0, cpu_limit() or 1.0),
                slow_after=settings.slow_after,
                max_waiting=settings.max_waiting,
                local_wait_timeout=settings.local_wait_timeout,
                park_delay_max=settings.park_delay_max,
                park_delay_min=min(1.0, settings.park_delay_max),
                max_blocked=max(settings.max_waiting, pool.limit * WINDOW // 2),
                max_bytes=max_bytes(),
            ),
            park_message=_same_again,
            quarantine=self.quarantine,
        )


#: Factor by which a republished message may exceed an order's limit: earlier versions filled in an
#: order's defaults when they republished it.
GROWN = 4
#: Seconds to connect to the broker, handshake included.
CONNECT_TIMEOUT = 5.0
#: Longest seconds between connection attempts.
RECONNECT_AFTER = 3.0
#: Seconds for the broker to confirm a cancelled consumer, and to store what is being parked.
CANCEL_TIMEOUT = 2.0

#: Seconds after which an idle synchronous worker looks for a stop.
STOP_SEEN_WITHIN = 0.5

#: Messages in the prefetch window for each slot.
WINDOW = 10
#: Part of the memory limit for large orders, and their bytes where there is none; and bytes of messages
#: that may be on their way to orders.dead before the next one is read.
LARGE, LARGE_BYTES, SET_ASIDE = 0.25, 128 * 2**20, 8 * 2**20


def max_bytes() -> int:
    """Bytes of memory for large orders in this process."""
    limit = memory_limit()
    return LARGE_BYTES if limit is None else int(LARGE * limit)


#: Seconds to commit outcomes after the longest exchange, when stopping.
DRAIN_MARGIN = 5.0


def _not_connected(error: BaseException, interval: float) -> None:
    log.warning("broker.not_connected", error=str(error), again_in=interval)


def _same_again(request: OrderRequest) -> Message:
    """The message as it came, headers included, for republishing."""
    return Message(
        exchange=topology.orders_exchange.name,
        routing_key=request.raw.home,
        body=request.raw.body,
        message_id=request.order_id or "",
        headers=request.raw.headers,
    )


def _number_of(message: Any) -> str:
    """The sender's message id in 128 bytes; AMQP allows 255."""
    number = str(message.properties.get("message_id") or message.headers.get("id", ""))
    return number.encode(errors="replace")[:128].decode(errors="ignore")


#: Headers in which Celery's clients repeat the body, personal data included.
_OF_THE_BODY = frozenset({"argsrepr", "kwargsrepr"})
#: Headers that a replay reads: kept however many others a message has.
_FOR_REPLAY = KNOWN_HEADERS | BUNDLE_HEADERS | {TRACEPARENT, TRACESTATE, COMPRESSION}
#: Maximum headers kept.
_HEADERS = 20


def _plain(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers kept with a message in ``orders.dead``: short, plain values."""
    kept = {
        name: value
        for name, value in headers.items()
        if isinstance(value, str | int | float | bool)
        and len(name) <= 64
        and len(str(value)) <= 256
        and name not in _OF_THE_BODY
    }
    first = sorted(kept, key=lambda name: name not in _FOR_REPLAY)
    return {name: kept[name] for name in first[:_HEADERS]}
