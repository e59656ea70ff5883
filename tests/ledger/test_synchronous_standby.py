"""A primary that waits for a synchronous standby that never comes: what it shows is not durable.

Restarted, it shows rows that it never confirmed; the standby that is promoted elsewhere lacks them.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from pos_gateway.audit.note import By
from pos_gateway.cli.database import order_admin
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.merchants import administration
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.events.leadership import Leadership
from pos_gateway.events.outbox import Outbox, Term
from pos_gateway.ledger import writer
from pos_gateway.ledger.batch import Claiming, Finishing, Sending
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, Ended, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL, Standby
from tests.events.lab import Events
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed, without_event

#: No standby has this name.
NO_STANDBY = "absent"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgreSQL]:
    with PostgreSQL(fsync="off") as server:  # the process is killed, and the machine is not
        yield server


@pytest.fixture
def engine(primary: PostgreSQL) -> Iterator[Engine]:
    url = primary.database()
    engine = open_database(url)
    upgrade(engine)
    yield engine
    engine.dispose()
    primary.commit_with("")
    primary.drop_database(url)


@pytest.fixture
def cut_off(primary: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Cuts the primary off from its standby, has a write made, and restarts it."""
    monkeypatch.setattr(writer, "_ANSWER", 0.5)

    def cut(write: Callable[[], Any]) -> None:
        primary.commit_with(NO_STANDBY)
        with pytest.raises(LedgerUnavailable):
            write()
        primary.kill()
        primary.start()

    return cut


@pytest.mark.parametrize("what", [Claiming, Sending, Finishing])
def test_a_read_from_an_isolated_primary_counts_once_a_standby_has_it(
    engine: Engine, primary: PostgreSQL, cut_off: Callable[..., None], what: type
) -> None:
    one, rows = Worker(engine), Rows(engine)
    one.beat()
    claiming = Claiming(KEY, one.ticket(), send=False, deliver_by=None, payload=None)
    if what is Claiming:
        operation: Any = claiming
    else:
        claim = claimed(one.together(claiming)[0])
        operation = Sending(claim) if what is Sending else Finishing(claim, an_entry())
    cut_off(lambda: one.together(operation))
    states = {Claiming: "claimed", Sending: "sending", Finishing: "accepted"}
    assert rows.order().state == states[what]  # the row can be read
    with pytest.raises(LedgerUnavailable):
        one.together(operation)
    primary.commit_with("")
    [result] = one.together(operation)
    assert isinstance(result, Claim) if what is Claiming else result is True
    one._writer.close()


def test_an_outcome_that_no_standby_has_does_not_count(
    engine: Engine, primary: PostgreSQL, cut_off: Callable[..., None]
) -> None:
    """A worker that believed it would acknowledge the order's message."""
    one, two = Worker(engine), Worker(engine)
    two.beat()
    claim = claimed(one.claim(KEY, send=True))
    cut_off(lambda: one.together(Finishing(claim, an_entry())))
    two._writer.close()  # it was the restarted server's
    again = Claiming(KEY, two.ticket(), send=True, deliver_by=None, payload=None)
    with pytest.raises(LedgerUnavailable):
        two.together(again)
    primary.commit_with("")
    [result] = two.together(again)
    assert isinstance(result, Ended)
    for each in (one, two):
        each._writer.close()


@pytest.mark.parametrize("known_as", ["o1", None])
def test_a_callback_that_no_standby_has_is_no_duplicate(
    engine: Engine, primary: PostgreSQL, cut_off: Callable[..., None], known_as: str | None
) -> None:
    """Its POS would not call again, and the standby that is promoted would never know."""
    one = Worker(engine)
    claimed(one.claim(KEY, send=True, endpoint="the POS"))
    said = Callback("1", Lifecycle.READY, known_as, "7")
    received = [Received("rest", "m", said, {"m": ("the POS",)})]
    first, second = (CallbackLedger(engine, Payloads(Vault()), dehydrated) for _ in range(2))
    cut_off(lambda: first.apply(received))
    with pytest.raises(LedgerUnavailable):
        second.apply(received)
    primary.commit_with("")
    assert [each.result for each in second.apply(received)] == [CallbackResult.DUPLICATE]
    for each in (first, second):
        each.close()
    one._writer.close()


