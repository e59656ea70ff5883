"""A retry's claim on PostgreSQL: one statement, unless the order's history has to change with it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update

from pos_gateway.database.schema import orders
from pos_gateway.ledger import ledger, statements
from pos_gateway.ledger.batch import Claiming, Sending
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.states import (
    SUSPECT,
    Action,
    Claim,
    Ended,
    Key,
    LeasedElsewhere,
    State,
    Suspected,
)
from tests.ledger.lab import DAY, KEY, SOON, Rows, Worker, an_entry, claimed, without_event

IN_DOUBT = without_event(State.IN_DOUBT, doubt_since=5.0)
PENDING = without_event(State.PENDING, pending=True)


@pytest.fixture
def ledger_url(postgresql_url: str) -> str:
    """Only PostgreSQL has this statement."""
    return postgresql_url


@pytest.fixture
def one(worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that waits for a locked row for as long as the test needs to see the wait."""
    monkeypatch.setattr(ledger, "_SESSION", "set lock_timeout = 0")
    made = worker()
    made.beat()
    return made


two = one


class Statements:
    """The statements of a worker, which keeps those on orders that were called."""

    def __init__(self, worker: Worker) -> None:
        self._say: Any = worker._writer.sql
        self.called: list[str] = []
        worker._writer.sql = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in ("write", "find", "take"):
            self.called.append(name)
        return getattr(self._say, name)


def claim(worker: Worker, key: Key = KEY) -> tuple[Any, list[str]]:
    """The result of a claim, and the statements that it took."""
    statements = Statements(worker)
    try:
        return worker.claim(key, send=True, deliver_by=DAY + 60, order=b"{}"), statements.called
    finally:
        worker._writer.sql = statements._say


@pytest.mark.parametrize("state", [without_event(), PENDING, IN_DOUBT])
def test_a_retry_is_claimed_by_the_statement_that_writes(
    one: Worker, rows: Rows, state: Any
) -> None:
    """As its row was: attempts, doubt, deadline and content."""
    first = claimed(one.claim(KEY, send=True, deliver_by=DAY + 30, order=b"[]", endpoint="here"))
    assert one.finish(first, state)
    one.clock.advance(1)
    again, called = claim(one)
    assert called == ["write"]
    assert (again.epoch, again.sending, again.history.attempts) == (2, False, 1)
    assert (again.history.pending, again.history.in_doubt) == (
        state.pending,
        state.doubt_since is not None,
    )
    assert again.history.settled == (1.0 if state is IN_DOUBT else 0.0)
    assert (again.history.deliver_by, again.history.endpoint) == (DAY + 30, "here")
    row = rows.order()
    assert (row.state, row.owner, row.epoch) == (State.CLAIMED, again.owner, 2)
    assert (row.deliver_by, row.payload, row.updated_at) == (DAY + 30, "[]", DAY + 1)
    assert one.sending(again)
    assert one.finish(again, an_entry())


def test_an_order_without_a_deadline_or_content_has_those_of_its_message(
    one: Worker, rows: Rows
) -> None:
    assert one.finish(claimed(one.claim(KEY, send=False)), without_event())
    again, called = claim(one)
    assert called == ["write"]
    assert again.history.deliver_by is None
    assert (rows.order().deliver_by, rows.order().payload) == (DAY + 60, "{}")


def test_an_open_cancel_request_is_seen(one: Worker) -> None:
    assert one.finish(claimed(one.claim(KEY, send=False)), without_event())
    request = claimed(
        one.claim(replace(KEY, action=Action.CANCEL), send=False, deliver_by=DAY + 60)
    )
    assert one.finish(request, without_event())
    again, called = claim(one)
    assert called == ["write"]
    assert again.history.cancelling


def test_a_doubt_that_another_workers_clock_counts_is_found_and_taken(
    one: Worker, two: Worker, rows: Rows
) -> None:
    assert two.finish(claimed(two.claim(KEY, send=True)), IN_DOUBT)
    again, called = claim(one)
    assert called == ["write", "find", "take"]
    assert again.history.settling.lease_id == two.lease.id
    assert rows.order().settling == str(again.history.settling)


def test_a_doubt_since_another_time_than_it_is_counted_from_is_counted_anew(
    one: Worker, engine: Engine
) -> None:
    """A release before this one changes the time alone."""
    assert one.finish(claimed(one.claim(KEY, send=True)), IN_DOUBT)
    with engine.begin() as connection:
        connection.execute(update(orders).values(doubt_since=6.0))
    one.clock.advance(1)
    again, called = claim(one)
    assert called == ["write", "find", "take"]
    assert (again.history.settled, again.history.settling.doubt_since) == (0.0, 6.0)


