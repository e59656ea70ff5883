"""Edits are seen whatever the clocks of editors and pollers say."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import metadata
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import LIFETIME, LOOK, Directory
from pos_gateway.merchants.edits import Edits
from pos_gateway.merchants.stamps import next_stamp
from pos_gateway.merchants.store import MerchantStore
from tests.merchants.conftest import HandClock
from tests.merchants.test_store import a_merchant

#: Seconds by which the editor's clock differs from all others.
SKEWS = [-86_400.0, -300.0, 300.0, 86_400.0]


def off_by(clock: HandClock, seconds: float) -> HandClock:
    """The clock of a machine with a wrong time of day."""
    skewed = HandClock()
    skewed.seconds = clock.seconds + seconds
    return skewed


@pytest.mark.parametrize("skew", SKEWS)
def test_an_edit_is_seen_at_the_next_poll_whatever_the_editors_clock_says(
    engine: Engine,
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    skew: float,
    polls: Polls,
) -> None:
    store.put([a_merchant(max_concurrency=3)])
    catalogs.put({"m": {"a": "1"}})
    directory = Directory(store, catalogs, polls, clock=clock)

    def seen() -> tuple[int | None, bool, str | None]:
        clock.seconds += LOOK
        directory.look()
        merchant = directory.get("m")
        return merchant.max_concurrency, merchant.paused, merchant.pos_id("a")

    assert seen() == (3, False, "1")
    wrong = off_by(clock, skew)
    MerchantStore(engine, wrong).put([a_merchant(max_concurrency=4)])
    assert seen() == (4, False, "1")
    CatalogStore(engine, wrong).put({"m": {"a": "2"}})
    assert seen() == (4, False, "2")
    MerchantStore(engine, wrong).put([a_merchant(max_concurrency=4, paused=True)])
    assert seen() == (4, True, "2")
    store.put([a_merchant(max_concurrency=4, paused=False)])
    assert seen() == (4, False, "2")
    clock.seconds += LIFETIME / 4
    directory.look()
    MerchantStore(engine, wrong).put([a_merchant(max_concurrency=5)])
    assert seen() == (5, False, "2")


@pytest.mark.parametrize("kind", ["merchants", "catalogs"])
def test_an_edit_waits_for_one_that_has_its_stamp_and_is_not_committed(
    engine: Engine, clock: HandClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Otherwise a poll between the two would take the first edit for seen."""
    monkeypatch.setattr(database, "_SQLITE_BUSY", 0.01)
    impatient = open_database(engine.url.render_as_string(hide_password=False))
    if impatient.dialect.name == "postgresql":
        event.listen(impatient, "connect", lambda each, _: each.execute("set lock_timeout = 10"))
    store, catalogs = MerchantStore(impatient, clock), CatalogStore(impatient, clock)
    store.put([a_merchant()])
    edits = {
        "merchants": [
            lambda: store.put([a_merchant("b")]),
            lambda: store.pause_unedited(a_merchant()),
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
    """Rows with stamps that the test writes."""

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
    """Polls a table; returns each poll's edits."""

    def begin(table: Table) -> Callable[[], set[str]]:
        told: set[str] = set()
        edits = Edits(
            table.last_edit, lambda each, _: told.add(each), known_for=LIFETIME, clock=clock
        )

        def look() -> set[str]:
            told.clear()
            edits.report(table.edited_since(edits.since()))
            return set(told)

        return look

    return begin


def test_edits_are_read_once(
    looking: Callable[[Table], Callable[[], set[str]]], clock: HandClock
) -> None:
    """After an import of all merchants, whatever its clock said."""
    table = Table(**{f"m{n}": 4e9 for n in range(9)})
    look = looking(table)
    assert len(look()) == 9
    clock.seconds += LOOK
    assert (look(), table.read) == (set(), 0)
    table.stamps["m1"] = 4e9 + 0.001
    assert look() == {"m1"}


@pytest.mark.parametrize("ahead", SKEWS)
def test_the_first_poll_sees_recent_edits(
    looking: Callable[[Table], Callable[[], set[str]]], clock: HandClock, ahead: float
) -> None:
    """A worker that has just started may get a shared record from before an edit."""
    now = clock.now().timestamp()
    table = Table(old=now - 10 * 86_400, edited=now + ahead, again=now + ahead + 0.001)
    assert looking(table)() >= {"edited", "again"}
    assert looking(Table())() == set()