def test_events_whose_positions_no_standby_has_are_not_published(
    engine: Engine, primary: PostgreSQL, cut_off: Callable[..., None]
) -> None:
    outbox = Outbox(engine)
    term = outbox.take("me-1", outbox.look()[0].epoch)
    assert term is not None
    Events(engine).write(2)
    cut_off(lambda: outbox.assign(term, 10))
    assert outbox.look()[0].assigned == 2
    with pytest.raises(LedgerUnavailable):
        outbox.assign(term, 10)
    primary.commit_with("")
    after = outbox.assign(term, 10)
    assert after is not None and after.assigned == 2
    outbox.close()


def test_a_leadership_that_no_standby_has_is_none(
    engine: Engine, primary: PostgreSQL, cut_off: Callable[..., None]
) -> None:
    one, outbox = Worker(engine), Outbox(engine)
    one.beat()
    leadership = Leadership(outbox, one, one.clock)
    term = outbox.look()[0]
    cut_off(lambda: outbox.take(one.lease.id, term.epoch))
    assert outbox.look()[0].leader == one.lease.id
    with pytest.raises(LedgerUnavailable):
        leadership.term()
    primary.commit_with("")
    one.clock.advance(1.0)
    assert isinstance(leadership.term(), Term)
    outbox.close()
    one._writer.close()


@pytest.fixture
def cancelled(primary: PostgreSQL) -> Callable[..., BaseException | None]:
    """Have this written while the standby is away, cancel the wait; returns the result."""

    def cancel(write: Callable[[], Any]) -> BaseException | None:
        primary.commit_with(NO_STANDBY)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not (waiting := primary.commits_waiting()):
                time.sleep(0.005)
            primary.execute(sql.SQL("select pg_cancel_backend({})").format(waiting[0]))
            error = writing.exception()
        primary.commit_with("")
        return error

    return cancel


def test_a_wait_for_the_standby_that_is_cancelled_is_no_commit(
    engine: Engine, cancelled: Callable[..., BaseException | None]
) -> None:
    """PostgreSQL confirms it with a warning."""
    one = Worker(engine)
    one.beat()
    error = cancelled(lambda: one.record_event(KEY, an_entry(), b"{}", timeout=0))
    assert isinstance(error, LedgerUnavailable)
    assert str(error) == "the wait for the synchronous standby was cancelled"
    one.record_event(KEY, an_entry(), b"{}")
    assert len(Rows(engine).events()) == 1
    one._writer.close()


def an_operators(change: str) -> None:
    if change == "pause":
        with administration() as admin:
            admin.pause([KEY.merchant_id], By("kim"), paused=True)
        return
    with order_admin() as orders:
        seen = orders.one(KEY)
        assert seen is not None
        if change == "note":
            orders.note(KEY, operator="kim", what="x", details="")
        else:
            orders.change(seen, without_event(State.NEW), operator="kim", what="x", details="")


@pytest.mark.parametrize("change", ["change", "note", "pause"])
def test_a_cancelled_wait_for_the_standby_is_no_commit_of_an_operators_change(
    engine: Engine,
    cancelled: Callable[..., BaseException | None],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    monkeypatch.setenv("POS_GATEWAY_DATABASE_URL", engine.url.render_as_string(False))
    one = Worker(engine)
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.IN_DOUBT))
    MerchantStore(engine).put([Merchant(id=KEY.merchant_id, base_url="https://pos.example.com")])
    error = cancelled(lambda: an_operators(change))
    assert isinstance(error, Failure)
    assert "run it again" in str(error)
    an_operators(change)
    one._writer.close()


def test_a_connection_with_an_unconfirmed_commit_is_reused(
    engine: Engine, cancelled: Callable[..., BaseException | None]
) -> None:
    store = MerchantStore(engine)
    record = Merchant(id=KEY.merchant_id, base_url="https://pos.example.com")
    assert isinstance(cancelled(lambda: store.put([record])), OperationalError)
    assert store.put([record]) == 1


def test_the_primary_of_several_hosts_is_used(engine: Engine, primary: PostgreSQL) -> None:
    with Standby(primary.url) as standby:
        hosts = f"host=127.0.0.1:{standby.port}&host=127.0.0.1:{primary.port}"
        hosts += f"&connect_timeout={PATIENCE:.0f}"
        there = open_database(f"postgresql://postgres@/{engine.url.database}?{hosts}")
        one = Worker(there)
        claimed(one.claim(KEY, send=True))
        only_standby = open_database(standby.url)
        with pytest.raises(LedgerUnavailable, match="hot standby mode"):
            Worker(only_standby).beat()
        one._writer.close()
        for each in (there, only_standby):
            each.dispose()
