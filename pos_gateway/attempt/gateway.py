"""The composition root: Settings -> Gateway. Everything started here is stopped here."""

import os
import threading
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Engine

from pos_gateway.adapters.registry import adapters
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.cancel import Cancel
from pos_gateway.attempt.commit import Commit
from pos_gateway.attempt.poller import Poller
from pos_gateway.attempt.shared_cache import SharedCache
from pos_gateway.attempt.spine import Spine
from pos_gateway.attempt.submit import Submit
from pos_gateway.attempt.unreadable import Unreadable
from pos_gateway.auth.grant_store import GrantStore
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.queue_metrics import QueueMetrics
from pos_gateway.database.engine import open_database, require_current
from pos_gateway.domain.errors import BrokerUnavailable, PublishError
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.relay import EventRelay
from pos_gateway.events.repeating import Repeating
from pos_gateway.fleet.permits import RedisPermits
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.ledger import Ledger, Run, here
from pos_gateway.ledger.open_orders import OpenOrders
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.polls import Polls
from pos_gateway.ledger.schema_watch import SchemaWatch
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import Directory
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.addresses import networks, ports
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import green
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import DAY, Settings
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.transport.exchange import Transport
from pos_gateway.transport.guard import Guard

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import ExportedTracing

log = structlog.get_logger(__name__)


