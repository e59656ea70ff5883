"""Helpers hydrate from the back, and cost nothing when they die."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.outcome import Reason
from pos_gateway.events.leadership import LOOK
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault
from tests.events.lab import Broker, Events, Pod
from tests.ledger.lab import Clock, Rows

Pods = Callable[..., Pod]


class Killed(BaseException):
    """The pod is no more."""


@pytest.fixture
def told(engine: Engine) -> Events:
    return Events(engine)


def bodies(rows: Rows) -> list[str]:
    """The events that somebody has hydrated."""
    return sorted(each.event_id for each in rows.events() if each.body is not None)


def die(place: str) -> None:
    if place == "chunk":
        raise Killed


def test_a_helper_begins_at_the_back(pod: Pods, told: Events, rows: Rows) -> None:
    told.write(9)
    assert pod().helping.step() == 3
    assert bodies(rows) == ["e6", "e7", "e8"]


def test_nobody_helps_with_a_short_backlog(pod: Pods, told: Events, rows: Rows) -> None:
    told.write(4)
    assert pod().helping.step() == 0
    assert {each.helper for each in rows.events()} == {None}


def test_helpers_do_each_their_own_part(pod: Pods, told: Events, rows: Rows) -> None:
    told.write(9)
    one, two = pod(), pod()
    taken: list[int] = []

    def other(place: str) -> None:
        if place == "chunk" and not taken:
            taken.append(two.helping.step())

    one.at = other
    one.beat()
    two.beat()
    assert (one.helping.step(), taken) == (3, [3])
    assert bodies(rows) == ["e3", "e4", "e5", "e6", "e7", "e8"]


def test_two_of_one_worker_do_each_their_own_part(pod: Pods, told: Events, rows: Rows) -> None:
    told.write(9)
    one = pod(at=die)
    with pytest.raises(Killed):
        one.helping.step()
    one.at = lambda _: None
    one.helping.step()
    assert bodies(rows) == ["e3", "e4", "e5"]


def test_what_a_helper_that_died_has_leased_is_anothers_when_its_lease_is_over(
    pod: Pods, told: Events, rows: Rows, clock: Clock
) -> None:
    told.write(9)
    one, two = pod(at=die), pod()
    one.beat()
    two.beat()
    with pytest.raises(Killed):
        one.helping.step()
    two.helping.step()
    assert bodies(rows) == ["e3", "e4", "e5"]
    clock.advance(LEASE + LOOK)
    two.beat()
    assert [two.helping.step() for _ in range(3)] == [3, 3, 0]  # and from the back again
    assert bodies(rows) == sorted(told.ids)


def test_the_leader_waits_for_no_helper(
    pod: Pods, told: Events, broker: Broker, clock: Clock
) -> None:
    told.write(9)
    leader = pod()
    for _ in range(3):
        helper = pod(at=die)
        helper.beat()
        with pytest.raises(Killed):
            helper.helping.step()
    leader.finish()
    assert broker.consumer.ids == told.ids
    assert leader.hydrated == list(range(1, 10))


def test_a_helper_that_comes_late_changes_nothing(
    pod: Pods, told: Events, broker: Broker, rows: Rows
) -> None:
    told.write(9)
    leader = pod()
    helper = pod(at=lambda place: leader.finish() if place == "chunk" else None)
    helper.helping.step()
    assert broker.consumer.ids == told.ids
    assert bodies(rows) == []


def test_a_helper_leaves_alone_what_it_has_no_key_to(
    pod: Pods, told: Events, broker: Broker, rows: Rows
) -> None:
    """While keys are changed the leader has one more than the helper, who has the earlier alone."""
    both, earlier = Vault("new, old"), Vault("old")
    order, reason = b'{"order_id":"o"}', Reason("c", "sold out")
    for number, vault in enumerate((earlier, both)):
        key, payloads = Key("m", f"o{number}"), Payloads(vault)
        sealed = payloads.seal_reason(key, reason)
        told.write(
            1,
            order_payload=payloads.seal(key, order),
            reason_code=sealed.code,
            reason_message=sealed.message,
        )
    key = Key("m", "o2")
    sealed = Payloads(both).seal_reason(key, reason)
    told.write(
        1,
        order_payload=Payloads(earlier).seal(key, order),
        reason_code=sealed.code,
        reason_message=sealed.message,
    )
    assert pod(vault=earlier, behind=0).helping.step() == 3
    assert bodies(rows) == ["e0"]
    pod(vault=both).finish()
    assert [event["order"] for event in broker.consumer.acted] == [{"order_id": "o"}] * 3
    assert {event["reason"]["message"] for event in broker.consumer.acted} == {"sold out"}
