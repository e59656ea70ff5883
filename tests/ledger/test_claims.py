"""Which worker owns an order, and until when."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from sqlalchemy import Engine, update

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders, workers
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.batch import NEVER_COMMITTED_AFTER, Claiming, Finishing, Sending
from pos_gateway.ledger.commits import GroupCommit
from pos_gateway.ledger.commits import _Waiting as Waiting
from pos_gateway.ledger.lease import BEAT, DEAD, LEASE, MARGIN
from pos_gateway.ledger.ledger import FORGOTTEN
from pos_gateway.ledger.states import (
    SUSPECT,
    Abandoned,
    Action,
    AttemptHistory,
    Ended,
    Entry,
    Key,
    LeasedElsewhere,
    State,
    Suspected,
)
from pos_gateway.runtime.clock import STEP
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]


def test_a_fresh_orders_claim_marks_it_as_sending(worker: Workers, rows: Rows) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True, deliver_by=DAY + 60, order=b'{"a": 1}'))
    assert (claim.sending, claim.epoch, claim.history) == (True, 1, AttemptHistory())
    assert one.holds(claim)
    row = rows.order()
    assert (row.state, row.owner, row.epoch) == (State.SENDING, claim.owner, 1)
    assert (row.deliver_by, row.payload) == (DAY + 60, '{"a": 1}')
    assert row.created_at <= DAY  # PostgreSQL's clock may say that this is in the future
    assert one.order(KEY) == b'{"a": 1}'


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_row_is_as_old_as_the_databases_clock_says_whatever_the_workers(
    postgresql_url: str, hours: int
) -> None:
    """A key that the POS has forgotten would count as young, and the order be sent with it again."""
    engine = open_database(postgresql_url)
    one, two = Worker(engine), Worker(engine)
    one.clock.of_day = time.time() + 3600 * hours
    two.clock.of_day = time.time() - 3600
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.IN_DOUBT, doubt_since=1.0))
    with engine.begin() as connection:
        connection.execute(update(orders).values(created_at=orders.c.created_at - 900))
    known_for = claimed(two.claim(KEY, send=True)).history.known_for
    assert known_for is not None and known_for > 900 - 61
    engine.dispose()


def test_a_fresh_order_claimed_without_sending_is_claimed_only(worker: Workers, rows: Rows) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=False))
    assert not claim.sending
    assert rows.order().state == State.CLAIMED
    sending = one.sending(claim, "here")
    assert sending == claim._replace(sending=True, endpoint="here")
    assert rows.order().state == State.SENDING


def test_an_order_is_new_to_one_worker_alone(worker: Workers) -> None:
    """However often it is claimed; a cancel request is no order."""
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    two.claim(KEY, send=True)
    one.finish(claim, without_event())
    claimed(two.claim(KEY, send=True))
    claimed(two.claim(replace(KEY, action=Action.CANCEL), send=True))
    claimed(two.claim(Key("m", "o2"), send=False))
    assert (one.new_orders, two.new_orders) == (1, 1)


def test_an_orders_endpoint_stays_in_its_row_until_it_is_sent_to_another(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    in_doubt = without_event(State.IN_DOUBT, doubt_since=DAY)
    assert one.finish(claimed(one.claim(KEY, send=True, endpoint="here")), in_doubt)
    claim = claimed(one.claim(KEY, send=True, endpoint="there"))
    assert (claim.history.endpoint, rows.order().endpoint) == ("here", "here")
    assert one.sending(claim, "there")
    assert rows.order().endpoint == "there"


def test_an_order_and_its_cancel_request_are_claimed_separately(worker: Workers) -> None:
    one, cancelling = worker(), replace(KEY, action=Action.CANCEL)
    claimed(one.claim(KEY, send=True, order=b"{}"))
    claimed(one.claim(cancelling, send=False))
    assert one.order(cancelling) == b"{}"  # a cancel request reads its order


def test_an_order_is_claimed_as_to_be_cancelled_while_its_cancel_request_is_open(
    worker: Workers,
) -> None:
    one, cancel = worker(), replace(KEY, action=Action.CANCEL)

    def is_to_be_cancelled() -> bool:
        claim = claimed(one.claim(KEY, send=True))
        one.finish(claim, without_event())
        return claim.history.cancelling

    one.finish(claimed(one.claim(KEY, send=True)), without_event())
    of_another = replace(cancel, order_id="another")
    claimed(one.claim(of_another, send=False, deliver_by=DAY + 60))
    assert not is_to_be_cancelled()
    wish = claimed(one.claim(cancel, send=False, deliver_by=DAY + 60))
    assert is_to_be_cancelled()
    assert one.sending(wish)
    assert is_to_be_cancelled()
    one.finish(wish, without_event())
    assert is_to_be_cancelled()
    one.clock.advance(60)  # no worker retries either of them any more
    assert not is_to_be_cancelled()


@pytest.mark.parametrize(
    ("of", "seconds", "end", "is_sent"),
    [
        ("o1", 60, State.NEW, False),
        ("o1", 60, None, False),  # a worker has it in flight
        ("o1", -1, State.NEW, True),
        ("o1", 60, State.EXPIRED, True),
        ("another", 60, State.NEW, True),
    ],
)
def test_a_fresh_order_is_not_sent_while_its_request_is_open(
    worker: Workers, rows: Rows, of: str, seconds: float, end: State | None, is_sent: bool
) -> None:
    """It came first, and could not claim the order while the database was unavailable."""
    one = worker()
    cancel = replace(KEY, order_id=of, action=Action.CANCEL)
    wish = claimed(one.claim(cancel, send=False, deliver_by=DAY + seconds))
    if end is not None:
        one.finish(wish, without_event(end))
    fresh = [one.claim(KEY, send=True), one.claim(replace(KEY, order_id="o2"), send=True)]
    claim, other = map(claimed, fresh)
    assert (claim.sending, claim.history.cancelling, claim.epoch) == (is_sent, not is_sent, 1)
    assert rows.order().state == (State.SENDING if is_sent else State.CLAIMED)
    assert (other.sending, other.history) == (True, AttemptHistory())
    assert one.finish(claim, without_event())
    assert claimed(one.claim(KEY, send=True)).history.cancelling is not is_sent


def test_many_fresh_orders_are_claimed_in_one_transaction(worker: Workers) -> None:
    one = worker()
    for n in (1, 3):
        cancel = Key("m", f"o{n}", Action.CANCEL)
        one.finish(claimed(one.claim(cancel, send=False, deliver_by=DAY + 60)), without_event())
    keys = [Key("m", f"o{n}") for n in range(5)]
    claims = one.together(
        *(Claiming(key, one.ticket(), key.order_id != "o4", DAY + 60, None) for key in keys)
    )
    assert [claimed(each).sending for each in claims] == [True, False, True, False, False]
    assert [each.history.cancelling for each in claims] == [False, True, False, True, False]


@pytest.mark.parametrize("end", [State.CANCELLED, State.REJECTED, State.FAILED, State.EXPIRED])
def test_a_terminal_cancel_request_does_not_delay_an_order(worker: Workers, end: State) -> None:
    one, cancel = worker(), replace(KEY, action=Action.CANCEL)
    one.finish(claimed(one.claim(KEY, send=True)), without_event())
    one.finish(claimed(one.claim(cancel, send=False, deliver_by=DAY + 60)), without_event(end))
    assert not claimed(one.claim(KEY, send=True)).history.cancelling


def test_a_claimed_order_is_leased_elsewhere(worker: Workers) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    assert one.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)


def test_a_terminal_orders_claim_returns_its_outcome(worker: Workers) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    entry = an_entry(
        Kind.REJECTED, reason=Reason("sold_out", "no more"), external_id="x-1", attempts=3
    )
    assert one.finish(claim, entry)
    ended = two.claim(KEY, send=True)
    assert isinstance(ended, Ended)
    assert ended.outcome == Outcome(Kind.REJECTED, Reason("sold_out", "no more"), "x-1")
    assert (ended.at, ended.history.attempts, ended.history.last_event) == (DAY, 3, "rejected")


def test_a_retried_order_is_claimed_with_its_attempt_history(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    event = an_entry(Kind.IN_DOUBT).event
    one.finish(
        claim,
        without_event(State.IN_DOUBT, attempts=2, doubt_since=DAY - 5, pending=True, event=event),
    )
    claim = claimed(two.claim(KEY, send=True, order=b"{}", deliver_by=DAY))
    history = replace(claim.history, settling=None)
    assert history == AttemptHistory(2, 0, pytest.approx(DAY - 5), True, "in_doubt", 0)
    assert (claim.sending, claim.epoch) == (False, 2)
    row = rows.order()
    assert (row.state, row.payload, row.deliver_by) == (State.CLAIMED, "{}", DAY)
    assert row.doubt_since == pytest.approx(DAY - 5)


def test_the_first_payload_of_an_order_stays(worker: Workers, rows: Rows) -> None:
    one = worker()
    one.finish(claimed(one.claim(KEY, send=True, order=b"{1}", deliver_by=DAY)), without_event())
    claimed(one.claim(KEY, send=True, order=b"{2}", deliver_by=DAY + 1))
    assert (rows.order().payload, rows.order().deliver_by) == ("{1}", DAY)


# A lease


def test_a_claim_holds_until_a_margin_before_its_lease_expires(worker: Workers) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    one.clock.advance(LEASE - MARGIN - 0.01)
    assert one.holds(claim)
    one.clock.advance(0.01)
    assert not one.holds(claim)


def test_a_renewed_lease_does_not_expire(worker: Workers) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    for _ in range(20):
        for each in (one, two):
            each.clock.advance(BEAT)
        one.beat()
        assert one.holds(claim)
        assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)


def test_others_wait_for_a_whole_lease_since_they_first_saw_it(worker: Workers) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    two.clock.advance(3 * LEASE)  # it did not run, and saw nothing
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    two.clock.advance(LEASE - 0.01)
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    two.clock.advance(0.01)
    claimed(two.claim(KEY, send=True))


@pytest.mark.parametrize("step", [3600.0, -3600.0, STEP])
def test_a_step_of_the_wall_clock_lets_no_worker_take_over(worker: Workers, step: float) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    two.beat()
    for each in (one, two):
        each.clock.of_day += step
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    assert one.finish(claim, an_entry())


@pytest.mark.parametrize("step", [60.0, -60.0, STEP])
def test_a_worker_whose_clocks_disagree_claims_again_before_it_sends(
    worker: Workers, step: float
) -> None:
    """Its monotonic clock may have stood still with the machine, while others took over."""
    one = worker()
    lost = claimed(one.claim(KEY, send=True))
    one.clock.of_day += step
    assert not one.holds(lost)
    claim = claimed(one.claim(Key("m", "o2"), send=True))  # in the transaction of its next renewal
    assert (one.holds(lost), one.holds(claim)) == (False, True)


def test_a_slewed_wall_clock_costs_no_claim(worker: Workers) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    for _ in range(20):
        one.clock.advance(BEAT)
        one.clock.of_day += 0.1  # five seconds in a hundred: faster than any NTP slew
        one.beat()
        assert one.holds(claim)


def test_a_suspended_worker_holds_no_order_that_was_taken_over(worker: Workers) -> None:
    """Where the monotonic clock stands still with the machine, only the time of day advanced."""
    one, two = worker(), worker()
    lost = claimed(one.claim(KEY, send=True))
    two.beat()
    two.clock.advance(LEASE)
    claimed(two.claim(KEY, send=True))
    one.clock.of_day += LEASE
    assert not one.holds(lost)
    one.beat()
    assert not one.holds(lost)


def test_a_worker_that_was_paused_after_reading_the_leases_takes_over_nothing(
    worker: Workers,
) -> None:
    """What it read is old: the holder renewed its lease meanwhile."""
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    two.beat()
    leases = two._writer.sql.leases

    def look_and_be_paused(cursor: Any) -> Any:
        found = leases(cursor)
        two.clock.advance(10 * LEASE)
        return found

    for each in (one, two):
        each.clock.advance(module.LOOK)
    two._writer.sql.leases = look_and_be_paused  # type: ignore[method-assign]
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)


def test_a_lease_younger_than_the_last_read_is_not_taken_for_a_released_one(
    worker: Workers,
) -> None:
    two = worker()
    two.beat()  # it reads the leases, and is alone
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    assert one.holds(claim)


def test_a_released_lease_frees_its_orders_at_the_next_read(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=False))
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    one.close()
    one.close()
    assert not one.holds(claim)  # before another worker may act on it
    assert claim.owner not in rows.leases()
    two.clock.advance(module.LOOK)
    claimed(two.claim(KEY, send=True))


def test_an_unknown_released_lease_frees_its_orders_at_once(worker: Workers, rows: Rows) -> None:
    """And the worker that stopped has not died."""
    one, two = worker(), worker()
    two.beat()
    before = claimed(one.claim(KEY, send=False))
    one.close()
    claim = claimed(two.claim(KEY, send=True))
    assert (claim.epoch, claim.history) == (before.epoch + 1, AttemptHistory())
    assert (rows.order().owner, rows.order().deaths) == (two.lease.id, 0)


def test_a_long_expired_lease_is_deleted_and_its_orders_are_free(
    worker: Workers, rows: Rows
) -> None:
    one, two, three = worker(), worker(), worker()
    claimed(one.claim(KEY, send=True))
    two.beat()
    two.clock.advance(module.FORGOTTEN * LEASE + 1)
    two.beat()
    assert rows.leases() == {two.lease.id}
    assert claimed(three.claim(KEY, send=True)).history.in_doubt


def test_a_renewal_that_commits_after_expiry_does_not_revive_the_lease(
    worker: Workers,
) -> None:
    one = worker()
    lost = claimed(one.claim(KEY, send=True))
    beat = one._writer.sql.beat

    def late(*arguments: Any) -> bool:
        written = beat(*arguments)
        one.clock.advance(1)
        return written

    one._writer.sql.beat = late  # type: ignore[method-assign]
    one.clock.advance(LEASE - MARGIN - 0.5)
    one.beat()
    assert not one.holds(lost)
    claim = claimed(one.claim(Key("m", "o2"), send=True))
    assert (one.holds(lost), one.holds(claim)) == (False, True)


def away(*workers: Worker, seconds: float) -> None:
    """The database is unavailable for this long, and each worker retries every second."""
    for each in workers:
        write = each._writer.write

        def refuse(_do: Any) -> Any:
            raise LedgerUnavailable("the database is away")

        each._writer.write = refuse  # type: ignore[method-assign]
        for _ in range(int(seconds)):
            with pytest.raises(LedgerUnavailable):
                each.beat()
            each.clock.advance(1)
        each._writer.write = write  # type: ignore[method-assign]


def test_no_lease_expires_for_others_while_the_database_is_unavailable(
    worker: Workers, rows: Rows
) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=True))
    two.beat()
    away(one, two, seconds=3 * LEASE)
    assert two.claim(KEY, send=True) == LeasedElsewhere(claim.owner)
    assert not one.holds(claim)  # it sends nothing more under the claim, but an outcome counts
    assert one.finish(claim, an_entry())
    assert rows.order().deaths == 0


def test_a_worker_that_goes_on_under_another_lease_has_not_died(worker: Workers) -> None:
    """However often its database is unavailable: its orders are not poison."""
    one, two = worker(), worker()
    for _ in range(3):
        claim = claimed(one.claim(KEY, send=False))
        two.beat()
        away(one, two, seconds=2 * LEASE)
        one.beat()
        over(one, two)
        claim = claimed(two.claim(KEY, send=False))
        assert claim.history.deaths == 0
        two.finish(claim, without_event())


# Taking over


def over(worker: Worker, others: Worker) -> None:
    """Let the worker's lease expire for these others."""
    others.beat()
    others.clock.advance(LEASE)
    worker.clock.advance(LEASE)


