"""The composition root: Settings -> Gateway. What is started here is stopped here."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from math import inf
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Engine

from pos_gateway.adapters.registry import adapters
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.queue_metrics import Depths
from pos_gateway.database.engine import open_database, require_current
from pos_gateway.domain.errors import BrokerUnavailable, PublishError
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.relay import Relay
from pos_gateway.events.repeating import Repeating
from pos_gateway.fleet.permits import RedisPermits
from pos_gateway.ledger.ledger import Ledger, Run, here
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.schema_watch import SchemaWatch
from pos_gateway.ledger.states import Entry, Key
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import Directory
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.processing.call import Caller
from pos_gateway.processing.cancellation import Cancellation
from pos_gateway.processing.decision import Decision
from pos_gateway.processing.delivery import Delivery
from pos_gateway.processing.poison import PoisonIsolation
from pos_gateway.processing.shared_cache import SharedCache
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
    """Everything an order needs on its way, put together. The constructor does no I/O."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.clock = clock
        #: Makes spans of orders' ways; None: they are not traced, and nothing is done for it.
        self.tracing = _tracing() if settings.tracing else None
        self.database = open_database(settings.database_url)
        vault = Vault(settings.secret_keys)
        store = MerchantStore(self.database, vault=vault)
        #: What this worker has read or fetched and others need not; None: each does for itself.
        #: Unsealed, write access to Redis would be enough to have orders sent elsewhere.
        shares = settings.redis_url if vault.current else None
        self.shared = SharedCache(shares, store, vault) if shares else None
        self.directory = Directory(
            store,
            CatalogStore(self.database),
            shared=self.shared.records if self.shared else None,
            shared_catalogs=self.shared.catalogs if self.shared else None,
            clock=clock,
        )
        guard = Guard(
            allow_all=settings.allow_private_addresses,
            networks=networks(settings.allowed_networks),
            ports=ports(settings.allowed_ports),
        )
        self.transport = Transport(guard=guard, ca_file=settings.ca_file)
        self.publisher = Publisher(settings.broker_url)
        #: Where limits are shared with other workers; None: they are this process's alone.
        self.permits = RedisPermits(settings.redis_url) if settings.redis_url else None
        #: Ways of speaking to POSes, by name.
        self.adapters = adapters()
        #: What was asked for each order, and what came of it.
        payloads, run = Payloads(vault), off_the_loop(self.database)
        self.ledger = Ledger(self.database, payloads, run=run, clock=clock)
        self.schema = SchemaWatch(self.database, run=run)
        #: Publishes the events that are written with outcomes.
        self.events = Relay(
            self.database,
            Hydration(payloads),
            lambda: self.ledger.lease,
            broker_url=settings.broker_url,
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
            tracing=self.tracing,
            clock=clock,
        )
        alone = PoisonIsolation()  # of orders and requests together: the next death has one culprit
        self.delivery = Delivery(
            directory=self.directory,
            adapters=self.adapters,
            caller=self.caller,
            ledger=self.ledger,
            alone=alone,
            clock=clock,
        )
        self.cancellation = Cancellation(
            directory=self.directory,
            adapters=self.adapters,
            caller=self.caller,
            ledger=self.ledger,
            alone=alone,
            clock=clock,
        )
        self.depths = Depths(settings.broker_url)
        #: What this process shows of itself; whoever knows something adds it.
        self.metrics_port = MetricsPort(settings.metrics_port, settings.metrics_host)
        self.metrics_port.readiness.require(
            "database", lambda: self.schema.problem or self.ledger.problem
        )
        self.metrics_port.scrape.before(self._show)
        #: The process in which it has begun. One that is forked from there has not.
        self._started_in: int | None = None
        self._before_stop: list[Callable[[], None]] = []

    def check(self) -> None:
        """See that the database and the queues are what this version needs.

        Raises:
            PendingMigration, SchemaTooNew: the database's schema is none for this version.
            PublishRefused: a queue exists with other arguments.
            SQLAlchemyError: the database cannot be reached.
        """
        require_current(self.database)
        try:
            self.publisher.connect()
        except BrokerUnavailable as error:
            # Celery waits for it, and the first message that is published declares the queues.
            log.warning("broker.unavailable", error=str(error))

    def start(self, *, background: bool) -> None:
        """Begin the work that goes on beside the orders. Idempotent.

        Args:
            background: whether this process has threads to spare (green or native); a prefork
                child has one, and looks merchants up as it needs them.
        """
        if self._started_in == os.getpid():
            return
        self._started_in = os.getpid()
        failpoints.arm_all(self.settings.failpoints)
        if background:
            if self.tracing is not None:
                self.tracing.start()
            self.directory.start()
            self.ledger.start()
            self.schema.start()
            if self.settings.publish_events:
                self.events.start()
            if self.metrics_port.is_on:
                self.depths.start()
        else:
            self.database.dispose(close=False)  # what was opened before the fork is the parent's
            self.ledger.start_alone()

    def settle(self, decision: Decision, *, patience: float = inf) -> bool:
        """Return when all that follows from an outcome is durable, whatever it takes.

        False: somebody else has the order by now. Nothing more is done, and the message must come
        again: whoever has it may have come to it by another one, and may not see to this one's end
        (a wish to cancel an order takes it over, and lets go of it).

        Raises:
            LedgerUnavailable, BrokerUnavailable: this process is going down, or so many seconds
                have passed; the message must come again.
        """
        left = [*decision.entries, *([] if decision.closing is None else [decision.closing])]
        with ExitStack() as claims:
            for claim, _ in left:
                claims.enter_context(self.ledger.dealing_with(claim))
            for claim, entry in decision.entries:
                del left[0]
                if not self.ledger.finish(claim, entry, patience=patience):
                    for other, _ in left:
                        self.ledger.abandon(other, sent=other.sending)
                    return False
                self._told(claim.key, entry)
            for told in decision.event_records:
                self.ledger.tell(told.key, told.entry, told.body, patience=patience)
                self._told(told.key, told.entry)
            failpoints.reach("publish.before")
            self.store(decision.messages, patience=patience)
            failpoints.reach("publish.confirmed")
            return all(self.ledger.finish(*last, patience=patience) for last in left)

    def abandon(self, decision: Decision) -> None:
        """Have the next attempt take the claims of a decision that is not settled."""
        for claim in decision.claims:
            self.ledger.abandon(claim, sent=claim.sending)

    def provider_of(self, merchant_id: str) -> str | None:
        """A merchant's provider; None if it has none, or is not known here."""
        merchant = self.directory.peek(merchant_id)
        return None if merchant is None else merchant.provider

    def _told(self, key: Key, entry: Entry) -> None:
        """An event is durable: whoever publishes it may do so at once."""
        if entry.event is not None:
            metrics.told(entry.event.kind, self.provider_of(key.merchant_id))
            self.events.wake()

    def store(self, messages: Iterable[Message], *, patience: float = inf) -> None:
        """Return when the broker has stored the messages, in their order, whatever it takes.

        Raises:
            BrokerUnavailable: this process is going down, or so many seconds have passed.
        """
        for message in messages:
            self.publisher.publish_patiently(message, on_trouble=_trouble, patience=patience)

    def before_stop(self, stop: Callable[[], None]) -> None:
        """Call this first when stopping."""
        self._before_stop.append(stop)

    def stop(self) -> None:
        """Stop, in the opposite order of the data's way. Idempotent."""
        for stop in self._before_stop:
            stop()
        self.directory.stop()
        self.schema.stop()
        if self.shared is not None:
            self.shared.close()
        self.publisher.close()
        self.transport.close()
        self.events.stop()
        self.ledger.close()
        self.database.dispose()
        self.depths.stop()
        if self.tracing is not None:
            self.tracing.stop()
        self.metrics_port.stop()  # until here it says that this process is not ready, and why

    def _show(self) -> None:
        for state, number in self.transport.connections._asdict().items():
            metrics.connections.labels(state).set(number)
        self.events.show()


