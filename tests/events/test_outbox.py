"""Positions: which leader assigns them, in which order, and without gaps."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import sleep
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import events, pipeline
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.events import floor
from pos_gateway.events.archive import Archive
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Outbox, Term
from pos_gateway.events.pruning import countable, prune
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault
from tests.events.lab import Events, row
from tests.ledger.lab import DAY, Rows, Worker, an_entry, claimed


@pytest.fixture
def outbox(engine: Engine) -> Iterator[Outbox]:
    outbox = Outbox(engine)
    yield outbox
    outbox.close()


@pytest.fixture
def recorded(engine: Engine) -> Events:
    return Events(engine)


def led(outbox: Outbox, leader: str = "me-1") -> Term:
    term = outbox.take(leader, outbox.look()[0].epoch)
    assert term is not None
    return term


def given(rows: Rows) -> dict[str, int | None]:
    return {each.event_id: each.position for each in rows.events()}


def test_an_event_with_an_unpublished_position_is_not_repeated(
    outbox: Outbox, recorded: Events, engine: Engine
) -> None:
    """Repeated for a redelivered message, it would overtake earlier events."""
    recorded.write(3)
    term = outbox.assign(led(outbox), 3)
    assert term is not None
    outbox.assign(replace(term, published=2), 3)
    archive = Archive(engine, Hydration(Payloads(Vault())))
    kept, messages = archive.by_ids(["e0", "e1", "e2", "pruned"])
    assert kept == {"e0", "e1", "e2"}
    assert [each.message_id for each in messages] == ["e0", "e1"]


def test_positions_follow_the_rows_without_gaps(
    outbox: Outbox, recorded: Events, rows: Rows
) -> None:
    recorded.write(5)
    term = outbox.assign(led(outbox), 3)
    assert term == Term("me-1", 1, 3, 0)
    assert given(rows) == {"e0": 1, "e1": 2, "e2": 3, "e3": None, "e4": None}
    recorded.write(1)
    term = outbox.assign(term, 10)
    assert term is not None and term.assigned == 6
    assert given(rows) == {f"e{n}": n + 1 for n in range(6)}


def test_an_event_keeps_the_trace_that_it_was_written_with(outbox: Outbox, engine: Engine) -> None:
    worker = Worker(engine)
    trace = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "rojo=00f067aa0ba902b7")
    for order_id, cause in (("o1", trace), ("o2", None)):
        claim = claimed(worker.claim(Key("m", order_id), send=True))
        event = dehydrated(claim.key, Kind.ACCEPTED, trace=cause)
        assert worker.finish(claim, an_entry(key=claim.key, event=event))
    entry = an_entry(event=dehydrated(Key("m", "o3"), Kind.FAILED, trace=trace))
    worker.record_event(Key("m", "o3"), entry, b"{}")
    outbox.assign(led(outbox), 10)
    assert [row.trace for row in outbox.read(0, 10)] == [str(trace), None, str(trace)]
    recorded = [Hydration(Payloads(Vault())).message(row) for row in outbox.read(0, 10)]
    assert [TraceContext.of(each.headers) for each in recorded] == [trace, None, trace]
    worker.close()


def test_the_published_position_is_written_with_the_next_assignment(
    outbox: Outbox, recorded: Events
) -> None:
    recorded.write(2)
    term = outbox.assign(led(outbox), 10)
    assert term is not None
    assert outbox.look()[0].published == 0
    assert outbox.assign(replace(term, published=2), 10) == replace(term, published=2)
    assert outbox.look()[0] == Term("me-1", 1, 2, 2)


class Counted(Outbox):
    """Counts its transactions."""

    transactions = 0

    def _do(self, do: Callable[[Any], Any]) -> Any:
        self.transactions += 1
        return super()._do(do)


@pytest.fixture
def counted(engine: Engine) -> Iterator[Counted]:
    outbox = Counted(engine)
    yield outbox
    outbox.close()


def test_an_assignment_after_one_that_found_events_reads_its_own(
    counted: Counted, outbox: Outbox, recorded: Events
) -> None:
    recorded.write(3)
    first = counted.assign(led(counted), 2)
    assert first is not None
    assert [each.event_id for each in counted.read(0, 2)] == ["e0", "e1"]
    recorded.write(9)
    before = counted.transactions
    term = counted.assign(replace(first, published=2), 6)
    assert term == Term("me-1", first.epoch, 8, 2)
    rows = counted.read(2, 6)
    assert counted.transactions == before + 1
    assert [each.position for each in rows] == [3, 4, 5, 6, 7, 8]
    assert rows == outbox.read(2, 6)
    assert counted.read(2, 6) == rows, "they are read again after a failed publish"
    assert counted.assign(replace(term, published=8), 6) == replace(term, published=8, assigned=12)


def test_events_that_are_not_published_yet_come_before_those_just_assigned(
    counted: Counted, recorded: Events
) -> None:
    recorded.write(2)
    term = counted.assign(led(counted), 2)
    assert term is not None
    recorded.write(2)
    term = counted.assign(term, 2)  # none of the first two was stored
    assert term is not None and term.assigned == 4
    assert [each.position for each in counted.read(0, 3)] == [1, 2, 3]
    assert [each.position for each in counted.read(3, 3)] == [4]


def test_a_leader_that_was_deposed_while_it_was_busy_reads_nothing_new(
    counted: Counted, recorded: Events, rows: Rows
) -> None:
    recorded.write(1)
    old = counted.assign(led(counted), 10)
    assert old is not None
    led(counted, "other-1")
    recorded.write(1)
    assert counted.assign(replace(old, published=1), 10) is None
    assert counted.read(1, 10) == []
    assert given(rows)["e1"] is None


def test_an_idle_leader_writes_nothing(outbox: Outbox, engine: Engine) -> None:
    term = led(outbox)
    if engine.dialect.name == "postgresql":
        version = text("select xmin::text from pipeline")
        with engine.connect() as connection:
            before = connection.scalar(version)
            assert outbox.assign(term, 10) == term
            assert connection.scalar(version) == before
    assert outbox.assign(term, 10) == term


def test_a_deposed_leader_assigns_and_publishes_nothing(
    outbox: Outbox, recorded: Events, rows: Rows
) -> None:
    recorded.write(2)
    old = led(outbox)
    new = led(outbox, "other-1")
    assert new.epoch == old.epoch + 1
    assert outbox.assign(replace(old, published=7), 10) is None
    assert given(rows) == {"e0": None, "e1": None}
    assert outbox.look()[0] == new


def test_one_of_two_concurrent_take_overs_wins(outbox: Outbox) -> None:
    epoch = outbox.look()[0].epoch
    assert outbox.take("one-1", epoch) == Term("one-1", epoch + 1, 0, 0)
    assert outbox.take("two-1", epoch) is None
    assert outbox.look()[0].leader == "one-1"


def test_positions_whose_reply_was_lost_are_found_again(
    outbox: Outbox, recorded: Events, rows: Rows
) -> None:
    recorded.write(3)
    before = led(outbox)
    after = outbox.assign(before, 2)
    assert outbox.assign(before, 2) == after
    assert given(rows) == {"e0": 1, "e1": 2, "e2": None}


def test_a_deposed_leader_does_not_depose_the_new_one(outbox: Outbox, recorded: Events) -> None:
    """It stops late: a new leader has taken over, and has published more."""
    recorded.write(3)
    before = led(outbox)
    now = outbox.assign(led(outbox, "other-1"), 3)
    assert now is not None
    outbox.assign(replace(now, published=3), 1)
    outbox.resign(before)
    assert outbox.look()[0] == Term("other-1", before.epoch + 1, 3, 3)
    outbox.resign(replace(now, published=3))
    assert outbox.look()[0].leader is None


def test_a_pipeline_without_its_row_goes_on_behind_the_last_position(
    outbox: Outbox, recorded: Events, engine: Engine
) -> None:
    recorded.write(3)
    outbox.assign(led(outbox), 3)
    with engine.begin() as connection:
        connection.execute(pipeline.delete())
    assert outbox.look()[0] == Term(None, 0, 3, 3)


def test_events_are_read_in_order_with_all_their_fields(outbox: Outbox, recorded: Events) -> None:
    recorded.write(3, order_payload='{"a":1}', external_id="x", reason_code="c", reason_message="d")
    recorded.write(1, order=False, payload='{"b":2}')
    outbox.assign(led(outbox), 10)
    assert [each.position for each in outbox.read(0, 2)] == [1, 2]
    third, fourth = outbox.read(2, 10)
    assert (third.payload, third.external_id, third.reason_code) == ('{"a":1}', "x", "c")
    assert (fourth.payload, fourth.provider, fourth.adapter) == ('{"b":2}', None, None)


def test_only_old_published_events_are_pruned(outbox: Outbox, recorded: Events, rows: Rows) -> None:
    recorded.write(4)
    recorded.write(1, occurred_at=DAY + 100)
    term = outbox.assign(led(outbox), 5)
    assert term is not None
    assert outbox.prune(DAY + 1, 10) == 0
    outbox.assign(replace(term, published=3), 5)
    assert outbox.prune(DAY + 1, 2) == 2
    assert outbox.prune(DAY + 1000, 10) == 1
    assert sorted(given(rows)) == ["e3", "e4"]


def test_a_locked_event_does_not_block_pruning(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    outbox, rows = Outbox(engine), Rows(engine)
    Events(engine).write(6)
    term = outbox.assign(led(outbox), 10)
    assert term is not None
    assert outbox.assign(replace(term, published=6), 10)
    with engine.connect() as forgotten:
        forgotten.execute(select(events).where(events.c.event_id == "e0").with_for_update())
        assert outbox.prune(DAY + 1, 3, DAY + 1) == 2
        assert list(prune(engine, DAY + 1, 2)) == [2, 1]
        assert list(given(rows)) == ["e0"]
    assert outbox.prune(DAY + 1, 3, DAY + 1) == 1
    outbox.close()
    engine.dispose()


def test_an_event_dated_ahead_does_not_block_pruning(
    outbox: Outbox, recorded: Events, rows: Rows, engine: Engine
) -> None:
    """A worker's clock was a year ahead for a while."""
    recorded.write(4, occurred_at=DAY + 365 * 86_400)
    recorded.write(3)
    recorded.write(1, occurred_at=DAY + 100)
    recorded.write(1)
    term = outbox.assign(led(outbox), 9)
    assert term is not None
    outbox.assign(replace(term, published=8), 9)  # the last one's publish is not confirmed
    assert outbox.prune(DAY + 1, 2, DAY + 200) == 2
    assert sorted(given(rows)) == ["e0", "e1", "e2", "e3", "e6", "e7", "e8"]
    assert list(prune(engine, DAY + 1, batch=1)) == [1]
    assert countable(engine, DAY + 1) == 0
    assert outbox.prune(DAY + 101, 2, DAY + 200) == 1
    assert sorted(given(rows)) == ["e0", "e1", "e2", "e3", "e8"]


