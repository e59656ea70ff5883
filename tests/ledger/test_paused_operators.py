"""Operators' processes that are paused within a transaction: workers wait for its rows, not for them."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger import writer
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune, prune_orders
from pos_gateway.ledger.resealing import reseal
from pos_gateway.ledger.states import Ended, Key, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event

OTHER = Key("m", "other")


def changes_an_order(engine: Engine) -> None:
    admin = OrderAdmin(engine, Payloads(Vault()))
    seen = admin.one(KEY)
    assert seen is not None
    admin.change(seen, without_event(State.IN_DOUBT), operator="kim", what="x", details="")


def seals_orders_anew(engine: Engine) -> None:
    list(reseal(engine, Payloads(Vault("a key that is long enough"))))


def prunes_orders(engine: Engine) -> None:
    list(prune_orders(engine, DAY + 100))


def prunes_all(engine: Engine) -> None:
    list(prune(engine, DAY + 100))


def migrates(engine: Engine) -> None:
    def lock(config: Any, _revision: str) -> None:
        connection = config.attributes["connection"]
        for _ in range(2):  # a statement after the pause, too
            connection.exec_driver_sql("lock table orders in access exclusive mode")

    with patch("alembic.command.upgrade", lock):
        upgrade(engine)


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    """SQLite has no such limit: a paused writer has all of the file."""
    engine = open_database(postgresql_url)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    "operator", [changes_an_order, seals_orders_anew, prunes_orders, prunes_all, migrates]
)
def test_a_worker_goes_on_while_an_operators_process_is_paused(
    engine: Engine,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    operator: Callable[[Engine], None],
) -> None:
    monkeypatch.setattr(writer, "_STATEMENT_TIMEOUT", 5)
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 60)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=True, deliver_by=DAY, order=b"{}"))
    if operator in (prunes_orders, prunes_all):
        assert one.finish(claim, an_entry())
    theirs, written = open_database(postgresql_url), list[Any]()

    @event.listens_for(theirs, "after_cursor_execute")
    def paused(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("UPDATE orders", "lock table")) and not written:
            with (
                cursor.connection.cursor() as own
            ):  # its limit is over from here on, and not before
                own.execute("show idle_in_transaction_session_timeout")
                assert own.fetchone()[0] in (database._IDLE, "1min")
                own.execute("set local idle_in_transaction_session_timeout = '1ms'")
            again = one.claim(KEY, send=True)
            written.append(again if isinstance(again, Ended) else one.finish(claim, an_entry()))
            written.append(one.claim(OTHER, send=True))

    with pytest.raises((DBAPIError, LedgerUnavailable)):
        operator(theirs)
    assert written[0]
    assert claimed(written[1]).sending
    assert rows.order().state == State.ACCEPTED
    assert rows.order().payload == "{}"  # nothing of the operator's was written
    theirs.dispose()
