"""A standby is promoted that lacks the last commits: workers rewrite what they remember.

The test restores the database to its state some commits ago.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from pos_gateway.database.schema import events, orders, workers
from pos_gateway.domain.errors import EventIdTaken, LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger import journal
from pos_gateway.ledger.journal import REMEMBERED
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.statements import Written
from pos_gateway.ledger.states import Action, Ended, Key, LeasedElsewhere, State
from pos_gateway.telemetry import metrics
from tests.ledger.breaking import BreakingStatements
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]
TABLES = (orders, events, workers)


class Standby:
    """A standby's copy of the database, as of its creation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.connect() as connection:
            self._rows = {
                table: [dict(row._mapping) for row in connection.execute(select(table))]
                for table in TABLES
            }

    def promote(self, *workers: Worker) -> None:
        """Lose every later commit; these workers lose their connections, as all do."""
        with self._engine.begin() as connection:
            for table, rows in self._rows.items():
                connection.execute(table.delete())
                if rows:
                    connection.execute(insert(table), rows)
        for worker in workers:
            worker._writer.close()


@pytest.fixture
def standby(engine: Engine) -> Callable[[], Standby]:
    return lambda: Standby(engine)


Standbys = Callable[[], Standby]


def restored() -> float:
    return metrics.ledger_restored._value.get()


def test_an_outcome_whose_claim_was_lost_is_written_with_its_order(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one = worker()
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=True, deliver_by=7.0, order=b'{"a":1}'))
    before.promote(one)
    counted = restored()
    assert one.finish(claim, an_entry(attempts=1, external_id="x"))
    row = rows.order()
    assert (row.state, row.epoch, row.owner, row.deliver_by) == ("accepted", 1, None, 7.0)
    assert (row.external_id, row.attempts) == ("x", 1)
    assert one.order(KEY) == b'{"a":1}'
    assert len(rows.events()) == 1
    assert restored() == counted + 1


@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "tried before"])
def test_an_outcome_whose_claim_was_lost_is_written_with_its_endpoint(
    worker: Workers, rows: Rows, standby: Standbys, is_fresh: bool
) -> None:
    """Otherwise, once the merchant moved, it would be sent again to a POS that does not know it."""
    one = worker()
    if not is_fresh:
        assert one.finish(claimed(one.claim(KEY, send=False)), without_event())
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=True, endpoint="here"))
    sending = claim if claim.sending else one.sending(claim, "here")
    before.promote(one)
    assert sending is not None
    assert one.finish(sending, without_event(State.IN_DOUBT, doubt_since=5.0))
    assert (rows.order().state, rows.order().endpoint) == ("in_doubt", "here")