def test_chunks_are_taken_from_the_back_and_not_from_live_helpers(
    outbox: Outbox, recorded: Events
) -> None:
    recorded.write(9)
    options: dict[str, Any] = {"most": 3, "behind": 5}

    def chunk(helper: str, alive: list[str]) -> list[str]:
        return [each.event_id for each in outbox.chunk(helper, alive, **options)]

    assert chunk("one", []) == ["e8", "e7", "e6"]
    assert chunk("two", ["one", "two"]) == ["e5", "e4", "e3"]
    assert chunk("two", ["two"]) == ["e8", "e7", "e6"]  # the first helper has died
    left = outbox.chunk("one", ["two"], **options)
    assert [each.event_id for each in left] == ["e2", "e1", "e0"]
    outbox.write([(each.id, "{}") for each in left])
    assert chunk("three", ["two"]) == []  # the first lease is over, but its chunk is done


def test_a_short_backlog_has_no_chunks(outbox: Outbox, recorded: Events) -> None:
    recorded.write(5)
    assert outbox.chunk("one", [], most=3, behind=5) == []
    recorded.write(1)
    assert len(outbox.chunk("one", [], most=3, behind=5)) == 3


def test_a_helper_does_not_write_events_that_the_leader_reached(
    outbox: Outbox, recorded: Events, rows: Rows
) -> None:
    recorded.write(2)
    chunk = outbox.chunk("one", [], most=2, behind=0)
    outbox.assign(led(outbox), 1)
    outbox.write([(each.id, '{"a":1}') for each in chunk])
    outbox.write([(each.id, '{"b":2}') for each in chunk])
    assert {each.event_id: each.body for each in rows.events()} == {"e0": None, "e1": '{"a":1}'}