def test_an_order_found_in_sending_is_in_doubt(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    claimed(one.claim(KEY, send=True))
    over(one, two)
    claim = claimed(two.claim(KEY, send=True))
    since = two.clock.of_day
    assert (claim.history.doubt_since, claim.history.possible_deaths, claim.epoch) == (since, 1, 2)
    assert not claim.sending
    assert rows.order().state == State.CLAIMED
    assert (rows.order().doubt_since, rows.order().taken_from) == (since, one.lease.id)


def test_an_order_found_claimed_is_not_in_doubt(worker: Workers) -> None:
    one, two = worker(), worker()
    claimed(one.claim(KEY, send=False))
    over(one, two)
    claim = claimed(two.claim(KEY, send=True))
    assert not claim.history.in_doubt
    assert claim.history.possible_deaths == 1


def test_a_doubt_is_not_forgotten_by_operator_died_before_sending(
    worker: Workers,
) -> None:
    one, two, three = worker(), worker(), worker()
    claimed(one.claim(KEY, send=True))
    over(one, two)
    doubt = claimed(two.claim(KEY, send=True)).history.doubt_since
    over(two, three)
    history = claimed(three.claim(KEY, send=True)).history
    assert (history.doubt_since, history.possible_deaths) == (doubt, 2)


def test_an_order_that_is_sent_again_is_in_doubt_since_the_first_time(
    worker: Workers, rows: Rows
) -> None:
    one, two, three = worker(), worker(), worker()
    claimed(one.claim(KEY, send=True))
    over(one, two)
    assert two.sending(claimed(two.claim(KEY, send=True)))
    first = two.clock.of_day
    two.clock.advance(100)
    three.clock.of_day = two.clock.of_day
    over(two, three)
    claim = claimed(three.claim(KEY, send=True))
    assert claim.history.doubt_since == three.clock.of_day
    assert rows.order().in_doubt_since == first
    three.clock.advance(100)
    again = without_event(State.IN_DOUBT, doubt_since=three.clock.of_day)
    assert three.finish(claim, again)
    assert (rows.order().doubt_since, rows.order().in_doubt_since) == (again.doubt_since, first)
    assert three.finish(claimed(three.claim(KEY, send=True)), without_event())
    assert (rows.order().doubt_since, rows.order().in_doubt_since) == (None, None)


def test_a_suspect_is_claimed_by_who_wants_it_alone(worker: Workers, rows: Rows) -> None:
    one, two, three = worker(), worker(), worker()
    claimed(one.claim(KEY, send=True))
    over(one, two)
    claim = claimed(two.claim(KEY, send=True, unless_suspect=True))
    assert claim.history.possible_deaths == SUSPECT - 1
    over(two, three)
    assert three.claim(KEY, send=True, unless_suspect=True) == Suspected(SUSPECT)
    left = rows.order()
    assert (left.state, left.owner) == (State.IN_DOUBT, None)
    assert three.claim(KEY, send=True, unless_suspect=True) == Suspected(SUSPECT)
    assert rows.order() == left
    claim = claimed(three.claim(KEY, send=True))
    assert claim.history.possible_deaths == SUSPECT
    assert three.finish(claim, without_event())
    assert three.claim(KEY, send=True, unless_suspect=True) == Suspected(SUSPECT)


@pytest.mark.parametrize("action", Action)
def test_a_suspect_that_waits_for_long_stays_one(
    worker: Workers, rows: Rows, action: Action
) -> None:
    """Its dead workers' leases are forgotten meanwhile."""
    one, two, three = worker(), worker(), worker()
    key = replace(KEY, action=action)
    assert one.sending(claimed(one.claim(key, send=False)))
    over(one, two)
    claimed(two.claim(key, send=False))
    over(two, three)
    assert three.claim(key, send=False, unless_suspect=True) == Suspected(SUSPECT)
    left, since = rows.order(key), three.clock.monotonic()
    assert (left.state, left.owner) == ("new" if action is Action.CANCEL else "in_doubt", None)
    for seconds in (DEAD * LEASE, (FORGOTTEN + 2) * LEASE):
        pass_time(three, seconds=seconds)
        assert three.claim(key, send=False, unless_suspect=True) == Suspected(SUSPECT)
    assert len(rows.leases()) == 1
    history = claimed(three.claim(key, send=False)).history
    assert (history.deaths, history.taken_from) == (SUSPECT, ())
    assert history.doubt_since == left.doubt_since
    assert history.settled == three.clock.monotonic() - since


def pass_time(*workers: Worker, seconds: float) -> None:
    """These workers live on for this long, and read the others' leases."""
    for _ in range(int(seconds)):
        for each in workers:
            each.clock.advance(1)
            each.beat()


def test_a_death_is_counted_once_a_pause_is_ruled_out(worker: Workers, rows: Rows) -> None:
    last, gone = worker(), [worker() for _ in range(3)]
    for each in gone:
        claim = claimed(each.claim(KEY, send=False))
        pass_time(last, *gone[gone.index(each) + 1 :], seconds=LEASE + module.LOOK)
    claim = claimed(last.claim(KEY, send=False))
    # The first has been silent for three leases, the second for two, the third for one.
    assert (claim.history.deaths, claim.history.possible_deaths) == (1, 3)
    for deaths in (2, 3, 3):
        last.finish(claim, without_event())
        pass_time(last, seconds=LEASE)
        claim = claimed(last.claim(KEY, send=False))
        assert (claim.history.deaths, claim.history.possible_deaths) == (deaths, 3)
    assert (rows.order().deaths, rows.order().taken_from) == (3, None)


def test_paused_workers_are_not_counted_as_dead(worker: Workers, rows: Rows) -> None:
    """Each goes on before the next one is paused: they are no deaths, now or later."""
    workers = [worker() for _ in range(5)]
    claim = claimed(workers[0].claim(KEY, send=True))
    for paused, after in pairwise(workers):
        others = [each for each in workers if each is not paused]
        pass_time(*others, seconds=LEASE + module.LOOK)
        paused.clock.advance(LEASE)
        claim = claimed(after.claim(KEY, send=True))
        assert claim.history.possible_deaths == 1
        paused.beat()
        assert after.sending(claim)
    pass_time(*workers, seconds=DEAD * LEASE)
    assert workers[-1].finish(claim, without_event())
    history = claimed(workers[0].claim(KEY, send=False)).history
    assert (history.deaths, history.taken_from) == (0, ())


def test_a_worker_that_was_paused_and_then_stopped_has_not_died(
    worker: Workers, rows: Rows
) -> None:
    one, two = worker(), worker()
    claimed(one.claim(KEY, send=False))
    over(one, two)
    claim = claimed(two.claim(KEY, send=False))
    one.beat()
    one.close()
    assert not {each for each in rows.leases() if one.lease.is_ours(each)}
    two.finish(claim, without_event())
    pass_time(two, seconds=DEAD * LEASE)
    assert claimed(two.claim(KEY, send=False)).history.possible_deaths == 0


def test_a_new_worker_waits_before_it_counts_deaths(worker: Workers) -> None:
    one, two, three = worker(), worker(), worker()
    claimed(one.claim(KEY, send=False))
    over(one, two)
    two.finish(claimed(two.claim(KEY, send=False)), without_event())
    for seconds, deaths in ((0, 0), (DEAD * LEASE - 1, 0), (1, 1)):
        pass_time(two, three, seconds=seconds)
        claim = claimed(three.claim(KEY, send=False))
        assert (claim.history.deaths, claim.history.possible_deaths) == (deaths, 1)
        three.finish(claim, without_event())


# The time that a POS has had


def in_doubt(worker: Worker, at: float | None = None) -> float:
    """The worker has sent the order, without a reply. When, by its time of day."""
    since = worker.clock.of_day if at is None else at
    claim = claimed(worker.claim(KEY, send=True))
    sending = claim if claim.sending else worker.sending(claim)
    assert sending is not None
    worker.finish(sending, without_event(State.IN_DOUBT, doubt_since=since))
    return since


def looked(worker: Worker) -> AttemptHistory:
    """The worker's attempt history of the order; it releases the order unchanged."""
    claim = claimed(worker.claim(KEY, send=False))
    history = claim.history
    worker.finish(claim, without_event(State.IN_DOUBT, doubt_since=history.doubt_since))
    return history


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 15.0, 3600.0])
def test_the_settling_time_is_not_counted_on_the_wall_clock(worker: Workers, skew: float) -> None:
    one, two = worker(), worker()
    two.clock.of_day += skew
    two.clock.seconds += 5000  # another machine's, which was booted earlier
    in_doubt(one)
    for seconds in range(5):
        assert looked(one).settled == seconds
        # Another worker knows for certain what the first one's clock showed at its last renewal.
        assert seconds - BEAT <= looked(two).settled <= seconds
        one.clock.of_day += 600  # stepped
        pass_time(one, two, seconds=1)


