"""One leader at a time, and another when its lease has expired."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events.leadership import LOOK
from pos_gateway.events.pipeline import CUT_OFF
from pos_gateway.ledger.lease import LEASE
from tests.events.lab import Broker, Events, Pod
from tests.ledger.lab import Clock

Pods = Callable[..., Pod]


def test_the_first_pod_leads_and_the_others_do_not(pod: Pods) -> None:
    one, two = pod(), pod()
    for each in (one, two, one, two):
        each.step()
    assert (one.leads, two.leads) == (True, False)


def test_a_leader_that_renews_its_lease_stays_the_leader(pod: Pods, clock: Clock) -> None:
    one, two = pod(), pod()
    for _ in range(30):
        for each in (one, two):
            each.step()
        clock.advance(1.0)
    assert (one.leads, two.leads) == (True, False)
    assert one.outbox.look()[0].epoch == 1


def test_a_pod_without_a_lease_does_not_lead(pod: Pods) -> None:
    one = pod()
    assert one.leadership.term() is None
    one.step()
    assert one.leads


def test_a_starting_pod_leads_as_soon_as_it_has_its_lease(pod: Pods, clock: Clock) -> None:
    """Its first beat is written while its pipeline starts, and its first event waits for both."""
    one, started = pod(), clock.monotonic()
    one.pipeline.step()
    assert not one.leads
    one.beat()
    clock.advance(one.pipeline.rest)
    one.pipeline.step()
    assert one.leads
    assert clock.monotonic() - started < LOOK / 4


def test_an_expired_leader_is_replaced(pod: Pods, clock: Clock) -> None:
    one, two = pod(), pod()
    one.step()
    two.step()
    clock.advance(LEASE - 0.1)
    two.step()
    assert not two.leads
    clock.advance(0.2)
    two.step()
    assert two.leads
    assert one.leadership.term() is None
    one.step()
    assert not one.leads  # under its new lease it is a follower
    assert one.outbox.look()[0].leader == two.worker.lease.id


def test_a_released_leadership_is_taken_over_at_once(pod: Pods) -> None:
    one, two = pod(), pod()
    one.step()
    two.step()
    one.worker.close()
    two.step()
    assert two.leads


def test_a_worker_succeeds_itself_at_once_when_its_lease_has_expired(
    pod: Pods, clock: Clock
) -> None:
    one = pod()
    one.step()
    clock.advance(LEASE)
    one.step()
    assert one.leads
    assert one.outbox.look()[0].epoch == 2


def test_a_database_outage_replaces_no_leader(
    pod: Pods, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pod(), pod()
    one.step()
    two.step()
    with monkeypatch.context() as away:

        def write(_do: Any) -> None:
            raise LedgerUnavailable("away")

        away.setattr(two.outbox._writer, "write", write)
        for _ in range(int(2 * LEASE / LOOK)):
            clock.advance(LOOK)
            with pytest.raises(LedgerUnavailable):
                two.leadership.term()
    two.step()
    assert not two.leads
    clock.advance(LEASE)  # but a leader that does not renew afterwards is replaced
    two.step()
    assert two.leads


def test_a_leader_whose_reply_was_lost_leads(pod: Pods) -> None:
    one = pod()
    one.beat()
    one.outbox.take(one.worker.lease.id, one.outbox.look()[0].epoch)  # without a reply
    one.step()
    assert one.leads
    assert one.outbox.look()[0].epoch == 2  # a value that was only read may not be durable


def test_the_leadership_is_read_once_a_second(pod: Pods, clock: Clock) -> None:
    one, two = pod(), pod()
    one.step()
    two.step()
    looks: list[None] = []
    look = two.outbox.look
    two.outbox.look = lambda: (looks.append(None), look())[1]  # type: ignore[method-assign]
    for _ in range(40):
        clock.advance(LOOK / 4)
        two.pipeline.step()
        assert two.pipeline.rest == LOOK
    assert len(looks) == 10


def test_a_leader_without_the_broker_steps_down(
    pod: Pods, broker: Broker, clock: Clock, engine: Engine
) -> None:
    """Another pod may reach both the broker and the database."""
    recorded = Events(engine)
    recorded.write(3)
    one, two = pod(batch=2), pod()
    one.step()
    broker.is_down = True
    for _ in range(int(CUT_OFF)):
        for each in (one, two):
            each.beat()
        one.pipeline.step()
        two.pipeline.step()
        assert one.leads
        clock.advance(1.0)
    one.pipeline.step()
    assert not one.leads
    assert one.outbox.look()[0].published == 2  # published events stay published
    one.pipeline.step()
    assert not one.leads
    broker.is_down = False
    assert two.pipeline.step() == 1
    assert broker.consumer.ids == recorded.ids


def test_a_leader_whose_broker_recovers_stays_the_leader(
    pod: Pods, broker: Broker, clock: Clock, engine: Engine
) -> None:
    recorded = Events(engine)
    recorded.write(1)
    one = pod()
    for is_down in (True, False, True):
        broker.is_down = is_down
        one.step()
        recorded.write(1)
        clock.advance(CUT_OFF - 1.0)
        one.step()
        assert one.leads


def test_a_pod_that_stepped_down_leads_again_if_no_other_does(
    pod: Pods, broker: Broker, clock: Clock, engine: Engine
) -> None:
    recorded = Events(engine)
    recorded.write(1)
    one = pod()
    broker.is_down = True
    one.step()
    clock.advance(CUT_OFF)
    one.step()
    assert not one.leads
    broker.is_down = False
    clock.advance(5.0)
    one.beat()
    assert one.pipeline.step() == 1
