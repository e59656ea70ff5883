"""A database of each kind, and a gateway that the test puts into trouble."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from pos_gateway.alerts.sender import AlertSender
from pos_gateway.alerts.watch import AlertWatch
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.database.schema import orders
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from tests.reports.lab import Reports

SECRET = f"whsec_{base64.b64encode(b'k' * 32).decode()}"


@pytest.fixture
def reports(engine: Engine) -> Reports:
    return Reports(engine)


def watch_of(engine: Engine, url: str) -> AlertWatch:
    """What a server has; the test has its rounds."""
    return AlertWatch(engine, AlertSender(url, SECRET, SYSTEM_CLOCK), "https://ops.example.com/")


def put_order(engine: Engine, order_id: str, merchant_id: str, state: str, **fields: Any) -> None:
    """An order's row."""
    required = {"action": "submit", "ticket": 0, "epoch": 1, "attempts": 1, "deaths": 0}
    more = {"pending": False, "reopened": 0, "created_at": 0.0, **required, **fields}
    with engine.begin() as connection:
        connection.execute(
            insert(orders).values(order_id=order_id, merchant_id=merchant_id, state=state, **more)
        )


@pytest.fixture
def engine_of() -> Iterator[Callable[[str], Engine]]:
    """Opens a database with the schema."""
    opened: list[Engine] = []

    def open_it(url: str) -> Engine:
        opened.append(open_database(url))
        upgrade(opened[-1])
        return opened[-1]

    yield open_it
    for each in opened:
        each.dispose()
