"""Callbacks that come before their order's id does: each is applied once that is known.

Clover, Square and Toast name an order by their own id, which the ledger has only once the worker that
sent the order has committed the reply.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit, callbacks
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.outcome import Kind, Lifecycle, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import MAX_WAITING, WAIT, CallbackResult, Received
from pos_gateway.ledger.callbacks import CLAIMED_FOR, CallbackLedger
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import DAY, KEY, Clock, Rows, Worker, an_entry, claimed, without_event

HERE = "the POS"
OWNERS = {"m": (HERE,)}
APPLIED, WAITING, UNKNOWN = CallbackResult.APPLIED, CallbackResult.WAITING, CallbackResult.UNKNOWN
DUPLICATE, EARLIER = CallbackResult.DUPLICATE, CallbackResult.EARLIER


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.of_day = DAY + 60
    return clock


@pytest.fixture
def ledger(engine: Engine, clock: Clock) -> Iterator[CallbackLedger]:
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    yield ledger
    ledger.close()


def of(
    external_id: str, meaning: Kind | Lifecycle = Lifecycle.READY, number: int = 0, **others: Any
) -> Received:
    """A callback that names the POS's id alone."""
    owners = others.pop("owners", OWNERS)
    said = Callback(f"{external_id}-{meaning}-{number}", meaning, external_id=external_id, **others)
    return Received("square", "m", said, owners)


def apply(ledger: CallbackLedger, *received: Received) -> list[CallbackResult]:
    return [each.result for each in ledger.apply(received)]


def again(ledger: CallbackLedger, *new: Received) -> list[CallbackResult]:
    """Apply what is due, as a server does, after new ones."""
    due = ledger.due(1000)
    received = [
        Received(each.adapter, each.merchant_id, each.callback, OWNERS, each.since) for each in due
    ]
    return apply(ledger, *new, *received)


def waiting(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(callbacks).where(callbacks.c.again_at.is_not(None))))


def sent(worker: Callable[..., Worker], key: Key = KEY) -> tuple[Worker, Any]:
    one: Worker = worker()
    return one, claimed(one.claim(key, send=True, endpoint=HERE, order=b"{}"))


def told(rows: Rows) -> list[str]:
    return [row.type for row in rows.events()]


def test_one_that_comes_before_the_id_is_applied_once_that_is_known(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, engine: Engine, clock: Clock
) -> None:
    one, claim = sent(worker)
    reason = Reason("sold_out", "no soup")
    assert apply(ledger, of("7", Kind.ACCEPTED)) == [WAITING]
    clock.of_day += 3
    assert again(ledger) == [WAITING]
    cancelled = of("7", Kind.CANCELLED, reason=reason, occurred_at=DAY + 2)
    assert apply(ledger, cancelled, of("7", occurred_at=DAY + 1)) == [WAITING] * 2
    assert apply(ledger, of("7")) == [DUPLICATE], "the POS calls again"
    assert (told(rows), again(ledger)) == ([], [])
    assert one.finish(claim, an_entry(Kind.PENDING, pending=True, external_id="7"))
    clock.of_day += 1
    assert again(ledger) == [APPLIED] * 3, "in their order, also those that are not due yet"
    assert told(rows) == ["pending", "accepted", "ready", "cancelled_by_pos"]
    assert rows.events()[-1].reason_message == "no soup"
    assert waiting(engine) == []
    clock.of_day += WAIT
    assert (again(ledger), apply(ledger, of("7"))) == ([], [DUPLICATE])


def test_an_order_in_any_state_that_may_get_an_id_is_waited_for(
    ledger: CallbackLedger, worker: Callable[..., Worker]
) -> None:
    entries = (
        None,
        an_entry(Kind.IN_DOUBT, doubt_since=DAY),
        an_entry(Kind.PENDING, pending=True),
        without_event(),  # "not processed", says the POS, and may have done so
    )
    for number, entry in enumerate(entries):
        owner = f"m{number}"
        one, claim = sent(worker, Key(owner, "o1"))
        if entry is not None:
            assert one.finish(claim, entry)
        said = of("7", number=number, owners={owner: (HERE,), "another": (HERE,)})
        assert apply(ledger, said) == [WAITING]


def test_one_that_waits_is_applied_though_the_databases_clock_was_set_back(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, clock: Clock
) -> None:
    """By a day, say, where a primary's clock was wrong and its standby's is right: it would wait for that day."""
    one, claim = sent(worker)
    assert apply(ledger, of("7")) == [WAITING]
    clock.of_day -= 86_400
    assert again(ledger) == [WAITING]
    assert again(ledger) == [], "not before the next try"
    assert one.finish(claim, an_entry(Kind.PENDING, pending=True, external_id="7"))
    clock.of_day += 1
    assert again(ledger) == [APPLIED]
    assert told(rows) == ["pending", "accepted", "ready"]