def _tracing() -> "ExportedTracing":
    # Whoever has it off imports nothing of it.
    from pos_gateway.telemetry.tracing import ExportedTracing  # noqa: PLC0415

    return ExportedTracing()


def off_the_loop(engine: Engine) -> Run:
    """Where the ledger's writes are made, so that other green threads go on meanwhile.

    Psycopg waits for its socket as green threads do; SQLite writes to the disk, and has to do it
    on a native thread.
    """
    if not (green() and engine.dialect.name == "sqlite"):
        return here
    import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

    pool = gevent.get_hub().threadpool

    def run(do: Callable[[], Any]) -> Any:
        result, error = pool.apply(_tried, (do,))
        if error is not None:
            raise error
        return result

    return run


def _tried(do: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What it returns, or raises: gevent writes a traceback of whatever leaves a native thread."""
    try:
        return do(), None
    except Exception as error:  # noqa: BLE001  (raised again where it is waited for)
        return None, error


def _trouble(error: PublishError) -> None:
    metrics.publish_trouble.inc()
    log.warning("publish.delayed", error=str(error))


_lock = threading.Lock()
_current: Gateway | None = None


def current() -> Gateway:
    """This process's gateway, made from the environment at the first call."""
    global _current  # noqa: PLW0603  (Celery tasks are functions; they have nowhere else to look)
    with _lock:
        if _current is None:
            _current = Gateway(Settings.from_environment())
        return _current
