"""The leader's loop: every event once at least, in one order, whatever happens to the leader."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.leadership import LOOK
from pos_gateway.events.pipeline import POLL, RETRY_AFTER
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from tests.events.lab import PLACES, Broker, Events, Pod
from tests.ledger.lab import DAY, SOON, Clock

Pods = Callable[..., Pod]


class Killed(BaseException):
    """The pod is no more."""


@pytest.fixture
def told(engine: Engine) -> Events:
    return Events(engine)


def at(place: str, do: Callable[[], None]) -> Callable[[str], None]:
    """Does something the first time that the place is reached."""
    done: list[str] = []

    def reach(name: str) -> None:
        if name == place and not done:
            done.append(name)
            do()

    return reach


def test_events_are_published_in_their_order_a_batch_at_a_time(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(12)
    one = pod(batch=5)
    assert [one.step() for _ in range(4)] == [5, 5, 2, 0]
    assert broker.batches == [5, 5, 2]
    assert broker.positions == list(range(1, 13))
    assert broker.consumer.ids == told.ids


def test_a_leader_that_has_more_does_not_rest(pod: Pods, told: Events, clock: Clock) -> None:
    told.write(6)
    one, two = pod(batch=5), pod()
    rests = []
    for _ in range(3):
        one.step()
        rests.append(one.pipeline.rest)
    two.step()
    assert (rests, two.pipeline.rest) == ([0.0, 0.0, POLL], LOOK)


def test_events_that_are_told_of_meanwhile_follow(pod: Pods, broker: Broker, told: Events) -> None:
    one = pod(at=at("rows", lambda: told.write(3) and None))
    told.write(2)
    one.finish()
    assert broker.consumer.ids == told.ids
    assert one.outbox.look()[0].published == 5


def test_a_batch_that_was_confirmed_is_not_published_again(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(5)
    one, two = pod(), pod()
    one.finish()
    one.worker.close()
    told.write(1)
    two.finish()
    assert broker.positions == [1, 2, 3, 4, 5, 6]


def test_one_that_is_stopped_before_it_leads_does_not_begin_to(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(1)
    one = pod()
    one.beat()
    one.pipeline.stop()
    one.pipeline.run()
    assert one.outbox.look()[0].leader is None
    assert broker.positions == []


def test_one_that_is_stopped_publishes_what_was_written_until_then_and_writes_that_down(
    pod: Pods, broker: Broker, told: Events
) -> None:
    def stop() -> None:
        one.pipeline.stop()

    told.write(7)
    one = pod(at=at("published", stop))
    one.beat()
    one.pipeline.run()
    assert broker.positions == [1, 2, 3, 4, 5, 6, 7]
    assert one.outbox.look()[0].published == 7


@pytest.mark.parametrize("place", ["take", "taken", *PLACES])
def test_a_leader_that_is_killed_at_any_place_is_followed_by_another(
    place: str, pod: Pods, broker: Broker, told: Events, clock: Clock
) -> None:
    def die() -> None:
        raise Killed

    told.write(7)
    two = pod()
    one = pod(at=at(place, die))
    with pytest.raises(Killed):
        one.finish()
    one.close()
    two.step()
    clock.advance(LEASE)
    two.finish()
    assert broker.consumer.ids == told.ids
    assert not broker.consumer.early


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("place", ["take", "taken", *PLACES])
def test_a_leader_that_is_paused_at_any_place_and_comes_back_changes_nothing(
    place: str, later: int, pod: Pods, broker: Broker, told: Events, clock: Clock
) -> None:
    two = pod()

    def pause() -> None:
        two.step()
        clock.advance(LEASE)
        told.write(3)
        two.step()
        for _ in range(later):
            two.step()

    told.write(7)
    one = pod(at=at(place, pause))
    one.step()
    one.finish()
    two.finish()
    one.finish()
    told.write(2)
    two.finish()
    assert broker.consumer.ids == told.ids
    assert not broker.consumer.early
    assert one.leads + two.leads == 1


def test_what_is_behind_one_that_was_refused_comes_again(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(5)
    broker.refused = {2}
    one = pod(batch=5)
    assert one.step() == 2
    assert one.pipeline.in_trouble
    assert (broker.positions, broker.consumer.ids) == ([1, 2, 4, 5], told.ids[:2])
    one.finish()
    assert broker.positions == [1, 2, 4, 5, 3, 4, 5]
    assert broker.consumer.ids == told.ids


def test_after_one_that_was_refused_events_are_published_one_by_one_for_a_batch(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(20)
    broker.refused = {2}
    pod(batch=5).finish()
    assert broker.batches == [5, 1, 1, 1, 1, 1, 5, 5, 3]
    assert broker.consumer.ids == told.ids


def test_refused_one_after_the_other_none_is_early(pod: Pods, broker: Broker, told: Events) -> None:
    told.write(9)
    broker.refused = {0, 5, 7, 8, 11}
    pod(batch=5).finish()
    assert broker.consumer.ids == told.ids
    assert broker.consumer.early == [2, 3, 4, 5]  # of the first batch alone


def test_while_the_broker_is_away_it_is_tried_ever_less_often(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(3)
    broker.is_down = True
    one = pod()
    rests = []
    for _ in range(9):
        assert one.step() == 0
        assert one.pipeline.in_trouble
        rests.append(one.pipeline.rest)
    assert rests[:3] == [RETRY_AFTER[0], 2 * RETRY_AFTER[0], 4 * RETRY_AFTER[0]]
    assert rests[-1] == RETRY_AFTER[1]
    broker.is_down = False
    one.finish()
    assert broker.consumer.ids == told.ids
    broker.is_down = True
    told.write(1)
    one.step()
    assert one.pipeline.rest == RETRY_AFTER[0]


def test_what_was_confirmed_before_the_broker_went_away_counts(
    pod: Pods, broker: Broker, told: Events
) -> None:
    def go_down() -> None:
        broker.is_down = True

    told.write(5)
    one = pod(at=at("publish 4", go_down))
    assert one.step() == 3
    broker.is_down = False
    one.finish()
    assert broker.positions == [1, 2, 3, 4, 5]


def test_a_database_that_is_away_is_heard_of_and_nothing_is_lost(
    pod: Pods, broker: Broker, told: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.write(5)
    one = pod(batch=2)
    one.step()

    def read(*_: Any) -> None:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(one.outbox, "read", read)
        with pytest.raises(LedgerUnavailable):
            one.step()
    one.finish()
    assert broker.positions == [1, 2, 3, 4, 5]


def test_an_event_that_cannot_be_read_does_not_hold_up_those_behind_it(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(1)
    told.write(1, order=False)
    told.write(1, order_payload="not to be opened")
    told.write(1, occurred_at=1e300)
    told.write(1, reason_code="c", reason_message="sealed:nonsense")
    told.write(1)
    pod().finish()
    assert broker.consumer.ids == told.ids
    said = [event.get("incomplete", "") for event in broker.consumer.acted]
    assert said[1] == "the order is not kept"
    assert said[2].startswith("the order is sealed with the key")
    assert not any(said[3:])


def test_an_event_of_something_without_a_row_has_what_came(
    pod: Pods, broker: Broker, told: Events
) -> None:
    vault = Vault("a key")
    told.write(1, order=False, payload='{"order_id":7}')
    pod(vault=vault).finish()
    assert broker.consumer.acted[0]["order"] == {"order_id": 7}


def test_events_of_one_order_come_in_the_order_in_which_they_happened(
    pod: Pods, broker: Broker, told: Events
) -> None:
    one = pod(batch=3)
    for number in range(4):
        for order in ("a", "b"):
            told.write_one(order, external_id=str(number))
        one.step()
    one.finish()
    for order in ("a", "b"):
        seen = [e["external_id"] for e in broker.consumer.acted if e["order_id"] == order]
        assert seen == ["0", "1", "2", "3"]


def test_what_helpers_have_hydrated_is_published_as_it_would_be(
    pod: Pods, broker: Broker, told: Events
) -> None:
    vault = Vault("a key")
    told.write(10)
    helper, leader = pod(vault=vault), pod(vault=vault)
    helper.beat()
    assert [helper.helping.step() for _ in range(5)] == [3, 3, 3, 1, 0]
    leader.finish()
    assert leader.hydrated == []
    assert broker.consumer.ids == told.ids
    assert [event["order"]["order_id"] for event in broker.consumer.acted] == [
        f"o{n}" for n in range(10)
    ]


def test_a_helper_with_another_key_takes_nothing_from_an_event(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(6)
    pod(vault=Vault("a newer key")).helping.step()
    pod().finish()
    assert [event["order"]["order_id"] for event in broker.consumer.acted] == [
        f"o{n}" for n in range(6)
    ]


def test_a_thread_runs_until_it_is_stopped_and_is_woken_by_what_is_new(
    sqlite_url: str, clock: Clock
) -> None:
    from pos_gateway.database.engine import open_database

    engine, broker = open_database(sqlite_url), Broker()
    told, stored = Events(engine), threading.Event()
    one = Pod(engine, clock, broker, at=lambda name: stored.set() if name == "published" else None)
    one.beat()
    thread = threading.Thread(target=one.pipeline.run)
    thread.start()
    for _ in range(3):
        told.write(1)
        one.pipeline.wake()
        assert stored.wait(SOON)
        stored.clear()
    one.pipeline.stop()
    thread.join(SOON)
    assert not thread.is_alive()
    assert broker.consumer.ids == told.ids
    engine.dispose()


def test_events_that_are_too_large_are_cut(pod: Pods, broker: Broker, told: Events) -> None:
    told.write(1, order_payload='{"notes":"' + "x" * 5000 + '"}')
    told.write(1)
    one = pod()
    one.hydration = Hydration(Payloads(Vault()), largest=4000)
    one.finish()
    first, second = broker.consumer.acted
    assert (first["order"], first["truncated"], "truncated" in second) == (None, True, False)


def test_the_leader_knows_how_far_behind_it_is(
    pod: Pods, broker: Broker, told: Events, clock: Clock
) -> None:
    for number in range(12):
        told.write(1, occurred_at=DAY + number)
    one, other = pod(batch=5), pod()
    lag, now = one.pipeline.lag, DAY + 100
    seen = []
    for _ in range(4):
        one.step()
        seen.append((lag.unpublished, lag.age(now)))
    # As far as it knows: what is behind a full batch is no older than the last of it.
    assert seen == [(0, 96), (0, 91), (0, 0), (0, 0)]
    other.step()
    assert (other.pipeline.lag.unpublished, other.pipeline.lag.age(now)) == (0, 0)


def test_what_the_broker_does_not_take_grows_old_until_another_leads(
    pod: Pods, broker: Broker, told: Events
) -> None:
    told.write(3)
    one = pod()
    lag = one.pipeline.lag
    broker.refused = {1}
    one.step()
    assert (lag.unpublished, lag.age(DAY + 60)) == (2, 60)
    broker.is_down = True
    one.step()
    assert (lag.unpublished, lag.age(DAY + 70)) == (2, 70)
    assert lag.age(DAY - 5) == 0  # the time of day was stepped back
    one.leadership.step_down()
    one.pipeline.step()
    assert (lag.unpublished, lag.age(DAY + 80)) == (0, 0)
