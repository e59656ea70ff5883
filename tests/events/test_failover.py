"""A database that has gone back in time: a lagging standby was promoted."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, delete, update
from structlog.testing import capture_logs

from pos_gateway.database.schema import events, pipeline
from pos_gateway.ledger.lease import LEASE
from tests.events.lab import Broker, Events, Pod
from tests.ledger.lab import Clock

Pods = Callable[..., Pod]


@pytest.fixture
def recorded(engine: Engine) -> Events:
    return Events(engine)


def go_back(engine: Engine, position: int, *, keep_rows: bool = False) -> None:
    """To the moment after which this position was assigned and published."""
    later = events.c.position > position
    with engine.begin() as connection:
        forget = update(events).where(later).values(position=None)
        connection.execute(forget if keep_rows else delete(events).where(later))
        connection.execute(update(pipeline).values(assigned=position, published=position))


def test_a_leader_assigns_no_position_twice_and_skips_no_event(
    pod: Pods, recorded: Events, broker: Broker, engine: Engine
) -> None:
    recorded.write(3)
    one = pod()
    one.finish()
    go_back(engine, 1)
    recorded.write(2)
    with capture_logs() as logs:
        for _ in range(3):
            one.step()
    assert broker.consumer.ids == recorded.ids
    assert broker.positions == [1, 2, 3, 4, 5]
    lost = [each for each in logs if each["event"] == "events.positions_lost"]
    assert [(each["first"], each["last"]) for each in lost] == [(2, 3)]


def test_the_next_leader_goes_on_behind_the_last_position_it_has_seen(
    pod: Pods, recorded: Events, broker: Broker, engine: Engine, clock: Clock
) -> None:
    recorded.write(3)
    one, two = pod(), pod()
    one.finish()
    two.step()
    clock.advance(LEASE)  # the leader dies with the primary
    go_back(engine, 1)
    recorded.write(2)
    for _ in range(3):
        two.step()
    assert two.leads
    assert broker.consumer.ids == recorded.ids
    assert broker.positions == [1, 2, 3, 4, 5]


def test_an_event_whose_position_was_lost_is_published_again_with_its_id_and_a_new_position(
    pod: Pods, recorded: Events, broker: Broker, engine: Engine
) -> None:
    recorded.write(3)
    one = pod()
    one.finish()
    go_back(engine, 1, keep_rows=True)
    for _ in range(3):
        one.step()
    assert broker.positions == [1, 2, 3, 4, 5]
    assert broker.consumer.ids == ["e0", "e1", "e2", "e1", "e2"]


def test_positions_that_were_never_published_leave_no_gap(
    pod: Pods, recorded: Events, broker: Broker, engine: Engine
) -> None:
    recorded.write(1)
    one = pod()
    one.finish()
    term = one.leadership.term()
    recorded.write(2)
    assert term is not None
    one.leadership.go_on(one.outbox.assign(term, 5))  # the primary is lost before they are read
    go_back(engine, 1)
    recorded.write(2)
    for _ in range(3):
        one.step()
    assert broker.positions == [1, 2, 3]
