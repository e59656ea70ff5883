"""What the ledger and the broker say of the others' orders."""

from kombu import Connection
from sqlalchemy import func, select

from loadtests.bench import filling
from loadtests.bench.world import World
from pos_gateway.broker import topology
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders
from pos_gateway.ledger.states import Action, State


def ended(place: World, action: Action, *states: State) -> int:
    """Orders, or cancel requests, in one of these states."""
    row = orders.c
    query = select(func.count()).where(row.action == action, row.state.in_(states))
    engine = open_database(place.database_url)
    try:
        with engine.connect() as connection:
            return connection.scalar(query) or 0
    finally:
        engine.dispose()


def published(place: World) -> int:
    """Events in ``order-events``, but for those of orders that merchants made."""
    with Connection(place.broker_url) as connection:
        events = filling.depth(connection, topology.events_queue)
    return events - int(place.merchants.summary()["creates"])
