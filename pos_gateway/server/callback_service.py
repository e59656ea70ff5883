"""All that takes callbacks, put together: started and stopped with the server."""

from sqlalchemy import Engine

from pos_gateway.adapters.registry import adapters
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_merchants import CallbackMerchants
from pos_gateway.server.callback_writer import CallbackWriter
from pos_gateway.server.callbacks import CallbackRoute
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.reading import Reading
from pos_gateway.server.waiting_callbacks import WaitingCallbacks
from pos_gateway.settings import Settings


class CallbackService:
    """The route of callbacks, and what tries again those that wait. The constructor does no I/O."""

    def __init__(
        self,
        settings: Settings,
        database: Engine,
        store: MerchantStore,
        payloads: Payloads,
        clock: Clock,
    ) -> None:
        #: Not the server's other reads: anyone may call.
        self._reading = Reading()
        merchants = CallbackMerchants(store, self._reading)
        ledger = CallbackLedger(database, payloads, dehydrated)
        self._writer = CallbackWriter(ledger)
        intake = CallbackIntake(merchants, self._writer)
        self._waiting = WaitingCallbacks(adapters(), ledger, merchants, intake, self._reading)
        self.route = CallbackRoute(
            adapters(),
            merchants,
            intake,
            InFlight(settings.http_in_flight),
            public_url=settings.http_public_url,
            clock=clock,
        )

    def start(self) -> None:
        """Try again what waits, from now on. Call it in the event loop."""
        self._waiting.start()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._waiting.stop()
        self._reading.close()
        self._writer.close()
