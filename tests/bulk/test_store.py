"""Whose a run is, and how far: on each database, whatever two operators do at once."""

import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from pos_gateway.administration.bulk.previews import BATCH
from pos_gateway.administration.bulk.run import (
    BulkAction,
    BulkRun,
    ItemState,
    NewItem,
    RunState,
    Subject,
)
from pos_gateway.administration.bulk.store import BulkStore, Finished, LeaseLost
from pos_gateway.administration.refusal import Refusal
from pos_gateway.database.schema import audit, bulk_items, bulk_runs
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger.pruning import prune_orders

NO = Refusal("it is accepted", "it is accepted")


def items(count: int, refused: int = 0) -> Iterable[NewItem]:
    for number in range(count):
        refusal = NO if number < refused else None
        yield NewItem(f"mark-{number}", f"o-{number}", "m-1", f"o-{number}", refusal)


def preview(store: BulkStore, count: int = 3, refused: int = 0, **changed: Any) -> BulkRun:
    named: dict[str, Any] = {"operator": "kim", "filter_": {}, "options": {}, **changed}
    action = named.pop("action", BulkAction.REPLAY)
    run_id = store.previews.prepare(action, **named)
    store.previews.fill(run_id, items(count, refused))
    return store.run(run_id)


def aged(engine: Engine, **values: Any) -> None:
    """Every run has these values: it is later, say."""
    with engine.begin() as connection:
        connection.execute(update(bulk_runs).values(values))


def rows(engine: Engine) -> tuple[int, int]:
    """How many runs and items there are."""
    with engine.connect() as connection:
        one, other = (
            connection.scalar(select(func.count()).select_from(table)) or 0
            for table in (bulk_runs, bulk_items)
        )
    return one, other


def test_a_run_has_the_items_of_its_preview(store: BulkStore) -> None:
    run = preview(store, BATCH + 2, 2, filter_={"codes": ["url"]}, options={"rate": 5.0})
    assert (run.total, run.refused, run.left) == (BATCH + 2, 2, BATCH)
    assert (run.state, run.filter, run.options) == (
        RunState.PREVIEWED,
        {"codes": ["url"]},
        {"rate": 5.0},
    )
    left = list(store.left(run.id))
    assert [each.number for each in left] == [*range(3, BATCH + 3)]
    assert (left[0].mark, left[0].letter, left[0].has_begun) == ("mark-2", "o-2", False)
    [refused] = store.refusals(run.id)
    assert (refused.kind, refused.count, refused.examples) == ("it is accepted", 2, ("o-0", "o-1"))
    assert [(item.letter, why.why) for item, why in store.refused(run.id)] == [
        ("o-0", "it is accepted"),
        ("o-1", "it is accepted"),
    ]
    assert store.runs(10) == []  # it is not confirmed


def test_the_items_that_are_left_are_read_in_pages(store: BulkStore, engine: Engine) -> None:
    """A run may have hundreds of thousands, and a server several runs."""
    run = preview(store, 3 * BATCH)
    left = store.left(run.id)
    first = next(left)
    with engine.begin() as connection:  # those that are not read yet
        connection.execute(update(bulk_items).values(state=ItemState.DONE))
    assert [first.number, *(each.number for each in left)] == [*range(1, BATCH + 1)]


def test_a_run_is_started_once(store: BulkStore) -> None:
    """A second click, or the same request sent again, finds it at work."""
    run = preview(store)
    store.take(run.id, operator="kim", total=3, refused=0)
    for operator in ("kim", "sam"):
        with pytest.raises(AdminError, match=r"run \d+ of kim \(dlq.replay, 0 of 3 done\) is at work already"):  # fmt: skip
            store.take(run.id, operator=operator, total=3, refused=0)


@pytest.mark.parametrize("numbers", [{"total": 4}, {"total": 3, "refused": 1}])
def test_other_numbers_than_those_of_the_preview_start_nothing(
    store: BulkStore, numbers: dict[str, int]
) -> None:
    run = preview(store)
    with pytest.raises(AdminError, match="has other numbers than were confirmed"):
        store.take(run.id, operator="kim", **numbers)
    assert store.run(run.id).state is RunState.PREVIEWED


