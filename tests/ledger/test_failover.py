"""A standby is promoted that lacks the last commits: workers write again what they know of.

The database is set back by hand to what it was some commits ago.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select

from pos_gateway.database.schema import events, orders, workers
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.journal import REMEMBERED
from pos_gateway.ledger.states import Action, Ended, Key, LeasedElsewhere, State
from pos_gateway.telemetry import metrics
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, untold

Workers = Callable[..., Worker]
TABLES = (orders, events, workers)


class Standby:
    """What a standby has of the database: all until it was made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with engine.connect() as connection:
            self._rows = {
                table: [dict(row._mapping) for row in connection.execute(select(table))]
                for table in TABLES
            }

    def promote(self, *workers: Worker) -> None:
        """Everything since is gone; these workers lose their connections, as all do."""
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
def test_which_pos_may_have_an_order_is_written_with_an_outcome_whose_claim_was_lost(
    worker: Workers, rows: Rows, standby: Standbys, is_fresh: bool
) -> None:
    """Else a merchant that has moved since is sent it again, at a POS that does not know it."""
    one = worker()
    if not is_fresh:
        assert one.finish(claimed(one.claim(KEY, send=False)), untold())
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=True, endpoint="here"))
    assert claim.sending or one.sending(claim, "here")
    before.promote(one)
    assert one.finish(claim, untold(State.IN_DOUBT, doubt_since=5.0))
    assert (rows.order().state, rows.order().endpoint) == ("in_doubt", "here")


def test_a_claim_under_which_an_order_was_sent_is_written_again_as_that(
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
    assert one.finish(wish, untold())
    write, tickets = one._writer.say.write, set[int]()

    def seen(*arguments: Any) -> set[int]:
        written = write(*arguments)
        tickets.update(written)
        return written

    monkeypatch.setattr(one._writer.say, "write", seen)
    assert one.finish(claim, an_entry())
    assert tickets == {claim.ticket}  # negative where it is CLAIMED


def test_an_outcome_is_written_over_an_earlier_one_that_is_all_the_database_knows_of(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one = worker()
    assert one.finish(claimed(one.claim(KEY, send=True)), untold())
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), untold())
    claim = claimed(one.claim(KEY, send=True))
    one.clock.advance(REMEMBERED + 1)
    one.finish(claimed(one.claim(Key("m", "other"), send=True)), untold())  # the rest is forgotten
    before.promote(one)
    assert one.finish(claim, an_entry())
    assert (rows.order().state, rows.order().epoch) == ("accepted", 3)
    assert len(rows.events()) == 1


@pytest.mark.parametrize("claim_is_lost", [True, False])
def test_an_outcome_that_was_lost_after_it_was_confirmed_is_written_again(
    worker: Workers, rows: Rows, standby: Standbys, claim_is_lost: bool
) -> None:
    """Its message is acknowledged: nobody would ever come back to the order."""
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


def test_several_outcomes_of_an_order_are_written_again_in_their_order(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one = worker()
    one.beat()
    before = standby()
    pending = untold(State.PENDING, event=dehydrated(KEY, Kind.PENDING))
    assert one.finish(claimed(one.claim(KEY, send=True)), pending)
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    one.tell(Key("m", "none"), an_entry(Kind.FAILED, key=Key("m", "none")), b"{}")
    before.promote(one)
    one.beat()
    assert (rows.order().state, rows.order().epoch) == ("accepted", 2)
    in_order = sorted(rows.events(), key=lambda row: row.id)
    of_it = [row.type for row in in_order if row.order_id == KEY.order_id]
    assert (of_it, len(in_order)) == (["pending", "accepted"], 3)


def test_a_connection_that_is_new_for_another_reason_changes_nothing(
    worker: Workers, rows: Rows
) -> None:
    one, two = worker(), worker()
    keys = [Key("m", f"o{n}") for n in range(4)]
    for key in keys:
        assert one.finish(claimed(one.claim(key, send=True)), untold())
    claimed(one.claim(keys[1], send=True))
    claimed(two.claim(keys[2], send=True))
    two.finish(claimed(two.claim(keys[3], send=True)), an_entry(key=keys[3]))
    before, counted = sorted(rows.orders()), restored()
    one._writer.close()
    one.beat()
    assert (sorted(rows.orders()), restored()) == (before, counted)
    assert len(rows.events()) == 1


def test_an_order_that_another_worker_has_since_is_left_to_it(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one, two = worker(), worker()
    one.beat()
    assert one.finish(claimed(one.claim(KEY, send=True)), untold())
    before = standby()
    assert one.finish(claimed(one.claim(KEY, send=True)), untold())
    late = claimed(one.claim(KEY, send=True))
    before.promote(one, two)
    theirs = claimed(two.claim(KEY, send=True))
    assert one.finish(late, untold()) is False
    assert (rows.order().owner, rows.order().epoch) == (theirs.owner, theirs.epoch)
    assert two.finish(theirs, an_entry())
    assert one.finish(late, an_entry()) is False
    assert (rows.order().state, len(rows.events())) == ("accepted", 1)


def test_what_two_workers_claimed_under_one_number_is_the_later_ones(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    one, two = worker(), worker()
    one.beat()
    before = standby()
    late = claimed(one.claim(KEY, send=True))
    before.promote(one, two)
    theirs = claimed(two.claim(KEY, send=True))
    assert theirs.epoch == late.epoch
    assert one.sending(late) is False
    assert one.finish(late, untold()) is False
    assert rows.order().state == State.SENDING  # as it was: their bytes may have left
    assert two.finish(theirs, an_entry())


def test_an_order_of_a_worker_that_died_before_the_failover_is_taken_over_again(
    worker: Workers, rows: Rows, standby: Standbys
) -> None:
    dead, one = worker(), worker()
    claimed(dead.claim(KEY, send=True))
    one.beat()
    one.clock.advance(9)
    before = standby()
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, untold(State.IN_DOUBT, doubt_since=5.0))
    before.promote(one)
    one.beat()
    row = rows.order()
    assert (row.state, row.epoch, row.doubt_since) == ("in_doubt", 2, 5.0)
    assert row.taken_from == dead.lease.id  # it counts as a death when nothing more is heard of it


def test_a_claim_that_was_lost_is_not_sent(worker: Workers, standby: Standbys) -> None:
    one, two = worker(), worker()
    one.beat()
    before = standby()
    claim = claimed(one.claim(KEY, send=False))
    before.promote(one)
    assert one.sending(claim) is False
    assert one.finish(claim, untold())
    again = claimed(one.claim(KEY, send=True))
    assert (again.epoch, again.past.in_doubt) == (2, False)
    assert isinstance(two.claim(KEY, send=True), LeasedElsewhere)


def test_no_more_is_remembered_than_a_standby_may_lag(worker: Workers) -> None:
    one = worker()
    for n in range(5):
        key = Key("m", f"o{n}")
        one.finish(claimed(one.claim(key, send=True)), an_entry(key=key))
        one.clock.advance(REMEMBERED / 2)
    remembered: Any = list(one._journal.batches())
    assert [each.claim.key.order_id for batch in remembered for each in batch] == ["o2", "o3", "o4"]
