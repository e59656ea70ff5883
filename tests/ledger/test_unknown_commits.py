"""Connections that end during a write: the ledger reads whether it was committed."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from pos_gateway.database.engine import open_database
from pos_gateway.database.psycopg_internals import wait_at_most
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger import commits
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.batch import Claiming, Finishing
from pos_gateway.ledger.lease import LEASE, MARGIN
from pos_gateway.ledger.statements import LedgerOnPostgreSQL
from pos_gateway.ledger.states import Action, AttemptHistory, Key, LeasedElsewhere, State
from testkit.patience import PATIENCE
from testkit.servers.proxy import Proxy
from tests.ledger.breaking import BreakingCommit, BreakingStatements, backend, terminate
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]
WHEN = ["before", "after"]
EVERYWHERE = [
    (statement, when)
    for statement in ("beat", "claim", "find", "leases", "take", "send", "finish", "record")
    for when in WHEN
]


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.0, 0.0))


def break_at(worker: Worker, statement: str, when: str) -> Any:
    if statement == "commit":
        return BreakingCommit(worker, left=int(when))
    return BreakingStatements(worker, statement, when)


@pytest.mark.parametrize(
    ("statement", "when"), [*EVERYWHERE, *[("commit", str(n)) for n in range(6)]]
)
def test_an_order_is_delivered_wherever_the_connection_breaks(
    worker: Workers, rows: Rows, engine: Engine, statement: str, when: str
) -> None:
    if (statement, engine.dialect.name) in {("commit", "postgresql"), ("record", "sqlite")}:
        statement, when = "finish", "after"  # the statement does not exist there, or is another one
    dead, one = worker(), worker()
    fresh, taken = Key("m", "fresh"), Key("m", "taken")
    claimed(dead.claim(taken, send=True))
    one.beat()
    one.clock.advance(LEASE)

    def a_life() -> list[Any]:
        first = one._commit(Claiming(fresh, one.ticket(), send=False, deliver_by=1.0, payload="{}"))
        second = one.claim(taken, send=True)
        for each in (first, second):
            assert claimed(each).sending is False
        history = second.history
        done = [one.sending(each) is not None for each in (first, second)]
        done += [one.finish(each, an_entry(key=each.key)) for each in (first, second)]
        one.record_event(Key("m", "none"), an_entry(Kind.FAILED, key=Key("m", "none")), b"{}")
        return [first.epoch, second.epoch, history.possible_deaths, history.in_doubt, *done]

    breaking = break_at(one, statement, when)
    assert a_life() == [1, 2, 1, True, True, True, True, True]
    assert breaking.broke
    assert {row.order_id: (row.state, row.epoch) for row in rows.orders()} == {
        "fresh": ("accepted", 1),
        "taken": ("accepted", 2),
    }
    assert sorted(row.order_id for row in rows.events()) == ["fresh", "none", "taken"]


@pytest.mark.parametrize("statement", ["claim", "find", "take", "finish", "send"])
def test_many_orders_are_written_once_wherever_the_connection_breaks(
    worker: Workers, rows: Rows, statement: str
) -> None:
    one, two = worker(), worker()
    keys = [Key("m", f"o{n}") for n in range(9)]
    for key in keys[:3]:
        one.finish(claimed(one.claim(key, send=False)), without_event())
    doubt = without_event(State.IN_DOUBT, doubt_since=5.0)
    for key in keys[3:6]:  # whose clock is another's: they are found, and taken
        two.finish(claimed(two.claim(key, send=True)), doubt)
    breaking = break_at(one, statement, "after")

    def claim(key: Key) -> Claiming:
        return Claiming(key, one.ticket(), send=False, deliver_by=None, payload=None)

    claims = write(one, [claim(key) for key in keys])
    assert [each.epoch for each in claims] == [2] * 6 + [1] * 3
    assert all(one.sending(each) for each in claims)
    assert write(one, [Finishing(c, an_entry(key=c.key)) for c in claims]) == [True] * 9
    assert breaking.broke
    assert len(rows.events()) == 9


def write(worker: Worker, operations: list[Any]) -> list[Any]:
    """As the group commit does: retry while the database is unavailable."""
    while True:
        try:
            return worker.together(*operations)
        except LedgerUnavailable:
            pass


@pytest.mark.parametrize("is_retry", [False, True])
@pytest.mark.parametrize(("action", "statement"), [("submit", "claim"), ("cancel", "take")])
def test_a_claim_with_a_lost_reply_and_an_expired_lease_is_not_in_doubt(
    worker: Workers, *, action: str, statement: str, is_retry: bool
) -> None:
    one, key = worker(), replace(KEY, action=Action(action))
    if is_retry:
        one.finish(claimed(one.claim(key, send=False)), without_event())
    one.beat()
    breaking = lost_answer(one, statement if is_retry else "claim")
    breaking.then = lambda: one.clock.advance(LEASE)  # the database is unavailable for that long
    claim = claimed(one.claim(key, send=False))
    assert breaking.broke
    assert (claim.history.deaths, claim.history.in_doubt) == (0, False)
    assert one.holds(claim)
    assert one.finish(claim, an_entry(key=key))


def lost_answer(worker: Worker, statement: str) -> Any:
    """The worker's next write is committed, and its reply is lost."""
    is_sqlite = worker._engine.dialect.name == "sqlite"
    return BreakingCommit(worker) if is_sqlite else break_at(worker, statement, "after")