def test_a_row_that_commits_late_gets_a_later_position(
    postgresql_url: str,
) -> None:
    engine = open_database(postgresql_url)
    outbox, late = Outbox(engine), engine.connect()
    late.execute(insert(events).values(row("o1", "late")))
    Events(engine).write_one("o2", event_id="early")
    term = outbox.assign(led(outbox), 10)
    assert term is not None and term.assigned == 1
    late.commit()
    assert outbox.assign(term, 10) == replace(term, assigned=2)
    found = {each.event_id: each for each in Rows(engine).events()}
    assert found["late"].id < found["early"].id
    assert {name: each.position for name, each in found.items()} == {"early": 1, "late": 2}
    late.close()
    outbox.close()
    engine.dispose()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_locked_event_and_the_later_ones_of_its_order_get_later_positions(
    postgresql_url: str, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a transaction that commits late; they stay behind no floor."""
    monkeypatch.setattr(floor, "EVERY", 0.0)
    engine = open_database(postgresql_url)
    outbox, recorded, rows = Outbox(engine), Events(engine), Rows(engine)
    term: Term | None = led(outbox)
    recorded.write_one("o", event_id="before")

    def assign(*event_ids: str) -> None:
        nonlocal term
        assert term is not None
        for each in event_ids:
            recorded.write_one(each, event_id=each)
        outbox._is_busy = is_busy
        term = outbox.assign(term, 10)

    with engine.connect() as forgotten:
        forgotten.execute(insert(events).values(row("o", "locked")))
        assign("e0")  # a later row has a position already
        forgotten.commit()
        recorded.write_one("o", event_id="after")
        forgotten.execute(select(events).where(events.c.event_id == "locked").with_for_update())
        assign()
        for number in range(1, 5):
            assign(f"e{number}")
        assert [name for name, position in given(rows).items() if position is None] == [
            "locked",
            "after",
        ]
    assign("e5")
    in_order = sorted(rows.events(), key=lambda each: each.position)
    assert [each.position for each in in_order] == [*range(1, 10)]
    assert [each.event_id for each in in_order] == [
        *("before", "e0", "e1", "e2", "e3", "e4"),
        *("locked", "after", "e5"),
    ]
    outbox.close()
    engine.dispose()


def test_a_statement_repeated_while_it_still_runs_leaves_no_gap(
    postgresql_url: str,
) -> None:
    engine = open_database(postgresql_url)
    Events(engine).write(3)
    outbox = Outbox(engine)
    term = led(outbox)
    first = engine.raw_connection()
    first.cursor().execute("select 1")  # begins
    outbox._say.assign(first.cursor(), term, 10)
    Events(engine).write_one("o3", event_id="later")
    results: list[Term | None] = []
    again = threading.Thread(target=lambda: results.append(outbox.assign(term, 10)))
    again.start()
    with engine.connect() as watching:
        waiting = select(func.count()).select_from(text("pg_locks where not granted"))
        while not watching.scalar(waiting):
            sleep(0.005)  # yield the processor
    first.commit()
    again.join()
    assert outbox.look()[0].assigned == 3
    assert results == [replace(term, assigned=3)] or results == [term]
    assert outbox.assign(replace(term, assigned=3), 10) == replace(term, assigned=4)
    assert [each.position for each in outbox.read(0, 10)] == [1, 2, 3, 4]
    first.close()
    outbox.close()
    engine.dispose()


def test_a_leader_and_a_helper_do_not_deadlock(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    Events(engine).write(4)
    outbox, helpers = Outbox(engine), Outbox(engine)
    term = led(outbox)
    chunk = helpers.chunk("one", [], most=4, behind=0)
    leading = engine.raw_connection()
    leading.cursor().execute("select 1")  # begins
    outbox._say.assign(leading.cursor(), term, 2)
    helpers.write([(each.id, "{}") for each in chunk])  # two of them are locked, and skipped
    assert helpers.chunk("two", [], most=4, behind=0) == []
    leading.commit()
    assert [each.body for each in outbox.read(0, 10)] == [None, None]
    leading.close()
    outbox.close()
    helpers.close()
    engine.dispose()


def test_progress_that_is_shown_only_grows_and_only_in_its_term(postgresql_url: str) -> None:
    """Servers read what is published: a leader that was replaced has nothing to say."""
    engine = open_database(postgresql_url)
    outbox = Outbox(engine)
    Events(engine).write(3)
    term = outbox.assign(led(outbox), 3)
    assert term is not None
    outbox.show(replace(term, published=2))
    outbox.show(replace(term, published=1))
    with engine.connect() as connection:
        assert connection.scalar(select(pipeline.c.published)) == 2
        later = outbox.take("me-2", outbox.look()[0].epoch)
        assert later is not None
        outbox.show(replace(term, published=3))
        connection.rollback()
        assert connection.scalar(select(pipeline.c.published)) == 2
    outbox.close()
    engine.dispose()