def test_an_outcome_whose_claim_was_lost_keeps_the_endpoint_that_the_order_was_sent_to(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    """The merchant has moved since, and nothing was sent to its new POS."""
    one, in_doubt = worker(), without_event(State.IN_DOUBT, doubt_since=5.0)
    assert one.finish(claimed(one.claim(KEY, send=True, endpoint="here")), in_doubt)
    before = standby()
    claim = claimed(one.claim(KEY, send=True, endpoint="there"))
    before.promote(one)
    assert one.finish(claim, in_doubt)
    assert (rows.order().state, rows.order().endpoint) == ("in_doubt", "here")


def test_a_lost_claim_of_a_sent_order_is_rewritten_as_sending(
    worker: Workers, standby: Standbys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its cancel request is open: its worker may die before the outcome is written."""
    one = worker()
    one.beat()
    cancel = replace(KEY, action=Action.CANCEL)
    before = standby()
    claim = claimed(one.claim(KEY, send=True))
    before.promote(one)
    wish = claimed(one.claim(cancel, send=False, deliver_by=DAY + 60))
    assert one.finish(wish, without_event())
    write, tickets = one._writer.sql.write, set[int]()

    def seen(*arguments: Any) -> Written:
        written = write(*arguments)
        tickets.update(written.tickets)
        return written

    monkeypatch.setattr(one._writer.sql, "write", seen)
    assert one.finish(claim, an_entry())
    assert tickets == {claim.ticket}  # negative for CLAIMED


def test_a_lost_outcome_is_rewritten_over_an_earlier_one(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one = worker()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    claim = claimed(one.claim(KEY, send=True))
    one.clock.advance(REMEMBERED + 1)
    # The oldest are forgotten.
    one.finish(claimed(one.claim(Key("m", "other"), send=True)), without_event())
    before.promote(one)
    assert one.finish(claim, an_entry())
    assert (rows.order().state, rows.order().epoch) == ("accepted", 3)
    assert len(rows.events()) == 1


@pytest.mark.parametrize("claim_is_lost", [True, False])
def test_a_confirmed_outcome_that_was_lost_is_rewritten(
    worker: Workers, rows: Rows, standby: Standbys, claim_is_lost: bool
) -> None:
    """Its message is acknowledged: no delivery would ever bring the order back."""
    one = worker()
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=True, order=b"{}"))
    before = before if claim_is_lost else standby()
    assert one.finish(claim, an_entry())
    before.promote(one)
    one.beat()
    assert (rows.order().state, rows.order().epoch) == ("accepted", 1)
    assert [row.type for row in rows.events()] == ["accepted"]
    assert isinstance(one.claim(KEY, send=True), Ended)


def test_an_outcome_is_rewritten_however_long_the_failover_takes(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    """The standby's lag counts, not the time until it is promoted."""
    one = worker()
    one.beat()
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    one.clock.advance(60 * REMEMBERED)
    before.promote(one)
    one.beat()
    assert (rows.order().state, len(rows.events())) == ("accepted", 1)


def test_a_worker_that_stops_rewrites_lost_outcomes_before_it_releases_its_lease(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    """Their messages are acknowledged: no other worker would hear of the orders."""
    one = worker()
    one.beat()
    claim = claimed(one.claim(KEY, send=True, order=b'{"a":1}'))
    before = standby()
    assert one.finish(claim, an_entry(attempts=1, external_id="x"))
    before.promote(one)
    one.close()
    assert (rows.order().state, len(rows.events())) == ("accepted", 1)


def test_a_process_without_a_beat_rewrites_nothing_from_before_its_release(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    """Hours later the order may have been pruned: it would be there again, with a second event."""
    one = worker()
    one.beat()
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    one.release()
    before.promote(one)
    one.beat()
    assert (rows.orders(), rows.events()) == ([], [])


def test_several_lost_outcomes_of_an_order_are_rewritten_in_order(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one = worker()
    one.beat()
    before = standby()
    pending = without_event(State.PENDING, event=dehydrated(KEY, Kind.PENDING))
    assert one.finish(claimed(one.claim(KEY, send=True)), pending)
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    one.record_event(Key("m", "none"), an_entry(Kind.FAILED, key=Key("m", "none")), b"{}")
    before.promote(one)
    one.beat()
    assert (rows.order().state, rows.order().epoch) == ("accepted", 2)
    in_order = sorted(rows.events(), key=lambda row: row.id)
    of_it = [row.type for row in in_order if row.order_id == KEY.order_id]
    assert (of_it, len(in_order)) == (["pending", "accepted"], 3)


def test_a_reconnect_without_a_failover_changes_nothing(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    keys = [Key("m", f"o{n}") for n in range(4)]
    for key in keys:
        assert one.finish(claimed(one.claim(key, send=True)), without_event())
    claimed(one.claim(keys[1], send=True))
    claimed(two.claim(keys[2], send=True))
    two.finish(claimed(two.claim(keys[3], send=True)), an_entry(key=keys[3]))
    before, counted = sorted(rows.orders()), restored()
    one._writer.close()
    one.beat()
    assert (sorted(rows.orders()), restored()) == (before, counted)
    assert len(rows.events()) == 1


def test_an_order_that_another_worker_claimed_since_is_not_rewritten(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one, two = worker(), worker()
    one.beat()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    late = claimed(one.claim(KEY, send=True))
    before.promote(one, two)
    theirs = claimed(two.claim(KEY, send=True))
    assert one.finish(late, without_event()) is False
    assert (rows.order().owner, rows.order().epoch) == (theirs.owner, theirs.epoch)
    assert two.finish(theirs, an_entry())
    assert one.finish(late, an_entry()) is False
    assert (rows.order().state, len(rows.events())) == ("accepted", 1)


def test_the_later_of_two_claims_with_one_epoch_wins(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one, two = worker(), worker()
    one.beat()
    before = standby()
    late = claimed(one.claim(KEY, send=True))
    before.promote(one, two)
    theirs = claimed(two.claim(KEY, send=True))
    assert theirs.epoch == late.epoch
    assert one.sending(late) is None
    assert one.finish(late, without_event()) is False
    assert rows.order().state == State.SENDING  # unchanged: the other worker's bytes may have left
    assert two.finish(theirs, an_entry())


def test_a_dead_workers_order_is_taken_over_again_after_a_failover(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    dead, one = worker(), worker()
    claimed(dead.claim(KEY, send=True))
    one.beat()
    one.clock.advance(9)
    before = standby()
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, without_event(State.IN_DOUBT, doubt_since=5.0))
    before.promote(one)
    one.beat()
    row = rows.order()
    assert (row.state, row.epoch, row.doubt_since) == ("in_doubt", 2, 5.0)
    assert row.taken_from == dead.lease.id  # counts as a death unless that worker is heard of


@pytest.mark.parametrize("is_replayed", [False, True])
@pytest.mark.parametrize("state", [State.IN_DOUBT, State.PENDING, State.SENDING])
def test_a_lost_outcome_undoes_no_doubt_of_another_worker(
    worker: Workers, rows: Rows, standby: Standbys, state: State, is_replayed: bool
) -> None:
    """It is the older one, though its epoch is higher: the order would be sent again."""
    one, two = worker(), worker()
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    claim = claimed(one.claim(KEY, send=True))
    if is_replayed:
        assert one.finish(claim, without_event())
    before.promote(one)
    theirs = claimed(two.claim(KEY, send=True))
    if state is State.IN_DOUBT:
        assert two.finish(theirs, without_event(state, doubt_since=DAY))
    elif state is State.PENDING:
        assert two.finish(theirs, an_entry(Kind.PENDING, pending=True))
    for _ in range(2):
        one.beat()
        one.clock.advance(LEASE)
    if not is_replayed:
        assert one.finish(claim, without_event()) is False
    again = claimed(one.claim(KEY, send=True))
    assert again.history.may_be_there


@pytest.mark.parametrize("breaks", [False, True])
def test_a_lost_outcome_is_rewritten_although_another_worker_has_recorded_its_event(
    worker: Workers, rows: Rows, standby: Standbys, breaks: bool
) -> None:
    """A replay that failed would fail each time: the worker would write nothing any more."""
    one, two = worker(), worker()

    def finds_it_pending(at: Worker) -> None:
        assert at.finish(claimed(at.claim(KEY, send=True)), an_entry(Kind.PENDING, pending=True))

    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), without_event())
    finds_it_pending(one)
    before.promote(one)
    finds_it_pending(two)  # the look-up's message comes to it first
    if breaks:
        BreakingStatements(one, "take", "after")
    for _ in range(2):
        with suppress(LedgerUnavailable):
            one.beat()
    assert (rows.order().state, rows.order().epoch) == ("pending", 2)
    first, second = rows.events()
    assert (first.type, second.type) == ("pending", "pending")
    one._writer.close()  # what it replays once more is there
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    assert len(rows.events()) == 3


def test_a_lost_claim_sends_nothing(worker: Workers, standby: Standbys) -> None:
    one, two = worker(), worker()
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=False))
    before.promote(one)
    assert one.sending(claim) is None
    assert one.finish(claim, without_event())
    again = claimed(one.claim(KEY, send=True))
    assert (again.epoch, again.history.in_doubt) == (2, False)
    assert isinstance(two.claim(KEY, send=True), LeasedElsewhere)


def test_commits_are_remembered_for_as_long_as_a_standby_may_lag(worker: Workers) -> None:
    one = worker()
    for n in range(5):
        key = Key("m", f"o{n}")
        one.finish(claimed(one.claim(key, send=True)), an_entry(key=key))
        one.clock.advance(REMEMBERED / 2)
    remembered: Any = list(one._journal.batches())
    assert [each.claim.key.order_id for batch in remembered for each in batch] == ["o2", "o3", "o4"]


def test_commits_of_large_orders_are_remembered_as_far_as_their_bytes_have_room(
    worker: Workers, standby: Standbys, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", 250)
    one = worker()
    one.beat()
    before = standby()
    for n in range(5):
        key = Key("m", f"o{n}")
        one.finish(claimed(one.claim(key, send=True, order=b"x" * 100)), an_entry(key=key))
    before.promote(one)
    one.beat()
    assert [event.order_id for event in rows.events()] == ["o3", "o4"]


def test_an_event_that_another_worker_replays_at_the_same_moment_blames_no_order(
    worker: Workers, standby: Standbys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both remember it, and the second insert meets the first: the claim is only tried again."""
    one = worker()
    before = standby()
    one.record_event(KEY, an_entry(), None)
    before.promote(one)
    statements, tries = one._writer.sql, []
    write = statements.write

    def taken_at_first(cursor: Any, values: Any) -> Any:
        tries.append(values)
        if len(tries) == 1:
            raise EventIdTaken("the event_id is another event's")
        return write(cursor, values)

    monkeypatch.setattr(statements, "write", taken_at_first)
    claim = claimed(one.claim(Key("m", "another"), send=True))
    assert one.finish(claim, an_entry(key=claim.key))
    assert len(tries) > 2