def test_a_shops_other_orders_are_not_waited_for(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine
) -> None:
    """Most of what a busy shop's POS says is about those."""
    one, claim = sent(worker, Key("m2", "o1"))
    unsent = claimed(one.claim(KEY, send=False))
    assert apply(ledger, of("7")) == [UNKNOWN], "nothing was sent"
    assert one.finish(unsent, without_event())
    assert apply(ledger, of("7")) == [UNKNOWN]
    pending = an_entry(Kind.PENDING, pending=True, external_id="8", key=claim.key)
    assert one.finish(claim, pending)
    assert apply(ledger, of("7", owners={"m2": (HERE,)})) == [UNKNOWN], "its order has its id"
    assert apply(ledger, of("7", owners={})) == [UNKNOWN]
    with engine.connect() as connection:
        assert connection.execute(select(callbacks)).all() == []


def test_it_waits_no_longer_than_an_order_lacks_its_id(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine, clock: Clock, rows: Rows
) -> None:
    one, claim = sent(worker)
    assert apply(ledger, of("7")) == [WAITING]
    assert one.finish(claim, an_entry(external_id="8"))
    clock.of_day += 1
    assert again(ledger) == [UNKNOWN]
    assert waiting(engine) == []
    assert told(rows) == ["accepted"]


def test_it_is_tried_after_as_long_as_it_has_waited_or_five_minutes_and_for_an_hour(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine, clock: Clock
) -> None:
    sent(worker)
    assert apply(ledger, of("7")) == [WAITING]
    came, tries = clock.of_day, []
    # Around each of them, and often in between: one at another time would be seen late.
    due = [*(2**n for n in range(10)), *range(812, 4000, 300)]
    around = {at + each for at in due for each in (-1, 0, 1)} - {0}
    for after in sorted({*around, *range(1, 5000, 400)}):
        clock.of_day = came + after
        tries += [clock.of_day - came for _ in again(ledger)]
    assert waiting(engine) == []
    assert tries == due
    assert (WAIT, due[-2:]) == (3600, [3512, 3812])


def test_a_hundred_of_a_shop_wait(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine, clock: Clock
) -> None:
    sent(worker)
    half = MAX_WAITING // 2
    first = [of("7", number=number, account=("shop", "1")) for number in range(half)]
    others = [of("7", number=number, account=("shop", "1")) for number in range(half, 2 * half + 9)]
    assert apply(ledger, *first) == [WAITING] * half
    assert apply(ledger, *others) == [WAITING] * half + [UNKNOWN] * 9
    assert len(waiting(engine)) == MAX_WAITING
    assert apply(ledger, of("7", number=999, account=("shop", "2"))) == [WAITING]
    clock.of_day += 1
    late = of("7", number=1000, account=("shop", "1"))
    assert again(ledger, late) == [UNKNOWN] + [WAITING] * (MAX_WAITING + 1), (
        "they keep their places"
    )


def test_of_two_servers_one_tries_it(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine, clock: Clock, rows: Rows
) -> None:
    other = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    one, claim = sent(worker)
    assert apply(ledger, of("7")) == [WAITING]
    assert one.finish(claim, an_entry(external_id="7"))
    clock.of_day += 1
    [mine] = ledger.due(10)
    assert other.due(10) == []
    clock.of_day += CLAIMED_FOR  # the first has died, or so it seems
    [its] = other.due(10)
    assert its == mine
    received = Received(mine.adapter, mine.merchant_id, mine.callback, OWNERS, mine.since)
    assert apply(other, received) == [APPLIED]
    assert apply(ledger, received) == [DUPLICATE]
    assert told(rows) == ["accepted", "ready"]
    other.close()


def test_one_that_waits_is_sealed(
    engine: Engine, worker: Callable[..., Worker], clock: Clock
) -> None:
    sent(worker)
    vault = Vault(new_key())
    ledger = CallbackLedger(engine, Payloads(vault), dehydrated, clock)
    assert apply(ledger, of("7", reason=Reason("x", "Ada is not here"))) == [WAITING]
    [row] = waiting(engine)
    assert "Ada is" not in str(row)
    clock.of_day += 1
    [due] = ledger.due(10)
    assert due.callback.reason == Reason("x", "Ada is not here")
    ledger.close()
    clock.of_day += CLAIMED_FOR
    another = CallbackLedger(engine, Payloads(Vault(new_key())), dehydrated, clock)
    assert another.due(10) == []
    assert waiting(engine), "another server may have its key"
    clock.of_day += WAIT
    assert (another.due(10), waiting(engine)) == ([], [])
    another.close()


