"""Rows that another session of PostgreSQL has locked: no order but theirs waits."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, insert, text

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit, callbacks, orders, submissions
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.lease import BEAT, LEASE
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.pruning import prune_orders
from pos_gateway.ledger.states import Claim, Key, State
from tests.ledger.breaking import backend, terminate
from tests.ledger.lab import DAY, KEY, Clock, Rows, Worker, an_entry, claimed
from tests.ledger.test_commits import Caller

#: Beats of a minute.
A_MINUTE = round(60 / BEAT)
AN_ORDER = {
    **dict.fromkeys(("ticket", "epoch", "attempts", "deaths", "reopened"), 0),
    "merchant_id": "another",
    "order_id": "o1",
    "action": "submit",
    "state": "new",
    "pending": False,
    "created_at": DAY,
    "updated_at": DAY,
}


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = open_database(postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(engine: Engine, clock: Clock) -> Iterator[Ledger]:
    """A worker's ledger, with group commit; the test renews its lease."""
    ledger = Ledger(engine, clock=clock)
    ledger.start()
    ledger.catch_up()
    yield ledger
    ledger.close()


@contextmanager
def locked(engine: Engine, of: str = "orders where order_id = 'o1'") -> Iterator[None]:
    """A forgotten session holds these rows."""
    with engine.connect() as connection:
        assert connection.execute(text(f"select * from {of} for update")).all()
        yield
        connection.rollback()


@contextmanager
def locked_table(engine: Engine, table: str) -> Iterator[None]:
    """Another session makes an index."""
    with engine.connect() as connection:
        connection.execute(text(f"lock table {table} in share mode"))
        yield
        connection.rollback()


def a_claim(ledger: Ledger, order_id: str, merchant_id: str = "another") -> Claim:
    return claimed(ledger.claim(Key(merchant_id, order_id), send=True, order=b"{}"))


def a_claim_within(of: tuple[Ledger, str], timeout: float) -> Claim:
    ledger, order_id = of
    return a_claim(ledger, order_id)


def delivered(ledger: Ledger, order_id: str) -> bool:
    """Another merchant's order goes its whole way."""
    claim = a_claim(ledger, order_id)
    return ledger.holds(claim) and ledger.finish(claim, an_entry(key=claim.key))


def finishing(ledger: Ledger, claim: Claim) -> Caller:
    """A thread that waits for the order's outcome to be durable."""
    return Caller(lambda entry, timeout: ledger.finish(claim, entry), an_entry(key=claim.key))


def test_for_a_minute_all_other_orders_and_beats_go_on(
    engine: Engine, ledger: Ledger, clock: Clock, rows: Rows
) -> None:
    mine, in_flight = a_claim(ledger, "o1", "m"), a_claim(ledger, "in flight")
    with locked(engine):
        waiting = finishing(ledger, mine)
        for beat in range(A_MINUTE):
            clock.advance(BEAT)
            assert delivered(ledger, f"o{beat}")
            assert ledger.holds(in_flight)
        assert waiting.is_alive()
        assert rows.order().state == State.SENDING
    assert waiting.came_to() is True
    assert rows.order().state == State.ACCEPTED
    assert [row.merchant_id for row in rows.events()].count("m") == 1


def test_with_many_locked_outcomes_too(engine: Engine, ledger: Ledger, rows: Rows) -> None:
    claims = [a_claim(ledger, f"o{n}", "m") for n in range(30)]
    with locked(engine, "orders where merchant_id = 'm'"):
        waiting = [finishing(ledger, each) for each in claims]
        assert all(delivered(ledger, f"o{n}") for n in range(10))
        assert all(each.is_alive() for each in waiting)
    assert [each.came_to() for each in waiting] == [True] * 30
    assert {row.state for row in rows.orders()} == {State.ACCEPTED}
    assert len(rows.events()) == 40


def test_a_claim_and_a_step_of_the_locked_order_wait(
    engine: Engine, ledger: Ledger, rows: Rows
) -> None:
    sent = claimed(ledger.claim(KEY, send=False, order=b"{}"))
    other = claimed(ledger.claim(Key("m", "o2"), send=True, order=b"{}"))
    assert ledger.finish(other, an_entry(key=other.key, kind=Kind.PENDING, event=None))
    with locked(engine, "orders where merchant_id = 'm'"):
        sending = Caller(lambda claim, timeout: ledger.sending(claim, "a POS"), sent)
        again = Caller(lambda key, timeout: ledger.claim(key, send=True), other.key)
        assert all(delivered(ledger, f"o{n}") for n in range(10))
        assert sending.is_alive()
        assert again.is_alive()
    assert sending.came_to().sending
    assert claimed(again.came_to()).epoch == other.epoch + 1


def test_the_locked_lease_is_followed_by_another(
    engine: Engine, ledger: Ledger, clock: Clock
) -> None:
    before = ledger.lease.id
    in_flight = a_claim(ledger, "in flight")
    with locked(engine, f"workers where id = '{before}'"):
        for beat in range(A_MINUTE):
            clock.advance(BEAT)
            assert delivered(ledger, f"o{beat}")
            assert ledger.holds(in_flight) == (ledger.lease.id == before)
        assert ledger.lease.id != before


