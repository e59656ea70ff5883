"""Where the leader's search begins, without a database: no event may be left before the floor."""

import pytest

from pos_gateway.events import floor as subject
from pos_gateway.events.floor import Floor


@pytest.fixture
def floor(monkeypatch: pytest.MonkeyPatch) -> Floor:
    """One that stands at 100, of the first connection."""
    monkeypatch.setattr(subject, "EVERY", 0.0)
    floor = Floor()
    for _ in range(3):
        search(floor, last=100)
    assert begins(floor) == 100
    return floor


def begins(floor: Floor, connects: int = 1) -> int:
    return floor.before(connects, set)


def search(floor: Floor, *, last: int | None, is_all: bool = True) -> None:
    begins(floor)
    floor.found(last, is_all=is_all)


def test_another_connection_may_lead_to_a_database_with_lower_ids(floor: Floor) -> None:
    assert begins(floor, connects=2) == 0


def test_events_that_a_batch_has_no_room_for_are_not_before_the_floor(floor: Floor) -> None:
    """A long transaction has committed many of them, below the last that were found."""
    search(floor, last=200)
    search(floor, last=200)
    search(floor, last=120, is_all=False)
    assert begins(floor) == 100
    search(floor, last=None)
    assert begins(floor) == 200


def test_a_search_whose_answer_was_lost_moves_no_floor(floor: Floor) -> None:
    search(floor, last=200)
    begins(floor)
    assert begins(floor) == 100