class Gateway:
    """All components, put together. The constructor does no I/O."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        #: Makes the spans of orders; None: tracing is off, and costs nothing.
        self.tracing = _tracing() if settings.tracing else None
        self.database = open_database(settings.database_url)
        vault = Vault(settings.secret_keys)
        store = MerchantStore(self.database, vault=vault)
        #: The cache shared by workers; None: each worker loads alone. The cache needs a key: unsealed, write access to
        #: Redis would be enough to redirect orders.
        shares = settings.redis_url if vault.current else None
        self.shared = SharedCache(shares, store, vault) if shares else None
        #: Reads everything looked at every second or two.
        self.polls = Polls(self.database)
        run = off_the_loop(self.database)
        self.directory = Directory(
            store,
            CatalogStore(self.database),
            self.polls,
            shared=self.shared.records if self.shared else None,
            shared_catalogs=self.shared.catalogs if self.shared else None,
            run=run,
            clock=clock,
        )
        guard = Guard(
            allow_all=settings.allow_private_addresses,
            networks=networks(settings.allowed_networks),
            ports=ports(settings.allowed_ports),
        )
        self.transport = Transport(guard=guard, ca_file=settings.ca_file, idle=settings.slots)
        # Rarely: a queue without a quorum gets every copy in the end, and each copy of a retry is retried until the
        # order's deliver_by.
        self.publisher = Publisher(settings.broker_url, confirm_timeout=300.0)
        #: The fleet's shared limits; None: limits are per process.
        self.permits = RedisPermits(settings.redis_url) if settings.redis_url else None
        #: POS adapters, by name.
        self.adapters = adapters()
        #: Claims and outcomes of orders.
        payloads = Payloads(vault)
        self.ledger = Ledger(self.database, payloads, run=run, clock=clock)
        self.schema = SchemaWatch(self.database, self.polls, run=run)
        #: Publishes the events recorded with outcomes.
        self.events = EventRelay(
            self.database,
            Hydration(payloads),
            self.ledger,
            broker_url=settings.broker_url,
            to_broker=settings.events_to_broker,
            keep=settings.keep_events * DAY,
            keep_orders=settings.keep_orders * DAY,
            run=run,
            tracing=self.tracing,
            clock=clock,
        )
        #: Finds terminal events to publish again.
        self.repeating = Repeating(self.database, self.ledger, Hydration(payloads), run=run)
        self.caller = Caller(
            directory=self.directory,
            transport=self.transport,
            ledger=self.ledger,
            default_concurrency=settings.merchant_concurrency,
            default_timeout=settings.request_timeout,
            tokens=self.shared.tokens if self.shared else None,
            grants=GrantStore(self.database, vault, self.polls, run),
            tracing=self.tracing,
            clock=clock,
        )
        #: Polls POSes for changes of accepted orders.
        self.poller = Poller(
            OpenOrders(self.database),
            CallbackLedger(self.database, payloads, dehydrated),
            self.directory,
            self.adapters,
            self.caller,
            every=settings.poll_every,
            run=run,
        )
        parts: dict[str, Any] = {
            "directory": self.directory,
            "adapters": self.adapters,
            "caller": self.caller,
            "ledger": self.ledger,
            "clock": clock,
        }
        #: Makes attempts' consequences durable.
        self.commit = Commit(
            ledger=self.ledger, events=self.events, directory=self.directory, store=self.store
        )
        #: Does as messages ask.
        self.spine = Spine(
            submit=Submit(**parts),
            cancel=Cancel(**parts),
            unreadable=Unreadable(
                caller=self.caller, ledger=self.ledger, repeating=self.repeating, clock=clock
            ),
            commit=self.commit,
            ledger=self.ledger,
            repeating=self.repeating,
            directory=self.directory,
            tracing=self.tracing,
        )
        self.queue_metrics = QueueMetrics(settings.broker_url)
        #: This process's metrics and health; components add theirs.
        self.metrics_port = MetricsPort(settings.metrics_port, settings.metrics_host)
        self.metrics_port.require("database", lambda: self.schema.problem or self.ledger.problem)
        self.metrics_port.before_scrape(self._show)
        self._is_started = False
        self._before_stop: list[Callable[[], None]] = []

    def check(self) -> None:
        """Check database and queues against the needs of this version.

        Raises:
            PendingMigration, SchemaTooNew: the database's schema does not fit this version.
            PublishRefused: a queue exists with different arguments, or a queue is missing that this broker user may
                not declare.
            SQLAlchemyError: the database cannot be reached.
        """
        require_current(self.database)
        try:
            self.publisher.connect(delays=True)
        except BrokerUnavailable as error:
            # Celery waits for the broker, and the first publish declares the queues.
            log.warning("broker.unavailable", error=str(error))

    def start(self) -> None:
        """Start the background work, on threads: green ones in a green worker. Idempotent."""
        if self._is_started:
            return
        self._is_started = True
        failpoints.arm_all(self.settings.failpoints)
        if self.tracing is not None:
            self.tracing.start()
        self.directory.start()
        self.ledger.start()
        self.schema.start()
        if self.settings.publish_events:
            self.events.start()
        self.poller.start()
        self.queue_metrics.start()

    def store(self, messages: Iterable[Message], *, timeout: float = inf) -> None:
        """Publish the messages in order; return once the broker has stored all.

        Raises:
            BrokerUnavailable: this process is stopping, or ``timeout`` seconds have passed.
        """
        for message in messages:
            self.publisher.publish_persistently(message, on_trouble=_trouble, timeout=timeout)

    def disconnect(self) -> None:
        """Close all connections until the next use, before ``start``: a fork must copy none.

        SQLite counts a process's locks on the file: with a copied connection a child treats the parent's locks as the
        child's own. Once the parent's connection closes, the next reader removes the log into which the child commits.
        """
        self.ledger.release()
        self.polls.close()
        self.database.dispose()
        self.publisher.renew()

    def before_stop(self, stop: Callable[[], None]) -> None:
        """Have ``stop`` call this first."""
        self._before_stop.append(stop)

    def stop(self) -> None:
        """Stop the components against the flow of data. Idempotent."""
        for stop in self._before_stop:
            stop()
        self.poller.stop()
        self.caller.authenticator.stop()
        self.directory.stop()
        self.schema.stop()
        if self.shared is not None:
            self.shared.close()
        self.publisher.close()
        self.transport.close()
        self.events.stop()
        self.ledger.close()
        self.polls.close()
        self.database.dispose()
        self.queue_metrics.stop()
        if self.tracing is not None:
            self.tracing.stop()
        self.metrics_port.stop()  # last: until here /readyz says why this process is not ready

    def _show(self) -> None:
        for state, number in self.transport.connections._asdict().items():
            metrics.connections.labels(state).set(number)
        self.events.show()


def _tracing() -> "ExportedTracing":
    # Imported only when tracing is on.
    from pos_gateway.telemetry.tracing import ExportedTracing  # noqa: PLC0415

    return ExportedTracing()


def off_the_loop(engine: Engine) -> Run:
    """Where the ledger's writes run without blocking further green threads.

    Psycopg yields while waiting for a socket; SQLite blocks on the disk, and needs a thread.
    """
    if not (green() and engine.dialect.name == "sqlite"):
        return here
    import gevent  # noqa: PLC0415  (only where gevent is in use already)

    pool = gevent.get_hub().threadpool

    def run(do: Callable[[], Any]) -> Any:
        result, error = pool.apply(_tried, (do,))
        if error is not None:
            raise error
        return result

    return run


def _tried(do: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The result or error, not raised: gevent prints a traceback of errors that leave a native thread."""
    try:
        return do(), None
    except Exception as error:  # noqa: BLE001  (raised again by ``run``)
        return None, error


def _trouble(error: PublishError) -> None:
    metrics.publish_trouble.inc()
    log.warning("publish.delayed", error=str(error))


_lock = threading.Lock()
_current: Gateway | None = None


def current() -> Gateway:
    """This process's gateway, made from the environment at the first call, and anew in a forked process."""
    global _current  # noqa: PLW0603  (Celery tasks are functions; they have nowhere else to look)
    with _lock:
        if _current is None:
            _current = Gateway(Settings.from_environment())
        return _current


def _forked() -> None:
    global _current, _lock
    _current, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