def test_servers_clocks_do_not_count(
    worker: Callable[..., Worker], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is two hours ahead would find that each has waited for too long."""
    sent(worker)
    right, ahead = (CallbackLedger(engine, Payloads(Vault()), dehydrated) for _ in range(2))
    began = time.time()
    assert apply(right, of("7")) == [WAITING]
    now = SYSTEM_CLOCK.now() + timedelta(hours=2)
    monkeypatch.setattr(type(SYSTEM_CLOCK), "now", lambda _: now)
    again(ahead)
    assert apply(ahead, of("8")) == [WAITING]
    for each in waiting(engine):
        assert began - 5 < each.received_at < began + 60
        assert each.received_at < each.again_at < began + 60
    right.close()
    ahead.close()


def test_a_server_that_looks_for_what_is_due_and_one_that_writes_do_not_wait_for_each_other(
    postgresql_url: str, clock: Clock
) -> None:
    """A look at what is due takes its siblings along, which another server may be writing.

    In SQLite a transaction has the whole database to itself.
    """
    engine = open_database(postgresql_url)
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    sent(lambda: Worker(engine))
    assert apply(ledger, of("7", number=1)) == [WAITING]
    clock.of_day += 1
    assert apply(ledger, of("7", number=0)) == [WAITING], "not due yet, and written first"
    with engine.connect() as other, ThreadPoolExecutor(1) as thread:
        pid = other.scalar(text("select pg_backend_pid()"))

        def write(event_id: str) -> None:
            this = callbacks.c.event_id == event_id
            other.execute(update(callbacks).where(this).values(result="waiting"))

        write(of("7", number=0).callback.event_id)
        looking = thread.submit(ledger.due, 10)
        while not looking.done() and not is_waited_for(engine, pid):
            time.sleep(0.01)
        write(of("7", number=1).callback.event_id)
        other.commit()
        assert [each.callback.event_id for each in looking.result()] == ["7-ready-1"]
    clock.of_day += 1
    assert [each.callback.event_id for each in ledger.due(10)] == ["7-ready-1", "7-ready-0"]
    ledger.close()
    engine.dispose()


def is_waited_for(engine: Engine, pid: int) -> bool:
    """Whether a transaction waits for this server process's, and for nothing else."""
    waits = text("select count(*) from pg_stat_activity where :pid = any(pg_blocking_pids(pid))")
    with engine.connect() as connection:
        return bool(connection.scalar(waits, {"pid": pid}))


# Orders that an operator has reopened


def reopened(engine: Engine, worker: Callable[..., Worker], kind: Kind = Kind.REJECTED) -> Worker:
    """An order that had this end, and that an operator has reopened."""
    one, claim = sent(worker)
    assert one.finish(claim, an_entry(kind, external_id="7"))
    admin = OrderAdmin(engine, Payloads(Vault()))
    seen = admin.one(KEY)
    assert seen is not None
    admin.change(seen, without_event(), operator="ada", what="test", details="", reopen=True)
    return one


def named(external_id: str | None, meaning: Kind | Lifecycle, number: int = 0) -> Received:
    """A callback that names our id, and perhaps the POS's."""
    return replace(
        of(str(external_id), meaning, number),
        adapter="rest",
        callback=Callback(f"{external_id}-{meaning}-{number}", meaning, "o1", external_id),
    )


@pytest.mark.parametrize("meaning", [Kind.ACCEPTED, Kind.REJECTED, Lifecycle.READY])
def test_one_of_an_earlier_generation_changes_nothing(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    engine: Engine,
    clock: Clock,
    meaning: Kind | Lifecycle,
) -> None:
    """Which generation is meant only the POS's id can say."""
    one = reopened(engine, worker)
    assert apply(ledger, named(None, meaning)) == [EARLIER]
    assert apply(ledger, named("7", meaning)) == [WAITING], "it may get the same id"
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE))
    assert apply(ledger, named(None, meaning, 1)) == [EARLIER]
    assert one.finish(claim, an_entry(external_id="8")), "its claim held"
    clock.of_day += 1
    is_there = meaning is not Kind.REJECTED
    assert again(ledger) == [CallbackResult.CONTRADICTION if is_there else EARLIER]
    assert apply(ledger, named(None, meaning, 2)) == [EARLIER]
    assert (rows.order().state, rows.order().lifecycle) == ("accepted", None)
    assert told(rows) == ["rejected", "accepted"]