def test_a_doubt_that_nothing_counts_is_found_and_taken(one: Worker, engine: Engine) -> None:
    assert one.finish(claimed(one.claim(KEY, send=True)), IN_DOUBT)
    for settling in (None, ""):
        with engine.begin() as connection:
            connection.execute(update(orders).values(settling=None, state="in_doubt", owner=None))
            if settling is not None:
                connection.execute(update(orders).values(settling=settling, doubt_since=None))
        again, called = claim(one)
        assert called == (["write"] if settling == "" else ["write", "find", "take"])
        assert again.history.in_doubt is (settling is None)


def test_an_order_taken_from_a_silent_worker_is_found_and_taken(one: Worker, two: Worker) -> None:
    """Whether that worker has died is decided with each claim."""
    claimed(two.claim(KEY, send=False))
    one.clock.advance(LEASE)
    one.beat()
    one.clock.advance(LEASE)
    taken = claimed(one.claim(KEY, send=False))
    assert taken.history.taken_from
    assert one.finish(taken, without_event())
    again, called = claim(one)
    assert called[:2] == ["write", "find"]
    assert again.history.possible_deaths == 1


def test_a_cancel_requests_retry_is_found_and_taken(one: Worker, rows: Rows) -> None:
    """Of two requests' deadlines the later counts."""
    request = replace(KEY, action=Action.CANCEL)
    assert one.finish(claimed(one.claim(KEY, send=False)), without_event())
    first = one.claim(request, send=False, deliver_by=DAY + 10)
    assert one.finish(claimed(first), without_event())
    before = rows.order()
    again, called = claim(one, request)
    assert called == ["write", "find", "take"]
    assert (again.key, again.history.deliver_by) == (request, DAY + 60)
    assert rows.order() == before


def test_what_is_not_open_is_left_as_it_is(one: Worker, two: Worker, rows: Rows) -> None:
    held = claimed(two.claim(KEY, send=True))
    before = rows.order()
    for worker in (one, two):
        assert isinstance(claim(worker)[0], LeasedElsewhere)
    assert rows.order() == before
    assert two.finish(held, an_entry())
    assert isinstance(claim(one)[0], Ended)


def test_a_claim_that_a_failover_has_lost_takes_no_order(one: Worker, rows: Rows) -> None:
    """It is written again for an outcome whose row is missing: one that there is is another's."""
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    before = rows.order()
    lost = {
        "op": "claim",
        "merchant_id": "m",
        "order_id": "o1",
        "action": "submit",
        "state": "sending",
        "owner": one.lease.id,
        "ticket": 99,
        "next_epoch": 4,
        "now": DAY,
    }
    written = one._writer.write(lambda cursor: one._writer.sql.write(cursor, [lost]))
    assert (written.tickets, written.reclaimed) == (set(), {})
    assert rows.order() == before


def test_an_order_that_changes_while_its_claim_waits_is_claimed_as_it_is_then(
    one: Worker, engine: Engine
) -> None:
    """An operator reopens it: what the claim had read of it is out of date."""
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(claim(one)), daemon=True)
    waiting = text("select count(*) from pg_locks where not granted")
    with engine.begin() as connection:
        connection.execute(update(orders).values(epoch=7, reopened=3))
        thread.start()
        while not connection.execute(waiting).scalar_one():
            assert thread.is_alive()
    thread.join(SOON)
    [(again, called)] = results
    assert isinstance(again, Claim)
    assert called == ["write", "find", "take"]
    assert (again.epoch, again.history.reopened) == (8, 3)
    assert one.sending(again)


def test_no_batch_waits_for_an_order_that_it_claims_again_while_it_holds_another(
    one: Worker, engine: Engine
) -> None:
    """Another worker's may hold the one, and wait for the other."""
    other = Key("m", "o2")
    for key in (KEY, other):
        assert one.finish(claimed(one.claim(key, send=True)), without_event())
    sending, claiming = Sending(claimed(one.claim(other, send=True))), a_claiming(one, KEY)
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.extend(one.together(sending, claiming)), daemon=True
    )
    waiting = text("select count(*) from pg_locks where not granted")
    with engine.begin() as connection:
        connection.execute(select(orders).where(orders.c.order_id == "o1").with_for_update())
        thread.start()
        while not connection.execute(waiting).scalar_one():
            assert thread.is_alive()
        free = select(orders.c.order_id).with_for_update(skip_locked=True)
        assert set(connection.scalars(free)) == {"o1", "o2"}
    thread.join(SOON)
    [is_sending, again] = results
    assert is_sending
    assert claimed(again).epoch == 2


