"""The server's composition root: Settings -> Site. What is started here is stopped here."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from math import inf

import structlog
from pydantic_core import to_json

from pos_gateway.administration.bulk.operations import BulkOperations
from pos_gateway.alerts.sender import sender_of
from pos_gateway.alerts.watch import AlertWatch
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.engine import open_database, require_current
from pos_gateway.domain.split import Split
from pos_gateway.events.archive import Archive
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.submissions import Submissions
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.routing.splits import SplitWatch
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.access import Access
from pos_gateway.server.api import application
from pos_gateway.server.asgi import Application
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.callback_service import CallbackService
from pos_gateway.server.following import Event, Feeds, Following, cut
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.intake import Intake
from pos_gateway.server.loop_turn import LoopTurn
from pos_gateway.server.masked_events import masked_event
from pos_gateway.server.orders import Orders
from pos_gateway.server.page.acting import Acting
from pos_gateway.server.page.app import PageApp
from pos_gateway.server.page.entrance import Entrance
from pos_gateway.server.page.listed import Sources, views
from pos_gateway.server.page.live import Live, LiveStream
from pos_gateway.server.page.render import Renderer
from pos_gateway.server.page.static import StaticFiles
from pos_gateway.server.page.users import PageUsers
from pos_gateway.server.reading import Reading
from pos_gateway.server.streaming import Streaming
from pos_gateway.server.submitting import SubmitRoutes
from pos_gateway.server.unread import Unread
from pos_gateway.settings import Settings
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.tokens.act_store import ActStore
from pos_gateway.tokens.audit import TokenAudit
from pos_gateway.tokens.rate import RateLimits
from pos_gateway.tokens.session_store import SessionStore
from pos_gateway.tokens.sessions import Sessions
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.tokens import REFRESH_EVERY, Tokens

log = structlog.get_logger(__name__)

#: Threads that mask events: more would take the interpreter from the event loop, and from reads.
MASKING = 1
#: Threads that make pages, likewise.
PAGES = 4


class Site:
    """All components of a server, put together. The constructor does no I/O."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.settings = settings
        self.database = open_database(settings.database_url)
        vault = Vault(settings.secret_keys)
        payloads = Payloads(vault)
        self.tokens = Tokens(TokenStore(self.database, clock), clock)
        self._sessions = Sessions(SessionStore(self.database), self.tokens, clock)
        self.audit = TokenAudit(self.database, clock)
        limits = RateLimits(settings.http_rate or inf)
        self.intake = Intake(
            Publisher(settings.broker_url), Submissions(self.database, payloads), clock
        )
        self._own_split = Split(percent=settings.canary_percent)
        self._splits = SplitWatch(settings.broker_url)
        self.reading = Reading()
        self._masking = Reading(MASKING)
        self._archive = Archive(self.database, Hydration(payloads))
        store = MerchantStore(self.database, clock, vault)
        self._callbacks = CallbackService(settings, self.database, store, payloads, clock)
        self.feeds = Feeds(
            Following(self._read_events, self._last_position),
            Following(self._read_masked, self._last_position),
        )
        unread = Unread()
        access = Access(self.tokens, limits, self.audit)
        submission = SubmitRoutes(
            access,
            InFlight(settings.http_in_flight),
            self.intake,
            split=self._split,
            largest=settings.max_order_bytes,
            clock=clock,
        )
        orders = Orders(self.database, OrderAdmin(self.database, payloads), self._archive)
        api = application(
            access, submission, orders, self.feeds, self.reading, unread, problem=self.problem
        )
        #: Of the page alone: who looks keeps no order waiting.
        self._page_reading = Reading(PAGES)
        self._entrance_reading = Reading(1)
        self._entrance = Entrance(
            self.tokens, self._sessions, PageUsers.of(settings, clock), self._entrance_reading
        )
        self._acting = Acting(ActStore(self.database), self.audit, self._entrance)
        #: Its runs go on beside requests.
        self.bulk = BulkThreads(BulkOperations(settings, self.database, payloads))
        self._page_live, self.page, stream = self._page(access, payloads, clock, unread)
        #: The ASGI application.
        self.app = Application(
            {"/v1/orders": submission.submit, "/v1/orders/batch": submission.submit_batch},
            self._callbacks.route,
            {"/v1/events/stream": Streaming(access, self.feeds, unread), "/page/live": stream},
            self.page,
            api,
            unread,
        )
        sender = sender_of(settings, clock)
        self._alerts = (
            None if sender is None else AlertWatch(self.database, sender, settings.http_public_url)
        )
        self._loop_turn = LoopTurn()
        self.metrics_port = MetricsPort(
            settings.metrics_port, settings.metrics_host, self._loop_turn
        )
        self.metrics_port.require("broker", lambda: self.intake.problem)
        self.metrics_port.require("tokens", lambda: self.tokens.problem)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Check the database, and start what runs beside requests. Call it in the event loop.

        Raises:
            PendingMigration, SchemaTooNew, SQLAlchemyError: the database cannot be used.
        """
        require_current(self.database)
        self._splits.split()  # waits for the first one: no request may
        self.tokens.refresh()
        self._sessions.refresh()
        threading.Thread(target=self._refresh, name="tokens", daemon=True).start()
        self._loop_turn.start()
        self.metrics_port.start()
        self.intake.start(asyncio.get_running_loop())
        self._callbacks.start()
        if self._alerts is not None:
            self._alerts.start()

    def end_streams(self) -> None:
        """Have streams end, so that their clients go elsewhere. Idempotent."""
        self.feeds.stop()
        self._page_live.stop()

    def stop(self) -> None:
        """Stop what ``start`` started. Idempotent."""
        self._stopping.set()
        self.end_streams()
        if self._alerts is not None:
            self._alerts.end()
        self.intake.stop()
        self.audit.write()  # also before a part that may take until the process is killed
        self.bulk.stop()
        self._splits.close()
        self.reading.close()
        self._masking.close()
        self._page_reading.close()
        self._entrance_reading.close()
        self._acting.close()
        self._callbacks.stop()
        self.tokens.flush()
        self.audit.write()
        if self._alerts is not None:
            self._alerts.stop()
        self.metrics_port.stop()
        self.database.dispose()

    def problem(self) -> str | None:
        """Why it takes no orders; None: it does."""
        problems = self.metrics_port.problems()
        return next(iter(problems.values()), None)

    def _page(
        self, access: Access, payloads: Payloads, clock: Clock, unread: Unread
    ) -> tuple[Live, PageApp, LiveStream]:
        """The operations page: what renders it, its application, and its stream."""
        sources = Sources(
            settings=self.settings,
            database=self.database,
            clock=clock,
            fleet=FleetView(self.database),
            orders=OrderAdmin(self.database, payloads, clock),
            archive=self._archive,
            split=self._split,
            bulk=self.bulk,
        )
        listed, static = views(sources), StaticFiles()
        renderer = Renderer([each.nav for each in listed if each.nav is not None], static)
        parts = [part for each in listed for part in each.parts]
        live = Live(parts, renderer, self._page_reading)
        page = PageApp(
            listed,
            renderer,
            static,
            live,
            self._acting,
            access,
            self._entrance,
            self._sessions,
            self._page_reading,
            self.settings.http_public_url,
        )
        return live, page, LiveStream(live, self._entrance, unread)

    def _split(self) -> Split:
        return self._splits.split() or self._own_split

    def _refresh(self) -> None:
        while not self._stopping.wait(REFRESH_EVERY):
            self.tokens.refresh()
            self._sessions.refresh()
            self.audit.write()

    async def _read_events(self, after: int, most: int, size: int) -> Sequence[Event]:
        return await self.reading(lambda: cut(self._events(after, most, size), size))

    async def _read_masked(self, after: int, most: int, size: int) -> Sequence[Event]:
        return await self._masking(lambda: cut(map(_masked, self._events(after, most, size)), size))

    def _events(self, after: int, most: int, size: int) -> Iterator[Event]:
        for position, each in self._archive.after(after, most, size):
            yield Event(position, each.routing_key, each.body)

    async def _last_position(self) -> int:
        return (await self.reading(self._archive.extent)).published


def _masked(event: Event) -> Event:
    time.sleep(0)  # the event loop may want the interpreter
    return event._replace(body=to_json(masked_event(event.body)))
