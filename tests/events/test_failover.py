"""A database that has gone back: a standby that lagged behind its primary was promoted."""

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
def told(engine: Engine) -> Events:
    return Events(engine)


def go_back(engine: Engine, position: int, *, keep_rows: bool = False) -> None:
    """To the moment after which this position was given and published."""
    later = events.c.position > position
    with engine.begin() as connection:
        forget = update(events).where(later).values(position=None)
        connection.execute(forget if keep_rows else delete(events).where(later))
        connection.execute(update(pipeline).values(assigned=position, published=position))


def test_a_leader_gives_no_position_twice_and_leaves_no_event_out(
    pod: Pods, told: Events, broker: Broker, engine: Engine
) -> None:
    told.write(3)
    one = pod()
    one.finish()
    go_back(engine, 1)
    told.write(2)
    with capture_logs() as logs:
        for _ in range(3):
            one.step()
    assert broker.consumer.ids == told.ids
    assert broker.positions == [1, 2, 3, 4, 5]
    lost = [each for each in logs if each["event"] == "events.positions_lost"]
    assert [(each["first"], each["last"]) for each in lost] == [(2, 3)]


def test_who_leads_next_goes_on_behind_what_it_has_seen(
    pod: Pods, told: Events, broker: Broker, engine: Engine, clock: Clock
) -> None:
    told.write(3)
    one, two = pod(), pod()
    one.finish()
    two.step()
    clock.advance(LEASE)  # the leader dies with the primary
    go_back(engine, 1)
    told.write(2)
    for _ in range(3):
        two.step()
    assert two.leads
    assert broker.consumer.ids == told.ids
    assert broker.positions == [1, 2, 3, 4, 5]


def test_an_event_whose_position_alone_was_lost_comes_again_with_its_id_and_another_position(
    pod: Pods, told: Events, broker: Broker, engine: Engine
) -> None:
    told.write(3)
    one = pod()
    one.finish()
    go_back(engine, 1, keep_rows=True)
    for _ in range(3):
        one.step()
    assert broker.positions == [1, 2, 3, 4, 5]
    assert broker.consumer.ids == ["e0", "e1", "e2", "e1", "e2"]


def test_positions_that_were_never_published_leave_no_gap(
    pod: Pods, told: Events, broker: Broker, engine: Engine
) -> None:
    told.write(1)
    one = pod()
    one.finish()
    term = one.leadership.term()
    told.write(2)
    assert term is not None
    one.leadership.go_on(one.outbox.assign(term, 5))  # and the primary is gone before they are read
    go_back(engine, 1)
    told.write(2)
    for _ in range(3):
        one.step()
    assert broker.positions == [1, 2, 3]
