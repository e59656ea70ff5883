"""Edits are seen whatever the clocks of those who edit, and of those who look, say."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import metadata
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import LIFETIME, LOOK, Directory
from pos_gateway.merchants.edits import LATE, Edits
from pos_gateway.merchants.stamps import next_stamp
from pos_gateway.merchants.store import MerchantStore
from tests.merchants.conftest import HandClock
from tests.merchants.test_store import a_merchant

#: Seconds by which the clock of who edits differs from everybody else's.
SKEWS = [-86_400.0, -300.0, 300.0, 86_400.0]


def off_by(clock: HandClock, seconds: float) -> HandClock:
    """The clock of a machine whose time of day is wrong."""
    skewed = HandClock()
    skewed.seconds = clock.seconds + seconds
    return skewed


@pytest.mark.parametrize("skew", SKEWS)
def test_an_edit_is_seen_at_the_next_look_whatever_the_clock_of_who_makes_it_says(
    engine: Engine, store: MerchantStore, catalogs: CatalogStore, clock: HandClock, skew: float
) -> None:
    store.put([a_merchant(max_concurrency=3)])
    catalogs.put({"m": {"a": "1"}})
    directory = Directory(store, catalogs, clock=clock)

    def seen() -> tuple[int | None, bool, str | None]:
        clock.seconds += LOOK
        merchant = directory.get("m")
        return merchant.max_concurrency, merchant.paused, merchant.pos_id("a")

    assert seen() == (3, False, "1")
    wrong = off_by(clock, skew)
    MerchantStore(engine, wrong).put([a_merchant(max_concurrency=4)])
    assert seen() == (4, False, "1")
    CatalogStore(engine, wrong).put({"m": {"a": "2"}})
    assert seen() == (4, False, "2")
    MerchantStore(engine, wrong).pause(["m"], paused=True)
    assert seen() == (4, True, "2")
    store.pause(["m"], paused=False)
    assert seen() == (4, False, "2")
    clock.seconds += LATE + LIFETIME / 4
    MerchantStore(engine, wrong).put([a_merchant(max_concurrency=5)])
    assert seen() == (5, False, "2")


@pytest.mark.parametrize("kind", ["merchants", "catalogs"])
def test_nobody_edits_while_another_edit_has_its_stamp_and_is_not_there(
    engine: Engine, clock: HandClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Else a look between the two would have it that the first one's was seen."""
    monkeypatch.setattr(database, "_SQLITE_BUSY", 0.01)
    impatient = open_database(engine.url.render_as_string(hide_password=False))
    if impatient.dialect.name == "postgresql":
        event.listen(impatient, "connect", lambda each, _: each.execute("set lock_timeout = 10"))
    store, catalogs = MerchantStore(impatient, clock), CatalogStore(impatient, clock)
    store.put([a_merchant()])
    edits = {
        "merchants": [
            lambda: store.put([a_merchant("b")]),
            lambda: store.pause(["m"], paused=True),
        ],
        "catalogs": [lambda: catalogs.put({"b": {}})],
    }
    table = metadata.tables[kind]
    with engine.begin() as connection:
        next_stamp(connection, table.c.updated_at, clock)
        for edit in edits[kind]:
            with pytest.raises(OperationalError, match="lock"):
                edit()
    for edit in edits[kind]:
        edit()
    impatient.dispose()


class Table:
    """Rows with stamps that somebody else writes."""

    def __init__(self, **stamps: float) -> None:
        self.stamps = stamps
        self.read = 0

    def last_edit(self) -> float:
        return max(self.stamps.values(), default=0.0)

    def edited_since(self, stamp: float) -> list[tuple[str, float]]:
        found = [(each, at) for each, at in self.stamps.items() if at > stamp]
        self.read = len(found)
        return found


@pytest.fixture
def looking(clock: HandClock) -> Callable[[Table], Callable[[], set[str]]]:
    """Looks at a table: what each look tells of."""

    def begin(table: Table) -> Callable[[], set[str]]:
        told: set[str] = set()
        edits = Edits(table, lambda each, _: told.add(each), known_for=LIFETIME, clock=clock)

        def look() -> set[str]:
            told.clear()
            edits.look()
            return set(told)

        return look

    return begin


def test_an_edit_that_was_committed_after_a_later_one_is_seen(
    looking: Callable[[Table], Callable[[], set[str]]], clock: HandClock
) -> None:
    """An earlier release's import is there only when all of it is."""
    table = Table(a=100.0)
    look = looking(table)
    look()
    clock.seconds = 1000.0
    look()
    table.stamps["b"] = 2000.0
    assert "b" in look()
    clock.seconds += LATE - 1
    table.stamps["c"] = 1990.0
    assert "c" in look()


def test_what_was_seen_long_ago_is_not_read_again(
    looking: Callable[[Table], Callable[[], set[str]]], clock: HandClock
) -> None:
    """After an import of all merchants, whatever its clock said."""
    table = Table(**{f"m{n}": 4e9 for n in range(9)})
    look = looking(table)
    assert len(look()) == 9
    clock.seconds = LATE
    look()
    look()
    assert table.read == 0
    table.stamps["m1"] = 4e9 + 0.001
    assert look() == {"m1"}


@pytest.mark.parametrize("ahead", SKEWS)
def test_the_first_look_sees_what_others_may_not_know_of(
    looking: Callable[[Table], Callable[[], set[str]]], clock: HandClock, ahead: float
) -> None:
    """A worker that has just begun may be handed a record from before an edit."""
    now = clock.now().timestamp()
    table = Table(old=now - 10 * 86_400, edited=now + ahead, again=now + ahead + 0.001)
    assert looking(table)() >= {"edited", "again"}
    assert looking(Table())() == set()
