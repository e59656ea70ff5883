"""The leader's loop: every event is published at least once, in one order."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events import pipeline
from pos_gateway.events.hydration import YIELD_EVERY, Hydration
from pos_gateway.events.leadership import LOOK
from pos_gateway.events.outbox import BATCH_BYTES
from pos_gateway.events.pipeline import GATHER, POLL, RETRY_AFTER
from pos_gateway.ledger.event_notices import SILENCE
from pos_gateway.ledger.lease import LEASE
from pos_gateway.runtime.vault import Vault
from tests.events.lab import PLACES, Broker, Events, Pod
from tests.ledger.lab import DAY, SOON, Clock

Pods = Callable[..., Pod]


class Killed(BaseException):
    """The pod was killed."""


@pytest.fixture
def recorded(engine: Engine) -> Events:
    return Events(engine)


def at(place: str, do: Callable[[], None]) -> Callable[[str], None]:
    """Calls this the first time that the place is reached."""
    done: list[str] = []

    def reach(name: str) -> None:
        if name == place and not done:
            done.append(name)
            do()

    return reach


def test_events_are_published_in_order_a_batch_at_a_time(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(12)
    one = pod(batch=5)
    assert [one.step() for _ in range(4)] == [5, 5, 2, 0]
    assert broker.batches == [5, 5, 2]
    assert broker.positions == list(range(1, 13))
    assert broker.consumer.ids == recorded.ids


def test_a_batch_pauses_between_pieces_as_long_as_orders_lack_cpu(
    pod: Pods, recorded: Events
) -> None:
    recorded.write(2 * YIELD_EVERY + 1)
    one, pauses = pod(batch=500), iter([0.0, 0.001])
    one.pipeline.pause = pauses.__next__
    assert one.step() == 2 * YIELD_EVERY + 1
    assert list(pauses) == []


def test_a_leader_with_a_backlog_does_not_pause(pod: Pods, recorded: Events, clock: Clock) -> None:
    recorded.write(6)
    one, two = pod(batch=5), pod()
    rests = []
    for _ in range(3):
        one.step()
        rests.append(one.pipeline.rest)
    two.step()
    assert (rests, two.pipeline.rest) == ([0.0, 0.0, POLL[0]], LOOK)


def test_polls_become_fewer_while_there_are_no_events(
    pod: Pods, recorded: Events, engine: Engine
) -> None:
    """With PostgreSQL still fewer: a notice comes with an event after a silence."""
    one = pod()
    one.step()  # it becomes the leader

    def rest() -> float:
        one.step()
        return one.pipeline.rest

    rests = [rest() for _ in range(7)]
    recorded.write(1)
    seldom = [0.24] * 4 if engine.dialect.name == "sqlite" else [0.48, 0.96, 1.0, 1.0]
    assert (rests, [rest(), rest()]) == ([0.06, 0.12, 0.24, *seldom], [0.0, 0.03])
    for _ in range(4):
        rest()
    one.pipeline.wake()
    assert rest() == POLL[0], "another event of that process may come without a notice"
    after_event = [GATHER, POLL[0], *rests]
    near = [each for n, each in enumerate(after_event) if sum(after_event[:n]) < SILENCE]
    assert max(near) < SILENCE, "a process's next event needs no notice"


def test_events_recorded_during_a_batch_are_published_next(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    one = pod(at=at("rows", lambda: recorded.write(3) and None))
    recorded.write(2)
    one.finish()
    assert broker.consumer.ids == recorded.ids
    assert one.outbox.look()[0].published == 5


def test_a_confirmed_batch_is_not_published_again(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(5)
    one, two = pod(), pod()
    one.finish()
    one.worker.close()
    recorded.write(1)
    two.finish()
    assert broker.positions == [1, 2, 3, 4, 5, 6]


def test_a_pipeline_stopped_before_it_leads_does_not_take_over(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(1)
    one = pod()
    one.beat()
    one.pipeline.stop()
    one.pipeline.run()
    assert one.outbox.look()[0].leader is None
    assert broker.positions == []


def test_a_stopping_leader_publishes_pending_events_and_records_it(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    def stop() -> None:
        one.pipeline.stop()

    recorded.write(7)
    one = pod(at=at("published", stop))
    one.beat()
    one.pipeline.run()
    assert broker.positions == [1, 2, 3, 4, 5, 6, 7]
    assert one.outbox.look()[0].published == 7


@pytest.mark.parametrize("place", ["take", "taken", *PLACES])
def test_a_leader_killed_at_any_step_is_replaced(
    place: str, pod: Pods, broker: Broker, recorded: Events, clock: Clock
) -> None:
    def die() -> None:
        raise Killed

    recorded.write(7)
    two = pod()
    one = pod(at=at(place, die))
    with pytest.raises(Killed):
        one.finish()
    one.close()
    two.step()
    clock.advance(LEASE)
    two.finish()
    assert broker.consumer.ids == recorded.ids
    assert not broker.consumer.early


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("place", ["take", "taken", *PLACES])
def test_a_leader_paused_at_any_step_changes_nothing_afterwards(
    place: str, later: int, pod: Pods, broker: Broker, recorded: Events, clock: Clock
) -> None:
    two = pod()

    def pause() -> None:
        two.step()
        clock.advance(LEASE)
        recorded.write(3)
        two.step()
        for _ in range(later):
            two.step()

    recorded.write(7)
    one = pod(at=at(place, pause))
    one.step()
    one.finish()
    two.finish()
    one.finish()
    recorded.write(2)
    two.finish()
    assert broker.consumer.ids == recorded.ids
    assert not broker.consumer.early
    assert one.leads + two.leads == 1


def test_events_behind_a_refused_one_are_published_again(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(5)
    broker.refused = {2}
    one = pod(batch=5)
    assert one.step() == 2
    assert one.pipeline.in_trouble
    assert (broker.positions, broker.consumer.ids) == ([1, 2, 4, 5], recorded.ids[:2])
    one.finish()
    assert broker.positions == [1, 2, 4, 5, 3, 4, 5]
    assert broker.consumer.ids == recorded.ids


def test_after_a_refused_event_a_batch_is_published_one_by_one(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(20)
    broker.refused = {2}
    pod(batch=5).finish()
    assert broker.batches == [5, 1, 1, 1, 1, 1, 5, 5, 3]
    assert broker.consumer.ids == recorded.ids


def test_repeated_refusals_publish_no_event_early(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(9)
    broker.refused = {0, 5, 7, 8, 11}
    pod(batch=5).finish()
    assert broker.consumer.ids == recorded.ids
    assert broker.consumer.early == [2, 3, 4, 5]  # of the first batch alone


def test_retries_back_off_while_the_broker_is_unavailable(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(3)
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
    assert broker.consumer.ids == recorded.ids
    broker.is_down = True
    recorded.write(1)
    one.step()
    assert one.pipeline.rest == RETRY_AFTER[0]


def test_events_confirmed_before_the_broker_failed_count(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    def go_down() -> None:
        broker.is_down = True

    recorded.write(5)
    one = pod(at=at("publish 4", go_down))
    assert one.step() == 3
    broker.is_down = False
    one.finish()
    assert broker.positions == [1, 2, 3, 4, 5]


def test_a_database_outage_is_logged_and_loses_no_event(
    pod: Pods, broker: Broker, recorded: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.write(5)
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


def test_an_unreadable_event_does_not_block_later_ones(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(1)
    recorded.write(1, order=False)
    recorded.write(1, order_payload="not to be opened")
    recorded.write(1, occurred_at=1e300)
    recorded.write(1, reason_code="c", reason_message="sealed:nonsense")
    recorded.write(1)
    pod().finish()
    assert broker.consumer.ids == recorded.ids
    said = [event.get("incomplete", "") for event in broker.consumer.acted]
    assert said[1] == "the order is not kept"
    assert said[2].startswith("the order is sealed with the key")
    assert not any(said[3:])


def test_an_event_without_an_orders_row_has_the_message(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    vault = Vault("a key")
    recorded.write(1, order=False, payload='{"order_id":7}')
    pod(vault=vault).finish()
    assert broker.consumer.acted[0]["order"] == {"order_id": 7}


def test_events_of_one_order_are_published_in_order(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    one = pod(batch=3)
    for number in range(4):
        for order in ("a", "b"):
            recorded.write_one(order, external_id=str(number))
        one.step()
    one.finish()
    for order in ("a", "b"):
        seen = [e["external_id"] for e in broker.consumer.acted if e["order_id"] == order]
        assert seen == ["0", "1", "2", "3"]


def test_helpers_events_are_published_unchanged(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    vault = Vault("a key")
    recorded.write(10)
    helper, leader = pod(vault=vault), pod(vault=vault)
    helper.beat()
    assert [helper.helping.step() for _ in range(5)] == [3, 3, 3, 1, 0]
    leader.finish()
    assert leader.hydrated == []
    assert broker.consumer.ids == recorded.ids
    assert [event["order"]["order_id"] for event in broker.consumer.acted] == [
        f"o{n}" for n in range(10)
    ]


def test_a_helper_with_another_key_removes_nothing_from_an_event(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(6)
    pod(vault=Vault("a newer key")).helping.step()
    pod().finish()
    assert [event["order"]["order_id"] for event in broker.consumer.acted] == [
        f"o{n}" for n in range(6)
    ]


def test_the_thread_is_woken_by_new_events_and_runs_until_stopped(
    sqlite_url: str, clock: Clock
) -> None:
    engine, broker = open_database(sqlite_url), Broker()
    recorded, stored = Events(engine), threading.Event()
    one = Pod(engine, clock, broker, at=lambda name: stored.set() if name == "published" else None)
    one.beat()
    thread = threading.Thread(target=one.pipeline.run)
    thread.start()
    for _ in range(3):
        recorded.write(1)
        one.pipeline.wake()
        assert stored.wait(SOON)
        stored.clear()
    one.pipeline.stop()
    thread.join(SOON)
    assert not thread.is_alive()
    assert broker.consumer.ids == recorded.ids
    engine.dispose()


def test_a_leader_shows_each_batch_before_it_waits_for_the_next_one(
    pod: Pods, recorded: Events, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "GATHER", SOON)
    shown = threading.Event()
    recorded.write(2)
    one = pod(at=lambda name: shown.set() if name == "shown" else None)
    one.beat()
    thread = threading.Thread(target=one.pipeline.run)
    thread.start()
    try:
        assert shown.wait(SOON)
        published = one.helpers_outbox.look()[0].published
        assert published == (2 if engine.dialect.name == "postgresql" else 0), "SQLite's come later"
    finally:
        one.pipeline.stop()
        thread.join(SOON)
    assert not thread.is_alive()


def test_a_leader_that_was_replaced_shows_no_progress(
    pod: Pods, recorded: Events, clock: Clock
) -> None:
    recorded.write(2)
    one, two = pod(), pod()
    one.step()
    term = one.leadership.term()
    assert term is not None
    clock.advance(LEASE)
    two.beat()
    taken = two.outbox.take("two", term.epoch)
    assert taken is not None
    one.outbox.show(replace(term, published=9))
    assert two.outbox.look()[0] == taken


def test_the_leader_knows_its_lag(
    pod: Pods, broker: Broker, recorded: Events, clock: Clock
) -> None:
    for number in range(12):
        recorded.write(1, occurred_at=DAY + number)
    one, other = pod(batch=5), pod()
    lag, now = one.pipeline.lag, DAY + 100
    seen = []
    for _ in range(4):
        one.step()
        seen.append((lag.unpublished, lag.age(now)))
    # A lower bound: events behind a full batch are no older than its last one.
    assert seen == [(0, 96), (0, 91), (0, 0), (0, 0)]
    other.step()
    assert (other.pipeline.lag.unpublished, other.pipeline.lag.age(now)) == (0, 0)


def test_the_lag_grows_while_the_broker_takes_no_event_until_another_leads(
    pod: Pods, broker: Broker, recorded: Events
) -> None:
    recorded.write(3)
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


def test_a_batch_has_no_more_bytes_than_it_may_and_all_events_are_published(
    pod: Pods, recorded: Events, broker: Broker
) -> None:
    """Also the batches that are read as they get their positions, and those with one large event."""
    large = json.dumps({"order_id": "o", "x": "y" * (BATCH_BYTES // 3)})
    huge = json.dumps({"order_id": "o", "x": "y" * 2 * BATCH_BYTES})
    recorded.write(8, order_payload=large)
    recorded.write(1, order_payload=huge)
    recorded.write(3, order_payload=large)
    leader = pod(batch=50)
    leader.hydration = Hydration(leader.hydration.payloads, 4 * BATCH_BYTES)
    leader.finish()
    assert broker.consumer.ids == recorded.ids
    assert max(broker.batches) <= 3
    assert sum(broker.batches) == len(recorded.ids)


def test_a_helper_takes_no_more_bytes_at_once_than_a_batch_has(pod: Pods, recorded: Events) -> None:
    large = json.dumps({"order_id": "o", "x": "y" * (BATCH_BYTES // 3)})
    recorded.write(8, order_payload=large)
    helper = pod(chunk=50, behind=0)
    helper.beat()
    assert [helper.helping.step() for _ in range(4)] == [3, 3, 2, 0]
