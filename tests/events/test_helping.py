"""Helpers hydrate from the back, and cost nothing when they die."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.outcome import Reason
from pos_gateway.events.hydration import YIELD_EVERY
from pos_gateway.events.leadership import LOOK
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault
from tests.events.lab import Broker, Events, Pod
from tests.ledger.lab import Clock, Rows

Pods = Callable[..., Pod]


class Killed(BaseException):
    """The pod was killed."""


@pytest.fixture
def recorded(engine: Engine) -> Events:
    return Events(engine)


def bodies(rows: Rows) -> list[str]:
    """The events that a helper has hydrated."""
    return sorted(each.event_id for each in rows.events() if each.body is not None)


def die(place: str) -> None:
    if place == "chunk":
        raise Killed


def test_a_helper_begins_at_the_back(pod: Pods, recorded: Events, rows: Rows) -> None:
    recorded.write(9)
    assert pod().helping.step() == 3
    assert bodies(rows) == ["e6", "e7", "e8"]


def test_a_chunk_pauses_between_pieces_as_long_as_orders_lack_cpu(
    pod: Pods, recorded: Events
) -> None:
    recorded.write(3 * YIELD_EVERY)
    one, pauses = pod(chunk=2 * YIELD_EVERY + 1), iter([0.0, 0.001])
    one.helping.pause = pauses.__next__
    assert one.helping.step() == 2 * YIELD_EVERY + 1
    assert list(pauses) == []


def test_helpers_take_separate_chunks(pod: Pods, recorded: Events, rows: Rows) -> None:
    recorded.write(9)
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


def test_two_helpers_of_one_worker_take_separate_chunks(
    pod: Pods, recorded: Events, rows: Rows
) -> None:
    recorded.write(9)
    one = pod(at=die)
    with pytest.raises(Killed):
        one.helping.step()
    one.at = lambda _: None
    one.helping.step()
    assert bodies(rows) == ["e3", "e4", "e5"]


def test_a_dead_helpers_chunk_is_taken_over_when_its_lease_expires(
    pod: Pods, recorded: Events, rows: Rows, clock: Clock
) -> None:
    recorded.write(9)
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
    assert bodies(rows) == sorted(recorded.ids)


def test_the_leader_does_not_wait_for_helpers(
    pod: Pods, recorded: Events, broker: Broker, clock: Clock
) -> None:
    recorded.write(9)
    leader = pod()
    for _ in range(3):
        helper = pod(at=die)
        helper.beat()
        with pytest.raises(Killed):
            helper.helping.step()
    leader.finish()
    assert broker.consumer.ids == recorded.ids
    assert leader.hydrated == list(range(1, 10))


def test_a_helper_skips_orders_it_has_no_key_for(
    pod: Pods, recorded: Events, broker: Broker, rows: Rows
) -> None:
    """During a key rotation the leader has both keys, and the helper only the old one."""
    both, earlier = Vault("new, old"), Vault("old")
    order, reason = b'{"order_id":"o"}', Reason("c", "sold out")
    for number, vault in enumerate((earlier, both)):
        key, payloads = Key("m", f"o{number}"), Payloads(vault)
        sealed = payloads.seal_reason(key, reason)
        recorded.write(
            1,
            order_payload=payloads.seal(key, order),
            reason_code=sealed.code,
            reason_message=sealed.message,
        )
    key = Key("m", "o2")
    sealed = Payloads(both).seal_reason(key, reason)
    recorded.write(
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
