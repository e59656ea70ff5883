"""The views of the page, in the order of the navigation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from pos_gateway.domain.split import Split
from pos_gateway.events.archive import Archive
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.view import View
from pos_gateway.server.page.views.now import Now
from pos_gateway.server.page.views.order import OrderView
from pos_gateway.server.page.views.order_acts import OrderActs
from pos_gateway.server.page.views.order_reading import OrderReading
from pos_gateway.server.page.views.orders import Orders
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


def views(sources: Sources) -> Sequence[View]:
    """All views. A path belongs to the first one that has it."""
    reading = OrderReading(
        sources.database, sources.orders, sources.archive, sources.fleet, sources.clock
    )
    return (
        Now(sources.fleet, sources.orders, sources.split, sources.clock),
        Orders(sources.database, sources.clock),
        OrderView(reading, OrderActs(reading, sources.settings, sources.split)),
    )
