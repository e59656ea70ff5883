"""An event pipeline that is far behind: rows that were committed and not published."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from loadtests.bench.events import bulk
from loadtests.bench.small_core.adversary import Scene
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.world import World
from pos_gateway.database.engine import open_database

#: Events: a worker publishes fewer in any run, and a million take minutes to write.
EVENTS = 100_000
_NAME = "behind"


def ended_orders(place: World, _: Scene) -> None:
    """Write the orders of the events."""
    with _database(place) as engine:
        bulk.write_orders(engine, _NAME, EVENTS)


@contextmanager
def unpublished(place: World) -> Iterator[None]:
    """Commit their events in one moment."""
    with _database(place) as engine:
        bulk.write_events(engine, _NAME, EVENTS)
    yield


@contextmanager
def _database(place: World) -> Iterator[Engine]:
    if place.servers.postgresql is None:
        raise InvalidRunError("a pipeline that is behind needs --ledger postgresql")
    engine = open_database(place.database_url)
    try:
        yield engine
    finally:
        engine.dispose()