def test_a_statement_that_runs_late_claims_nothing(one: Worker, two: Worker, rows: Rows) -> None:
    """That of a lost connection, after its repetition's attempt: no worker knows of the claim."""
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    one.clock.advance(1)
    late = [one._batch(None, one.clock.of_day)._row(a_claiming(one, KEY))]
    one.clock.advance(1)
    again, called = claim(one)
    assert called == ["write"]
    assert one.finish(again, without_event(at=one.clock.of_day))
    before = rows.order()
    written = two._writer.write(lambda cursor: two._writer.sql.write(cursor, late))
    assert written == (set(), {})
    assert rows.order() == before
    one.clock.advance(1)
    assert claim(one)[0].epoch == 3


def a_claiming(worker: Worker, key: Key) -> Claiming:
    return Claiming(key, worker.ticket(), send=True, deliver_by=DAY + 60, payload="{}")


def random_rows(of: Random, leases: list[str]) -> list[dict[str, Any]]:
    """Rows of orders and cancel requests in any state, also such as no release writes."""
    found = []
    for n, action in product(range(400), Action):
        if action is Action.CANCEL and of.random() < 0.7:
            continue
        doubt = of.choice([None, None, 5.0, DAY + 0.1234567])
        since = of.choice([doubt, doubt, 6.0])
        settling = of.choice([None, *(f"{each} {900.3!r} {since!r}" for each in leases)])
        values = {
            "order_id": f"o{n}",
            "action": action,
            "state": of.choice([*State, State.NEW, State.PENDING, State.IN_DOUBT]),
            "owner": of.choice([None, *leases]),
            "ticket": 0,
            "epoch": of.choice([1, 7, 2**40]),
            "attempts": of.randrange(4),
            "deaths": of.randrange(3),
            "taken_from": of.choice([None, None, leases[1], " ".join(leases[1:])]),
            "doubt_since": doubt,
            "settling": settling if doubt else None,
            "endpoint": of.choice([None, "here"]),
            "pending": of.random() < 0.5,
            "last_event": of.choice([None, "pending", "in_doubt"]),
            "reopened": of.randrange(3),
            "generation": of.choice([None, 1]) if action is Action.CANCEL else None,
            "external_id": of.choice([None, 'é\u2028😀"\\']),
            "reason_code": of.choice([None, "code"]),
            "deliver_by": of.choice([None, DAY - 1, DAY + 30, DAY + 90.1234567]),
            "updated_at": of.choice([DAY - 5, DAY, DAY + 5]),
            "payload": of.choice([None, 'é\u2028😀"\\' * 99]),
        }
        found.append({"merchant_id": "m", "created_at": DAY - 9.5, **values})
    return found


@pytest.mark.parametrize("deaths", range(SUSPECT + 2))
def test_a_suspect_that_no_attempt_has_is_one_too(one: Worker, engine: Engine, deaths: int) -> None:
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    with engine.begin() as connection:
        connection.execute(update(orders).values(deaths=deaths))
    found = one.claim(KEY, send=True, unless_suspect=True)
    if deaths < SUSPECT:
        assert claimed(found).history.deaths == deaths
    else:
        assert found == Suspected(deaths)
        assert claimed(one.claim(KEY, send=True)).history.deaths == deaths


def test_what_the_one_statement_claims_is_what_find_and_take_do(
    one: Worker, two: Worker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Worker(engine)
    gone.beat()
    leases = [one.lease.id, two.lease.id, gone.lease.id, "host-1-released-1"]
    for _ in range(2):
        one.clock.advance(LEASE)
        two.clock.advance(LEASE)
        two.beat()
        one.beat()
    leases.append(one.lease.id)
    values = random_rows(Random(8), leases)
    keys = [Key("m", each["order_id"], each["action"]) for each in values]
    now = one.clock.of_day

    def claim_all() -> tuple[int, list[Any], list[Any]]:
        with engine.begin() as connection:
            connection.execute(orders.delete())
            connection.execute(orders.insert(), values)
        reclaimed, write = 0, one._writer.sql.write

        def counting(*arguments: Any) -> Any:
            nonlocal reclaimed
            written = write(*arguments)
            reclaimed += len(written.reclaimed)
            return written

        with monkeypatch.context() as context:
            context.setattr(one._writer.sql, "write", counting)
            results = one.together(*(a_claiming(one, each) for each in keys))
        results = [each._replace(ticket=0) if isinstance(each, Claim) else each for each in results]
        with engine.connect() as connection:
            rows = connection.execute(select(orders).order_by(*orders.primary_key.columns))
            return reclaimed, results, [row._asdict() | {"ticket": 0} for row in rows]

    reclaimed, results, rows = claim_all()
    assert reclaimed > 20
    assert now == one.clock.of_day
    one._writer.close()
    monkeypatch.setattr(statements, "_KNOWN", statements._KNOWN + " and false")
    one._writer.sql = statements.LedgerOnPostgreSQL()
    assert claim_all() == (0, results, rows)