def test_one_of_the_present_generation_counts(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, engine: Engine, clock: Clock
) -> None:
    one = reopened(engine, worker)
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE))
    assert apply(ledger, named("8", Lifecycle.PREPARING)) == [WAITING]
    assert one.finish(claim, an_entry(Kind.PENDING, pending=True, external_id="8"))
    clock.of_day += 1
    assert again(ledger) == [APPLIED]
    assert apply(ledger, named("8", Lifecycle.READY)) == [APPLIED]
    assert told(rows) == ["rejected", "pending", "accepted", "preparing", "ready"]


def test_beyond_a_hundred_a_pos_calls_again_of_a_known_order(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine
) -> None:
    """None of them is dropped: the POS's words are about an order that is here."""
    reopened(engine, worker)
    many = [named("7", Kind.REJECTED, number) for number in range(MAX_WAITING + 2)]
    assert apply(ledger, *many) == [WAITING] * MAX_WAITING + [CallbackResult.BUSY] * 2
    assert len(waiting(engine)) == MAX_WAITING


@pytest.mark.parametrize("meaning", [Kind.ACCEPTED, Kind.CANCELLED, Lifecycle.READY])
def test_an_order_that_was_accepted_again_without_an_id_contradicts_no_other(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    engine: Engine,
    meaning: Kind | Lifecycle,
) -> None:
    """The POS has told no id of it: one that has an id may be about either, and both were made."""
    one = reopened(engine, worker)
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE))
    assert one.finish(claim, an_entry(external_id=None))
    assert apply(ledger, named("7", meaning), named("8", meaning)) == [EARLIER] * 2
    assert told(rows) == ["rejected", "accepted"]
    with engine.connect() as connection:
        notes = connection.scalars(select(audit.c.what))
        assert [each for each in notes if each.startswith("callback")] == []


@pytest.mark.parametrize("kind", [Kind.EXPIRED, Kind.IN_DOUBT])
def test_an_order_that_is_not_sent_again_is_waited_for_in_vain(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    engine: Engine,
    clock: Clock,
    kind: Kind,
) -> None:
    one = reopened(engine, worker)
    assert apply(ledger, named("7", Kind.REJECTED)) == [WAITING]
    claim = claimed(one.claim(KEY, send=kind is Kind.IN_DOUBT, endpoint=HERE))
    assert one.finish(claim, an_entry(kind, reason=Reason("blind", "an operator has to say")))
    clock.of_day += 1
    assert again(ledger) == [EARLIER]
    assert waiting(engine) == []


# In SQLite a transaction has the whole database to itself.
@pytest.mark.parametrize("ledger_url", ["postgresql"], indirect=True)
def test_an_order_that_gets_its_id_meanwhile_is_found(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Orders are looked for by the id, then those without one: it is between the two."""
    one, claim = sent(worker)
    named = ledger._say._named
    reads: list[Any] = []

    def commits_behind_the_first(cursor: Any, places: Any) -> Any:
        reads.append(named(cursor, places))
        if len(reads) == 1:
            assert one.finish(claim, an_entry(external_id="7"))
        return reads[-1]

    monkeypatch.setattr(ledger._say, "_named", commits_behind_the_first)
    assert apply(ledger, of("7")) == [APPLIED]
    assert told(rows) == ["accepted", "ready"]


def test_orders_without_an_id_are_read_once_for_all_callbacks(
    ledger: CallbackLedger, worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that recovers calls back about thousands, while as many orders are open."""
    sent(worker)
    statements: list[str] = []
    write = ledger._writer.write

    def noting(do: Callable[[Any], Any]) -> Any:
        return write(lambda cursor: do(Noting(cursor, statements)))

    monkeypatch.setattr(ledger._writer, "write", noting)
    assert set(apply(ledger, *(of(str(number)) for number in range(50)))) == {WAITING}
    [nameless] = [each for each in statements if "select distinct orders.merchant_id" in each]
    assert "json_to_recordset" not in nameless
    assert ":merchant_id" not in nameless


class Noting:
    """A cursor whose statements are noted."""

    def __init__(self, cursor: Any, statements: list[str]) -> None:
        self._cursor, self._statements = cursor, statements

    def execute(self, statement: str, *values: Any) -> Any:
        self._statements.append(statement)
        return self._cursor.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
