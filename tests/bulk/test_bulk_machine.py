"""Bulk runs among kills, lost connections, pauses, stops and other operators: nothing lost or doubled."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from pos_gateway.administration.bulk import letters, previews, runner, store
from pos_gateway.administration.bulk.run import RunState
from pos_gateway.database.engine import open_database
from tests.bulk.world import MISHAPS, World
from tests.schema import make_tables

#: Resumptions, without anything that goes wrong, after which a run has to be done.
ENOUGH = 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path_factory.mktemp('bulk') / 'runs.db'}")
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (letters, "PAUSE", 0.0),
        (letters, "HINDERED", 3),
        (runner, "RECONNECT_AFTER", 0.0),
    ):
        monkeypatch.setattr(module, name, value)


@settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ids=st.lists(st.sampled_from(["a", "b", "c", "d", "e", "r1", "x1"]), max_size=8),
    plan=st.dictionaries(st.integers(1, 90), st.sampled_from(MISHAPS), max_size=6),
    sought=st.sampled_from([1, 2, letters.SOUGHT]),
    page=st.sampled_from([1, 3, previews.BATCH]),
)
def test_no_letter_is_lost_or_acted_on_twice(
    engine: Engine,
    ids: list[str],
    plan: dict[int, str],
    sought: int,
    page: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letters, "SOUGHT", sought)
    monkeypatch.setattr(store, "BATCH", page)
    world = World(engine, ids, plan)
    run = world.prepare()
    world.go()
    for number in range(ENOUGH + len(plan)):
        if number >= len(plan):
            world.plan.clear()  # what is left of it would have come later than the run lasted
        world.expire()
        world.go("sam")
    ended = world.store.run(run.id)
    meant = Counter(each for each in ids if each[0] not in "rx")
    assert (ended.state, ended.left) == (RunState.DONE, 0)
    assert ended.done + ended.refused + ended.gone == len(ids)
    # A letter is in the queue, or was published, or another operator had it.
    accounted = world.left() + world.published + world.by_hand
    assert not (Counter(ids) + world.arrived) - accounted, "a letter is lost"
    # Only one that was being acted on when its process was killed, cut off or overtaken, twice.
    doubled = (world.published - meant).total()
    assert doubled <= world.faults, "a letter is acted on twice"
    assert {*world.published} <= {*meant}, "a letter that is not meant is acted on"
    assert ended.gone <= world.by_hand.total(), "a letter that is there counts as gone"
    assert ended.done <= meant.total()
    if not world.faults and not world.by_hand:
        assert world.published == meant
        assert world.left() == Counter(ids) - meant + world.arrived
