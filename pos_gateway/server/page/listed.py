"""The views of the page, in the order of the navigation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Engine

from pos_gateway.adapters.registry import adapters, misfits
from pos_gateway.administration.merchant_view import MerchantViews
from pos_gateway.domain.split import Split
from pos_gateway.events.archive import Archive
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.order_search import count_overdue
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.runtime.clock import Clock
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.page.letter_count import LetterCount
from pos_gateway.server.page.view import View
from pos_gateway.server.page.views.canary import Canary
from pos_gateway.server.page.views.dead_letters import DeadLetters
from pos_gateway.server.page.views.in_doubt import InDoubt
from pos_gateway.server.page.views.merchant import MerchantPage
from pos_gateway.server.page.views.merchant_acts import MerchantActs
from pos_gateway.server.page.views.merchant_add import MerchantAdd
from pos_gateway.server.page.views.merchant_edit import MerchantEdits
from pos_gateway.server.page.views.merchants import Merchants
from pos_gateway.server.page.views.nav_counts import NavCounts
from pos_gateway.server.page.views.now import NowPage
from pos_gateway.server.page.views.order import OrderPage
from pos_gateway.server.page.views.order_acts import OrderActs
from pos_gateway.server.page.views.order_reading import OrderReading
from pos_gateway.server.page.views.orders import OrdersPage
from pos_gateway.server.page.views.provider_acts import ProviderActs
from pos_gateway.server.page.views.runs import Runs
from pos_gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Sources:
    """What views read from, and act on."""

    settings: Settings
    database: Engine
    clock: Clock
    fleet: FleetView
    orders: OrderAdmin
    #: Published events.
    archive: Archive
    #: The canary split in force.
    split: Callable[[], Split]
    #: Runs on many letters, or orders in doubt.
    bulk: BulkThreads


def views(sources: Sources) -> Sequence[View]:
    """All views. A path belongs to the first one that has it."""
    settings, database, clock = sources.settings, sources.database, sources.clock
    vault, known = Vault(settings.secret_keys), adapters()
    admin = MerchantAdmin(database, vault, partial(misfits, known=known), clock)
    about = MerchantViews(database, MerchantStore(database, clock, vault), clock)
    reading = OrderReading(database, sources.orders, sources.archive, sources.fleet, clock)
    letters = LetterCount(settings.broker_url, database, sources.bulk, clock)
    overdue = partial(count_overdue, database)
    return (
        NavCounts(sources.fleet, sources.orders, overdue),
        NowPage(sources.fleet, sources.orders, overdue, sources.split, clock),
        Merchants(database, clock),
        MerchantPage(about, settings, clock),
        MerchantActs(admin, about),
        MerchantAdd(admin),
        MerchantEdits(admin, settings, sorted(known)),
        ProviderActs(admin, database, sources.fleet),
        OrdersPage(database, clock),
        InDoubt(database, sources.bulk, clock),
        DeadLetters(sources.bulk, letters, clock),
        Runs(sources.bulk, clock),
        Canary(settings, database, Payloads(vault), sources.split, clock),
        OrderPage(reading, OrderActs(reading, settings, sources.split)),
    )