def test_one_run_at_a_time_acts_on_letters(store: BulkStore) -> None:
    """The other operator is told whose it is; a run on orders in doubt is not in its way."""
    first, second = preview(store), preview(store, action=BulkAction.DISCARD, operator="sam")
    doubt = preview(store, action=BulkAction.NOT_SENT)
    claim = store.take(first.id, operator="kim")
    with pytest.raises(AdminError, match=rf"run {first.id} of kim .* runs stop {first.id}"):
        store.take(second.id, operator="sam")
    with pytest.raises(AdminError, match=f"run {first.id} of kim"):
        store.require_idle(second.action.subject)
    store.take(doubt.id, operator="sam")
    assert store.end(claim).state is RunState.STOPPED
    store.take(second.id, operator="sam")


def test_of_many_starts_at_once_one_succeeds(store: BulkStore) -> None:
    runs = [preview(store), preview(store)]
    started: list[int] = []
    refused: list[str] = []
    gate = threading.Barrier(8)

    def click(run: BulkRun) -> None:
        gate.wait()
        try:
            store.take(run.id, operator="kim")
            started.append(run.id)
        except AdminError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=click, args=(runs[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(started), len(refused)) == (1, 7)


def test_items_begin_and_end_one_by_one(store: BulkStore) -> None:
    run = preview(store)
    claim = store.take(run.id, operator="kim")
    one, two, three = store.left(run.id)
    assert store.step(claim, None, one)
    assert [each.has_begun for each in store.left(run.id)] == [True, False, False]
    assert store.step(claim, Finished(one.number, None), two)
    assert store.step(claim, Finished(two.number, NO), three)
    now = store.run(run.id)
    assert (now.done, now.refused, now.left) == (1, 1, 1)
    assert [each.number for each in store.left(run.id)] == [three.number]
    ended = store.end(claim, Finished(three.number, None))
    assert (ended.state, ended.done, ended.refused) == (RunState.DONE, 2, 1)
    with pytest.raises(AdminError, match="has ended; there is nothing left"):
        store.take(run.id, operator="kim")


def test_a_run_whose_process_is_gone_is_taken_over_and_its_writes_fail(
    store: BulkStore, engine: Engine
) -> None:
    run = preview(store)
    mine = store.take(run.id, operator="kim")
    one, two, _ = store.left(run.id)
    store.step(mine, None, one)
    aged(engine, lease_until=0.0)
    assert store.run(run.id).said == "interrupted"
    theirs = store.take(run.id, operator="sam")
    for write in (
        lambda: store.step(mine, Finished(one.number, None), two),
        lambda: store.end(mine, Finished(one.number, None)),
        lambda: store.complete(mine),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert [each.has_begun for each in store.left(run.id)] == [True, False, False]
    assert store.step(theirs)
    assert store.run(run.id).operator == "sam"


def test_a_database_clock_that_was_set_back_keeps_no_run_of_a_dead_process(
    store: BulkStore, engine: Engine
) -> None:
    """By a day, say, where a primary's clock was wrong and its standby's is right: the lease would last that day."""
    run = preview(store)
    store.take(run.id, operator="kim")
    aged(engine, lease_until=bulk_runs.c.lease_until + 86_400)
    assert store.run(run.id).said == "interrupted"
    store.require_idle(run.action.subject)
    assert store.take(run.id, operator="sam").run.left == 3


@pytest.mark.parametrize(
    ("seconds", "is_made"), [(-130, False), (-60, True), (60, True), (86_400, False)]
)
def test_a_preview_without_a_write_of_late_is_not_being_made(
    store: BulkStore, engine: Engine, seconds: int, is_made: bool
) -> None:
    """A write after now is of before the database's clock was set back, and of a process that may have died."""
    options: dict[str, Any] = {"filter_": {}, "options": {}}
    store.previews.prepare(BulkAction.REPLAY, operator="kim", **options)
    aged(engine, updated_at=bulk_runs.c.updated_at + seconds)
    assert store.previews.is_being_made(Subject.LETTERS) is is_made


def test_an_interrupted_run_keeps_no_other_waiting(store: BulkStore, engine: Engine) -> None:
    first, second = preview(store), preview(store)
    store.take(first.id, operator="kim")
    aged(engine, lease_until=0.0)
    claim = store.take(second.id, operator="sam")
    assert store.run(first.id).state is RunState.STOPPED
    store.end(claim)
    assert store.take(first.id, operator="kim").run.left == 3


def test_each_write_renews_the_lease(store: BulkStore, engine: Engine) -> None:
    run = preview(store)
    claim = store.take(run.id, operator="kim")
    aged(engine, lease_until=0.0)
    store.step(claim)
    assert store.run(run.id).is_leased


def test_a_write_that_was_counted_twice_is_counted_again_at_the_end(
    store: BulkStore, engine: Engine
) -> None:
    """Its commit was unknown, and it was repeated."""
    run = preview(store)
    claim = store.take(run.id, operator="kim")
    [one, *_] = store.left(run.id)
    for _ in range(2):
        store.step(claim, Finished(one.number, None))
    assert store.end(claim).done == 1


def test_what_cannot_be_found_is_gone_and_what_had_begun_was_done(store: BulkStore) -> None:
    run = preview(store)
    claim = store.take(run.id, operator="kim")
    store.step(claim, None, list(store.left(run.id))[1])
    ended = store.complete(claim)
    assert (ended.state, ended.done, ended.gone, ended.left) == (RunState.DONE, 1, 2, 0)


def test_a_stop_is_heard_at_the_next_write(store: BulkStore) -> None:
    run = preview(store)
    claim = store.take(run.id, operator="kim")
    [one, two, _] = store.left(run.id)
    store.step(claim, None, one)
    for operator in ("sam", "alex"):
        assert store.stop(run.id, operator=operator).said == "stopping"
    assert not store.step(claim, Finished(one.number, None), two)
    ended = store.end(claim)
    assert (ended.state, ended.done, ended.stopped_by) == (RunState.STOPPED, 1, "sam")
    assert [each.has_begun for each in store.left(run.id)] == [False, False]
    again = store.take(run.id, operator="kim")
    assert again.run.stopped_by is None and store.step(again)


def test_a_stop_of_an_interrupted_run_needs_no_process(store: BulkStore, engine: Engine) -> None:
    run = preview(store)
    store.take(run.id, operator="kim")
    aged(engine, lease_until=0.0)
    assert store.stop(run.id, operator="sam").state is RunState.STOPPED
    done = preview(store)
    assert store.stop(done.id, operator="sam").state is RunState.PREVIEWED
    with pytest.raises(AdminError, match=r"there is no run 999"):
        store.stop(999, operator="sam")


def test_starts_and_stops_are_in_the_audit(store: BulkStore, engine: Engine) -> None:
    run = preview(store, filter_={"codes": ["url"]})
    claim = store.take(run.id, operator="kim")
    store.stop(run.id, operator="sam")
    store.stop(run.id, operator="sam")
    store.end(claim)
    store.take(run.id, operator="alex")
    with engine.connect() as connection:
        lines = connection.execute(select(audit.c.operator, audit.c.what, audit.c.details)).all()
    assert [tuple(each[:2]) for each in lines] == [
        ("kim", "bulk.start"),
        ("sam", "bulk.stop"),
        ("alex", "bulk.resume"),
    ]
    assert '"codes": ["url"]' in lines[0].details


def test_an_unconfirmed_preview_is_removed_after_an_hour_and_no_other_run(
    store: BulkStore, engine: Engine
) -> None:
    run, other = preview(store), preview(store)
    store.end(store.take(run.id, operator="kim"))
    aged(engine, updated_at=time.time() - 7_200)
    last = preview(store)
    assert rows(engine) == (2, 6)
    with pytest.raises(AdminError, match=f"there is no run {other.id}"):
        store.take(other.id, operator="kim")
    store.previews.discard(last.id)
    store.previews.discard(run.id)  # confirmed
    assert rows(engine) == (1, 3)


def test_runs_are_pruned_with_the_orders_but_none_that_runs(
    store: BulkStore, engine: Engine
) -> None:
    old, running = preview(store, 1_200), preview(store)
    store.end(store.take(old.id, operator="kim"))
    store.take(running.id, operator="kim")
    aged(engine, created_at=1.0)
    recent = preview(store)
    for _ in prune_orders(engine, time.time() - 3_600):
        pass
    assert rows(engine) == (2, 6)
    assert {store.run(running.id).state, store.run(recent.id).state} == {
        RunState.RUNNING,
        RunState.PREVIEWED,
    }