def test_the_settling_time_goes_on_when_its_worker_dies(worker: Workers) -> None:
    one, two, three = worker(), worker(), worker()
    in_doubt(one)
    pass_time(one, two, three, seconds=4)
    pass_time(two, three, seconds=LEASE + module.LOOK)  # the first one is dead
    known = looked(two).settled
    assert 4 - BEAT <= known <= 4
    pass_time(two, three, seconds=6)
    assert looked(two).settled == known + 6
    assert known + 6 - BEAT <= looked(three).settled <= known + 6


def test_the_settling_time_restarts_when_it_is_unknown(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    in_doubt(one)
    pass_time(one, two, seconds=6)
    one.close()
    pass_time(two, seconds=2)
    assert looked(two).settled == 0.0
    pass_time(two, seconds=3)
    assert looked(two).settled == 3.0


def test_the_settling_time_restarts_when_the_order_is_sent_again(worker: Workers) -> None:
    one = worker()
    in_doubt(one)
    pass_time(one, seconds=20)
    assert looked(one).settled == 20.0
    in_doubt(one, at=DAY - 600)  # the time of day was stepped back meanwhile
    assert looked(one).settled == 0.0


def test_the_settling_time_restarts_when_the_order_is_taken_over(worker: Workers) -> None:
    one, two = worker(), worker()
    in_doubt(one)
    pass_time(one, two, seconds=20)
    assert one.sending(claimed(one.claim(KEY, send=True)))
    pass_time(two, seconds=LEASE)
    assert looked(two).settled == 0.0


def test_the_settling_time_restarts_for_a_doubt_that_an_earlier_release_wrote(
    worker: Workers, engine: Engine
) -> None:
    one = worker()
    in_doubt(one)
    pass_time(one, seconds=20)
    with engine.begin() as connection:
        connection.execute(update(orders).values(doubt_since=DAY - 1))
    assert looked(one).settled == 0.0


def test_the_settling_time_restarts_if_the_worker_is_of_an_earlier_release(
    worker: Workers, engine: Engine
) -> None:
    one, two = worker(), worker()
    in_doubt(one)
    with engine.begin() as connection:
        connection.execute(update(workers).values(clock=None))
    two.clock.advance(20)
    two.beat()
    assert looked(two).settled == 0.0


def test_a_worker_that_was_taken_over_can_write_nothing(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    lost = claimed(one.claim(KEY, send=False))
    over(one, two)
    claim = claimed(two.claim(KEY, send=True))
    assert one.sending(lost) is None
    assert one.finish(lost, an_entry()) is False
    assert rows.events() == []
    assert (rows.order().state, rows.order().owner) == (State.CLAIMED, claim.owner)
    assert two.sending(claim)
    assert one.finish(lost, an_entry()) is False
    assert two.finish(claim, an_entry())
    assert one.finish(lost, without_event(State.IN_DOUBT)) is False
    assert one.finish(lost, an_entry()) is False  # it has ended, but not by this worker
    assert one.sending(lost) is None
    assert rows.order().state == State.ACCEPTED
    assert [row.type for row in rows.events()] == ["accepted"]


def test_an_outcome_that_was_written_stays(worker: Workers, rows: Rows) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, an_entry())
    assert one.finish(claim, an_entry(Kind.REJECTED)) is False
    assert one.finish(claim, without_event()) is False
    assert (rows.order().state, len(rows.events())) == (State.ACCEPTED, 1)


def test_a_lease_counts_from_before_its_renewal_was_written(worker: Workers) -> None:
    one = worker()
    beat = one._writer.sql.beat

    def slowly(*arguments: Any) -> bool:
        written = beat(*arguments)
        one.clock.advance(LEASE - MARGIN)  # the database is slow
        return written

    one._writer.sql.beat = slowly  # type: ignore[method-assign]
    assert not one.holds(claimed(one.claim(KEY, send=True)))


def test_a_worker_that_was_not_taken_over_writes_its_outcome_however_late(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    one.clock.advance(10 * LEASE)
    one.beat()
    assert not one.holds(claim)
    assert one.finish(claim, an_entry())
    assert rows.order().state == State.ACCEPTED


def test_a_worker_whose_lease_expired_goes_on_under_a_new_id(worker: Workers, rows: Rows) -> None:
    one = worker()
    lost = claimed(one.claim(KEY, send=False))
    one.clock.advance(LEASE)
    one.beat()
    assert not one.holds(lost)
    other = Key("m", "o2")
    claim = claimed(one.claim(other, send=True))
    assert one.holds(claim)
    assert claim.owner != lost.owner
    assert rows.leases() == {lost.owner, claim.owner}
    assert not one.holds(lost)


def test_a_worker_does_not_take_over_its_own_order_in_flight(
    worker: Workers,
) -> None:
    one = worker()
    lost = claimed(one.claim(KEY, send=True))
    one.clock.advance(LEASE)
    one.beat()
    one.clock.advance(LEASE)
    assert one.claim(KEY, send=True) == LeasedElsewhere(lost.owner)


@pytest.mark.parametrize("kept", [True, False])
def test_an_outcome_may_keep_the_orders_reason(worker: Workers, rows: Rows, kept: bool) -> None:
    one, blind = worker(), Reason("blind", "this POS cannot be asked")
    first = without_event(State.IN_DOUBT, doubt_since=DAY, reason=blind)
    one.finish(claimed(one.claim(KEY, send=True)), first)
    one.finish(claimed(one.claim(KEY, send=False)), replace(first, reason=None, keeps_reason=kept))
    row = rows.order()
    assert (row.reason_code, row.reason_message) == (
        (blind.code, blind.message) if kept else (None, None)
    )


# Abandoned claims


def test_an_abandoned_order_is_resumed_by_the_same_worker(worker: Workers) -> None:
    one, two = worker(), worker()
    claim = claimed(one.claim(KEY, send=False))
    with pytest.raises(KeyboardInterrupt), one.using(claim):
        raise KeyboardInterrupt
    assert isinstance(two.claim(KEY, send=True), LeasedElsewhere)
    claim = claimed(one.claim(KEY, send=True))
    assert (claim.history, claim.epoch) == (AttemptHistory(), 2)
    assert isinstance(one.claim(KEY, send=True), LeasedElsewhere)
    assert one.abandoned == {}


@pytest.mark.parametrize("sent", [True, False])
def test_an_abandoned_claim_is_in_doubt_if_bytes_may_have_left(worker: Workers, sent: bool) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    one.abandon(claim, sent=sent)
    one.abandon(claim, sent=not sent)  # the first caller to abandon it knows best
    history = claimed(one.claim(KEY, send=True)).history
    assert history.in_doubt is sent
    assert history.deaths == 0


def test_an_abandoned_claim_that_was_taken_over_can_write_nothing(worker: Workers) -> None:
    one = worker()
    lost = claimed(one.claim(KEY, send=True))
    one.abandon(lost, sent=True)
    claimed(one.claim(KEY, send=True))
    assert one.finish(lost, an_entry()) is False


def test_an_abandoned_order_is_resumed_also_after_its_lease_expired(
    worker: Workers,
) -> None:
    one = worker()
    one.abandon(claimed(one.claim(KEY, send=True)), sent=False)
    one.clock.advance(LEASE)
    assert claimed(one.claim(KEY, send=True)).history == AttemptHistory()


@pytest.mark.parametrize("gives_back", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (without_event(State.IN_DOUBT, doubt_since=DAY), "in_doubt"),
        (without_event(State.PENDING, pending=True), "pending"),
        (an_entry(Kind.IN_DOUBT, pending=True), "in_doubt"),
        (without_event(State.NEW, reason=Reason("http_503", "later")), "new"),
    ],
)
def test_an_abandoned_claim_is_released_if_no_message_arrives(
    worker: Workers, rows: Rows, before: Entry, after: str, gives_back: bool
) -> None:
    one, two = worker(), worker()
    one.finish(claimed(one.claim(KEY, send=True, deliver_by=DAY + 9)), before)
    was = rows.order()
    lost = claimed(one.claim(KEY, send=True))
    one.abandon(lost, sent=False)
    one.clock.advance(BEAT)
    if gives_back:
        one.close()
    else:
        one.beat()
        assert one.abandoned == {}
    row = rows.order()
    assert (row.state, row.owner) == (after, None)
    kept = ("doubt_since", "settling", "pending", "told", "deliver_by", "attempts", "reason_code")
    assert [getattr(row, each) for each in kept] == [getattr(was, each) for each in kept]
    assert one.finish(lost, an_entry()) is False
    history = claimed(two.claim(KEY, send=True)).history
    assert (history.in_doubt, history.pending) == (before.doubt_since is not None, before.pending)
    assert (history.deaths, history.taken_from) == (0, ())


@pytest.mark.parametrize("sent", [True, False])
def test_a_released_order_is_in_doubt_from_then_on_if_bytes_may_have_left(
    worker: Workers, rows: Rows, sent: bool
) -> None:
    one, two = worker(), worker()
    one.abandon(claimed(one.claim(KEY, send=True)), sent=sent)
    one.clock.advance(BEAT)
    one.beat()
    assert rows.order().state == ("in_doubt" if sent else "new")
    one.clock.advance(BEAT)
    one.beat()
    history = claimed(two.claim(KEY, send=True)).history
    assert (history.in_doubt, history.settled) == (sent, BEAT if sent else 0.0)


def test_a_released_request_to_cancel_is_open(worker: Workers, rows: Rows) -> None:
    one, cancel = worker(), Key("m", "o1", Action.CANCEL)
    one.finish(
        claimed(one.claim(cancel, send=False, deliver_by=DAY + 9)), without_event(doubt_since=DAY)
    )
    one.abandon(claimed(one.claim(cancel, send=False)), sent=False)
    one.clock.advance(BEAT)
    one.beat()
    row = rows.order(cancel)
    assert (row.state, row.owner, row.deliver_by) == ("new", None, DAY + 9)
    assert row.doubt_since == DAY


def test_a_changed_order_is_not_released(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    ended, taken, resumed, kept = (Key("m", each) for each in "abcd")
    claims = {key: claimed(one.claim(key, send=True)) for key in (ended, taken, resumed, kept)}
    assert one.finish(claims[ended], an_entry(key=ended))
    over(one, two)
    claimed(two.claim(taken, send=True))
    for key in (ended, taken, resumed):
        one.abandon(claims[key], sent=True)
    claimed(one.together(claiming(one, resumed))[0])
    one.clock.advance(LEASE)
    one.beat()
    states = {row.order_id: (row.state, bool(row.owner), row.epoch) for row in rows.orders()}
    assert states == {
        "a": ("accepted", False, 1),
        "b": ("claimed", True, 2),
        "c": ("claimed", True, 2),
        "d": ("sending", True, 1),
    }


def test_a_renewal_releases_a_bounded_number_of_claims(
    worker: Workers, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELEASED", 2)
    one = worker()
    for n in range(3):
        one.abandon(claimed(one.claim(Key("m", f"o{n}"), send=True)), sent=False)
    for left in (1, 0):
        one.clock.advance(BEAT)
        one.beat()
        assert len(one.abandoned) == left
        assert sum(row.state == "sending" for row in rows.orders()) == left


def test_a_claim_that_may_still_be_written_is_not_forgotten(worker: Workers, rows: Rows) -> None:
    """Its green thread was killed before its transaction began."""
    one = worker()
    late = claiming(one)
    one.abandoned[late.ticket] = Abandoned(KEY, False, one.clock.monotonic())
    one.clock.advance(NEVER_COMMITTED_AFTER - BEAT)
    one.beat()
    one.together(late)
    one.clock.advance(BEAT)
    one.beat()
    assert (rows.order().state, one.abandoned) == ("new", {})


@pytest.mark.parametrize("is_queued", [True, False])
def test_a_claim_with_a_write_in_flight_is_not_released(
    worker: Workers, rows: Rows, is_queued: bool
) -> None:
    """Its green thread was killed while its outcome waited for a transaction, or was in one."""
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    one.abandon(claim, sent=True)
    finishing = Finishing(claim, an_entry())
    one.clock.advance(BEAT)
    if is_queued:
        one._group = GroupCommit(one._write)
        one._group._waiting.append(Waiting(finishing, inf))
        one.beat()
        one._group = None
    assert one.together(finishing) == [True]
    assert rows.order().state == "accepted"
    one.clock.advance(NEVER_COMMITTED_AFTER)
    one.beat()
    assert (rows.order().state, one.abandoned) == ("accepted", {})


def test_a_process_without_a_beat_leaves_nothing_to_take_over(worker: Workers, rows: Rows) -> None:
    """A synchronous worker's parent: its abandoned claim would count as the death of a worker."""
    one, two = worker(), worker()
    one.abandon(claimed(one.claim(KEY, send=False)), sent=False)
    one.release()
    assert (rows.leases(), rows.order().owner, one.abandoned) == (set(), None, {})
    assert not one._writer.is_connected
    assert claimed(two.claim(KEY, send=True)).history.possible_deaths == 0
    claimed(one.claim(Key("m", "other"), send=False))
    assert rows.leases() == {one.lease.id, two.lease.id}


def test_another_workers_claim_with_the_same_ticket_is_not_released(worker: Workers) -> None:
    """Every worker's tickets begin at one."""
    one, two = worker(), worker()
    never_written = one.ticket()
    one.abandoned[never_written] = Abandoned(KEY, False, one.clock.monotonic())
    claim = claimed(two.claim(KEY, send=True))
    assert claim.ticket == never_written
    one.clock.advance(BEAT)
    one.beat()
    assert two.finish(claim, an_entry())


def test_a_claim_that_was_never_written_is_forgotten(worker: Workers) -> None:
    one = worker()
    one.abandoned[one.ticket()] = Abandoned(KEY, False, one.clock.monotonic())
    one.clock.advance(NEVER_COMMITTED_AFTER)
    one.beat()
    assert one.abandoned == {}


# Many in one transaction


def claiming(worker: Worker, key: Key = KEY, *, send: bool = True) -> Claiming:
    return Claiming(key, worker.ticket(), send, None, None)


def test_one_of_two_claims_in_a_transaction_wins(worker: Workers, rows: Rows) -> None:
    one = worker()
    results = one.together(claiming(one), claiming(one))
    assert sorted(type(each).__name__ for each in results) == ["Claim", "LeasedElsewhere"]
    (claim,) = (each for each in results if not isinstance(each, LeasedElsewhere))
    assert (rows.order().ticket, rows.order().epoch) == (claim.ticket, 1)
    one.finish(claim, without_event())
    results = one.together(*[claiming(one) for _ in range(5)])
    assert sorted(type(each).__name__ for each in results) == ["Claim"] + ["LeasedElsewhere"] * 4
    (claim,) = (each for each in results if not isinstance(each, LeasedElsewhere))
    assert (rows.order().ticket, rows.order().epoch, claim.epoch) == (claim.ticket, 2, 2)


def test_one_of_two_take_overs_in_a_transaction_wins(worker: Workers, rows: Rows) -> None:
    one, two = worker(), worker()
    claimed(one.claim(KEY, send=True))
    over(one, two)
    results = two.together(claiming(two), claiming(two))
    assert sorted(type(each).__name__ for each in results) == ["Claim", "LeasedElsewhere"]
    assert (rows.order().taken_from, rows.order().epoch) == (one.lease.id, 2)


def test_one_of_two_resumptions_in_a_transaction_wins(worker: Workers) -> None:
    one = worker()
    one.abandon(claimed(one.claim(KEY, send=True)), sent=True)
    results = one.together(claiming(one), claiming(one))
    assert sorted(type(each).__name__ for each in results) == ["Claim", "LeasedElsewhere"]
    assert isinstance(one.claim(KEY, send=True), LeasedElsewhere)


@pytest.mark.parametrize("first", [True, False])
def test_an_abandoned_claim_that_is_written_again_can_be_resumed(
    worker: Workers, first: bool
) -> None:
    """Its caller is gone, and its transaction is retried after the lease expired."""
    one = worker()
    abandoned, another = claiming(one), claiming(one)
    one.together(abandoned)  # written, and the reply lost
    one.abandoned[abandoned.ticket] = Abandoned(KEY, False, one.clock.monotonic())
    one.clock.advance(LEASE)
    both = [abandoned, another] if first else [another, abandoned]
    results = dict(zip(both, one.together(*both), strict=True))
    is_leased = isinstance(results[another], LeasedElsewhere)
    assert isinstance(results[abandoned], LeasedElsewhere) is not is_leased
    assert isinstance(one.claim(KEY, send=True), LeasedElsewhere) is not is_leased


def test_operations_that_share_a_transaction_have_separate_results(
    worker: Workers, rows: Rows
) -> None:
    one, two = worker(), worker()
    held, done = claimed(two.claim(Key("z", "held"), send=True)), Key("a", "done")
    one.finish(claimed(one.claim(done, send=True)), an_entry(key=done))
    keys = [Key("m", f"o{n}") for n in range(6)]
    claims = [claimed(one.claim(key, send=False)) for key in keys]
    lost = claimed(one.claim(Key("b", "lost"), send=False))
    one.abandon(lost, sent=False)
    claimed(one.claim(lost.key, send=False))
    finishings = [Finishing(claims[n], an_entry(key=keys[n])) for n in (3, 1, 5)]
    results = one.together(
        claiming(one, Key("n", "new")),
        finishings[0],
        Sending(lost),
        claiming(one, held.key),
        Sending(claims[2]),
        finishings[1],
        Sending(claims[0]),
        claiming(one, done),
        Finishing(lost, an_entry(key=lost.key)),
        finishings[2],
    )
    kinds = [each if isinstance(each, bool) else type(each).__name__ for each in results]
    assert kinds == [
        "Claim",
        True,
        False,
        "LeasedElsewhere",
        True,
        True,
        True,
        "Ended",
        False,
        True,
    ]
    states = {row.order_id: row.state for row in rows.orders()}
    assert states == {
        **dict.fromkeys(["o3", "o1", "o5", "done"], "accepted"),
        **dict.fromkeys(["o0", "o2", "held", "new"], "sending"),
        **dict.fromkeys(["o4", "lost"], "claimed"),
    }
    assert sorted(row.order_id for row in rows.events()) == ["done", "o1", "o3", "o5"]


def test_a_hundred_orders_are_claimed_sent_and_finished_in_three_transactions(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    keys = [Key("m", f"o{n}") for n in range(100)]
    claims = one.together(*[claiming(one, key, send=False) for key in keys])
    assert all(one.together(*[Sending(claim) for claim in claims]))
    assert all(one.together(*[Finishing(c, an_entry(key=c.key)) for c in claims]))
    assert {row.state for row in rows.orders()} == {"accepted"}
    assert len({row.event_id for row in rows.events()}) == 100