def test_the_reply_to_a_workers_first_renewal_may_be_lost(worker: Workers, rows: Rows) -> None:
    one = worker()
    breaking = lost_answer(one, "claim")
    claim = claimed(one.claim(KEY, send=True))
    assert breaking.broke
    assert (claim.history, claim.sending) == (AttemptHistory(), True)
    assert rows.leases() == {claim.owner}


def test_a_first_renewal_whose_reply_was_lost_counts_from_when_it_was_written(
    worker: Workers, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    one, two = worker(), worker()
    lost_answer(one, "claim")
    with pytest.raises(LedgerUnavailable):
        one.claim(KEY, send=True)
    (first,) = rows.leases()
    two.beat()
    for each in (one, two):  # the database is unavailable to one alone
        each.clock.advance(LEASE)
    two.beat()
    claim = claimed(one.claim(KEY, send=True))
    # Two knows that the first lease has expired, and has not seen the renewal yet.
    taken_over = two.claim(KEY, send=True)
    assert one.holds(claim)
    assert taken_over == LeasedElsewhere(claim.owner)
    assert claim.owner != first


@pytest.mark.parametrize("seconds", [LEASE - MARGIN - 0.5, LEASE - MARGIN])
def test_a_second_renewal_confirms_a_lease_that_has_not_expired(
    worker: Workers, rows: Rows, seconds: float
) -> None:
    one = worker()
    breaking = lost_answer(one, "beat")
    with pytest.raises(LedgerUnavailable):
        one.beat()
    assert breaking.broke
    (first,) = rows.leases()
    assert not one.lease.holds(first)
    one.clock.advance(seconds)
    one.beat()
    assert one.lease.holds(first) == (seconds < LEASE - MARGIN)


def test_a_worker_releases_the_leases_of_a_long_outage(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    two.beat()
    for _ in range(3):
        lost_answer(one, "beat")
        with pytest.raises(LedgerUnavailable):
            one.beat()
        one.clock.advance(LEASE)
    assert len(rows.leases()) == 4
    one.close()
    assert rows.leases() == {two.lease.id}


def test_a_claim_whose_reply_was_lost_for_good_is_resumed_by_the_same_worker(
    worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    one = worker()
    one.beat()
    lost_answer(one, "claim")
    with pytest.raises(LedgerUnavailable):
        one.claim(KEY, send=True)
    claim = claimed(one.claim(KEY, send=True))
    assert (claim.history, claim.epoch) == (AttemptHistory(), 2)


def test_an_order_whose_claim_was_never_written_is_fresh(
    worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    one = worker()
    one.beat()
    break_at(one, "claim", "before")
    with pytest.raises(LedgerUnavailable):
        one.claim(KEY, send=True)
    assert claimed(one.claim(KEY, send=True)).epoch == 1


@pytest.mark.parametrize("when", WHEN)
def test_an_abandoned_order_is_resumed_once_if_the_connection_breaks(
    worker: Workers, when: str
) -> None:
    one = worker()
    one.abandon(claimed(one.claim(KEY, send=True)), sent=True)
    breaking = break_at(one, "take", when)
    claim = claimed(one.claim(KEY, send=True))
    assert breaking.broke
    assert (claim.history.in_doubt, claim.history.deaths, claim.epoch) == (True, 0, 2)
    assert isinstance(one.claim(KEY, send=True), LeasedElsewhere)


def test_an_abandoned_order_whose_sending_reply_was_lost_for_good_is_not_in_doubt(
    worker: Workers, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    one = worker()
    claim = claimed(one.claim(KEY, send=False))
    lost_answer(one, "send")
    with pytest.raises(LedgerUnavailable), one.using(claim):
        one.sending(claim)
    assert rows.order().state == State.SENDING
    assert not claimed(one.claim(KEY, send=True)).history.in_doubt


def test_an_outcome_with_a_lost_reply_does_not_overwrite_later_ones(
    worker: Workers, rows: Rows
) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    breaking = lost_answer(one, "finish")

    def another() -> None:
        later = claimed(two.claim(KEY, send=True))
        two.finish(later, an_entry())

    breaking.then = another
    assert one.finish(claim, without_event()) is False
    assert rows.order().state == State.ACCEPTED
    assert len(rows.events()) == 1


@pytest.mark.parametrize("seconds", [0.0, LEASE])
def test_a_claim_that_overtakes_its_own_retry_is_the_attempts(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """PostgreSQL goes on with the statement of a lost connection. No attempt would serve the claim, and
    this worker would have the order leased for as long as it lives."""
    engine, other = open_database(postgresql_url), open_database(postgresql_url)
    one, say = Worker(engine), LedgerOnPostgreSQL()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    tries: list[Any] = []

    def take(cursor: Any, taken: Any) -> set[int]:
        tries.append(list(taken))
        if len(tries) == 1:
            terminate(engine, backend(one))
            one.clock.advance(seconds)
        elif len(tries) == 2:
            with other.connect() as connection:
                late: Any = connection.connection.driver_connection
                assert say.take(late.cursor(), tries[0])
                connection.connection.commit()
        return say.take(cursor, taken)

    monkeypatch.setattr(one._writer.sql, "take", take)
    claim = claimed(one.claim(KEY, send=True))
    assert (claim.history.in_doubt, one.holds(claim)) == (False, True)
    assert one.sending(claim)
    assert one.finish(claim, an_entry())
    for each in (engine, other):
        each.dispose()


# On a wire


@pytest.fixture
def wired(postgresql_url: str) -> Any:
    """A worker behind a proxy, the proxy, and a direct connection to the database."""
    with Proxy(postgresql_url) as proxy:
        engine, direct = open_database(proxy.url), open_database(postgresql_url)
        yield Worker(engine), proxy, direct
        proxy.heal()
        for each in (engine, direct):
            each.dispose()


def cut_when_it_is_written(worker: Worker, proxy: Proxy, direct: Engine) -> Any:
    """Hold back the server's replies; cut the connection once a batch is written."""
    pid = backend(worker)
    query = text("select state, query from pg_stat_activity where pid = :pid")

    def watch() -> None:
        with direct.connect() as connection:
            while True:
                state, said = connection.execute(query, {"pid": pid}).one()
                connection.rollback()  # or it is always the same snapshot
                if state == "idle" and "with r as" in said:
                    proxy.cut()
                    proxy.heal()
                    return

    proxy.timeout(stream="downstream")
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    return watching


def test_an_order_is_delivered_while_every_reply_of_the_server_is_lost(
    wired: Any,
) -> None:
    worker, proxy, direct = wired
    rows = Rows(direct)
    worker.beat()

    def lost(do: Callable[[], Any]) -> Any:
        worker.beat()  # on a working connection
        watching = cut_when_it_is_written(worker, proxy, direct)
        result = do()
        watching.join(PATIENCE)
        return result

    claim = claimed(lost(lambda: worker.claim(KEY, send=False)))
    assert (claim.epoch, claim.history) == (1, AttemptHistory())
    assert lost(lambda: worker.sending(claim)) == claim._replace(sending=True)
    assert lost(lambda: worker.finish(claim, an_entry())) is True
    row = rows.order()
    assert (row.state, row.epoch, len(rows.events())) == ("accepted", 1, 1)


def test_a_server_that_vanished_counts_as_unavailable(wired: Any) -> None:
    worker, proxy, direct = wired
    worker.beat()
    wait_at_most(worker._writer._connection, 0.2)
    proxy.half_open()
    with pytest.raises(LedgerUnavailable):
        worker.record_event(KEY, an_entry(), b"{}", timeout=0)
    worker.record_event(KEY, an_entry(), b"{}")  # on a new connection
    assert len(Rows(direct).events()) == 1


def test_claims_that_were_never_written_are_not_remembered(
    wired: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a night without a database they would be a hundred thousand and more."""
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    worker, proxy, _ = wired
    worker.beat()
    proxy.down()
    for _ in range(5):  # the first meets a dead connection
        with pytest.raises(LedgerUnavailable):
            worker.claim(KEY, send=True)
    assert (len(worker.abandoned), worker._unknown) == (1, set())
    proxy.heal()
    assert claimed(worker.claim(KEY, send=True)).epoch == 1


def test_idle_connections_have_tcp_keepalives(postgres_url: str) -> None:
    engine = open_database(postgres_url)
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        end = socket.socket(fileno=os.dup(driver.fileno()))
        keeps_alive = end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        unheard = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        end.close()
    assert (bool(keeps_alive), idle, unheard) == (True, 5, 15_000)
    engine.dispose()