@pytest.mark.parametrize("table", ["orders", "events"])
def test_a_locked_table_is_an_outage_in_which_waits_end_and_the_lease_goes_on(
    engine: Engine,
    ledger: Ledger,
    clock: Clock,
    rows: Rows,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_flight, other = a_claim(ledger, "in flight"), a_claim(ledger, "other")
    monkeypatch.setattr("pos_gateway.ledger.ledger.CLAIM_TIMEOUT", 0)
    with locked_table(engine, table):
        waiting = finishing(ledger, other)
        for beat in range(round(LEASE / BEAT) + 1):
            clock.advance(BEAT)
            claiming = [Caller(a_claim_within, (ledger, f"o{beat}-{n}")) for n in range(3)]
            assert {type(each.came_to()) for each in claiming} == {LedgerUnavailable}
            assert ledger.holds(in_flight)
        assert waiting.is_alive()
    assert waiting.came_to() is True
    assert rows.order(other.key).state == State.ACCEPTED


def test_a_new_order_that_another_session_writes_stops_no_other(
    engine: Engine, ledger: Ledger, clock: Clock
) -> None:
    in_flight = a_claim(ledger, "in flight")
    with engine.connect() as connection:
        connection.execute(insert(orders).values(AN_ORDER))
        waiting = Caller(a_claim_within, (ledger, "o1"))
        for beat in range(round(LEASE / BEAT) + 1):
            clock.advance(BEAT)
            assert delivered(ledger, f"other {beat}")
            assert ledger.holds(in_flight)
        assert waiting.is_alive()
        connection.rollback()
    assert claimed(waiting.came_to()).epoch == 1


def test_other_abandoned_orders_are_released(engine: Engine, rows: Rows) -> None:
    worker = Worker(engine)
    claims = [claimed(worker.claim(Key("m", f"o{n}"), send=True, order=b"{}")) for n in (1, 2)]
    for each in claims:
        worker.abandon(each, sent=True)
    with locked(engine):
        worker.clock.advance(BEAT)
        worker.beat()
        assert [row.state for row in rows.orders()] == [State.SENDING, State.IN_DOUBT]
        assert list(worker.abandoned) == [claims[0].ticket]
    worker.clock.advance(BEAT)
    worker.beat()
    assert [row.state for row in rows.orders()] == [State.IN_DOUBT] * 2


def old_rows(connection: Connection, number: int) -> None:
    """A row of each table that is pruned."""
    order = {**AN_ORDER, "order_id": f"o{number}", "state": "accepted", "payload": "{}"}
    connection.execute(insert(orders).values(order))
    of_order = {"merchant_id": "m", "order_id": f"o{number}"}
    connection.execute(insert(submissions).values(digest="", submitted_at=DAY + number, **of_order))
    connection.execute(
        insert(callbacks).values(
            adapter="rest",
            merchant_id="m",
            event_id=f"{number}",
            received_at=DAY + number,
            result="known",
        )
    )
    connection.execute(
        insert(audit).values(at=DAY, operator="", what="orders.cancel", details="", **of_order)
    )


def counted(rows: Rows) -> list[int]:
    """How many orders still have their content, and how many rows the other tables."""
    others = [len(rows._all(table)) for table in (submissions, callbacks, audit)]
    return [sum(row.payload is not None for row in rows.orders()), *others]


@pytest.mark.parametrize(
    "of", ["orders where order_id = 'o0'", "submissions", "callbacks where event_id = '0'", "audit"]
)
def test_all_that_is_not_locked_is_pruned(engine: Engine, rows: Rows, of: str) -> None:
    with engine.begin() as connection:
        for number in range(5):
            old_rows(connection, number)
    with locked(engine, of):
        list(prune_orders(engine, DAY + 10, batch=2))
        table, _, row = of.partition(" ")
        left = {table: 1 if row else 5}
        tables = ("orders", "submissions", "callbacks", "audit")
        assert counted(rows) == [left.get(each, 0) for each in tables]
    list(prune_orders(engine, DAY + 10, batch=2))
    assert counted(rows) == [0] * 4


def test_the_other_tables_are_pruned_although_one_cannot_be(engine: Engine, rows: Rows) -> None:
    with engine.begin() as connection:
        old_rows(connection, 0)
        connection.execute(text("alter table submissions rename to elsewhere"))
    try:
        with pytest.raises(LedgerUnavailable, match="submissions"):
            list(prune_orders(engine, DAY + 10))
    finally:
        with engine.begin() as connection:
            connection.execute(text("alter table elsewhere rename to submissions"))
    assert counted(rows) == [0, 1, 0, 0]


def test_a_dead_workers_locked_lease_stops_no_other(engine: Engine) -> None:
    dead, worker = Worker(engine), Worker(engine)
    dead.beat()
    claim = claimed(dead.claim(KEY, send=True, order=b"{}"))
    with locked(engine, f"workers where id = '{dead.lease.id}'"):
        for _ in range(500 // 10):
            worker.clock.advance(10)
            worker.beat()
        taken = claimed(worker.claim(KEY, send=True, order=b"{}"))
    assert taken.epoch == claim.epoch + 1


def test_an_outcome_that_is_locked_after_a_lost_connection_is_replayed_later(
    engine: Engine, ledger: Ledger, rows: Rows
) -> None:
    mine = a_claim(ledger, "o1", "m")
    assert ledger.finish(mine, an_entry())
    lost = backend(ledger)
    with locked(engine):
        terminate(engine, lost)
        assert delivered(ledger, "o2")
        assert delivered(ledger, "o3")
    ledger.close()
    assert rows.order().state == State.ACCEPTED
    assert len(rows.events()) == 3
