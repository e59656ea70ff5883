"""Merchants' catalogs: the store, and the directory that passes them on with the records."""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import IntegrityError, OperationalError

from pos_gateway.attempt.shared_cache import SharedCache
from pos_gateway.cache.refresh_ahead import CacheEntry
from pos_gateway.domain.errors import LedgerUnavailable, NotLoaded
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants import directory as subject
from pos_gateway.merchants.catalogs import BATCH_SIZE, CatalogStore, of_text
from pos_gateway.merchants.directory import LIFETIME, LOOK, STALE, Directory
from pos_gateway.merchants.store import YIELD_EVERY, MerchantStore
from pos_gateway.runtime import green
from tests.merchants.conftest import HandClock
from tests.merchants.test_directory import SOON, VAULT, started
from tests.merchants.test_store import a_merchant


@pytest.fixture
def directory(
    store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> Directory:
    """Over the stores, with a merchant ``m`` in them."""
    store.put([a_merchant()])
    return Directory(store, catalogs, polls, clock=clock)


def go_away(store: MerchantStore, catalogs: CatalogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the database unavailable, also for polls."""

    def away(_: object) -> None:
        raise OperationalError("select", {}, Exception("the database is away"))

    def no_answer(*_: object) -> None:
        raise LedgerUnavailable("the database is away")

    for each in (store, catalogs):
        monkeypatch.setattr(each, "stamped", away)
    monkeypatch.setattr(Polls, "rows", no_answer)


def test_a_catalog_is_written_and_read_whole(catalogs: CatalogStore) -> None:
    odd = {"ü \u2028'\"\\\x00": "V/1", " ": "#~"}
    catalogs.put({"m": {"a": "1", "b": "2"}, "n": odd})
    assert catalogs.get("m") == {"a": "1", "b": "2"}
    assert catalogs.get("n") == odd
    catalogs.put({"m": {"b": "3"}})
    assert catalogs.get("m") == {"b": "3"}
    assert catalogs.get("n") == odd
    assert catalogs.get("no-such") == {}
    catalogs.put({})


def test_catalogs_are_written_all_or_none(catalogs: CatalogStore) -> None:
    catalogs.put({"m": {"a": "1"}})
    with pytest.raises(IntegrityError):
        catalogs.put({"m": {"a": "2"}, None: {}})  # type: ignore[dict-item]
    assert catalogs.get("m") == {"a": "1"}


def test_recently_edited_catalogs_are_known(catalogs: CatalogStore, clock: HandClock) -> None:
    catalogs.put({"m": {"a": "1"}, "n": {}})
    clock.seconds = 1.0
    catalogs.put({"n": {"b": "2"}})
    first, last = 1_000_000_000.0, 1_000_000_001.0
    assert catalogs.last_edit() == last
    assert catalogs.stamped(["m"]) == {"m": ({"a": "1"}, first)}
    assert catalogs.stamped(["n", "no-such"]) == {"n": ({"b": "2"}, last)}


def test_many_catalogs_are_read_a_few_at_a_time(catalogs: CatalogStore, engine: Engine) -> None:
    written = {f"m{number}": {"a": str(number)} for number in range(2 * BATCH_SIZE + 1)}
    catalogs.put(written)
    asked_for: list[int] = []

    def heard(*told: Any) -> None:
        if "entries" in told[2]:
            asked_for.append(len(told[3]))

    event.listen(engine, "before_cursor_execute", heard)
    found = catalogs.stamped([*written, *(f"none{number}" for number in range(50))])
    assert {merchant: catalog for merchant, (catalog, _) in found.items()} == written
    assert asked_for == [BATCH_SIZE, BATCH_SIZE, 1]


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', "null", "{", ""])
def test_an_invalid_catalog_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        of_text(text)


def test_a_merchant_is_loaded_with_its_catalog(
    directory: Directory, catalogs: CatalogStore
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    merchant = directory.get("m")
    assert (merchant.pos_id("burger"), merchant.pos_id("soup")) == ("V1", None)
    assert merchant.pos_id(None) is None
    assert merchant == a_merchant()
    assert "catalog" not in merchant.model_dump()
    assert a_merchant().catalog == {}


def test_a_merchant_without_a_catalog_costs_no_query_per_order(
    directory: Directory, clock: HandClock, loads: Callable[[str, str], float]
) -> None:
    before = directory.get("m")
    clock.seconds = LIFETIME - 1
    assert directory.get("m") is before  # not even a copy
    assert loads("catalogs", "loaded") == 1


def test_a_catalogs_edit_is_seen_at_the_next_poll(
    directory: Directory, catalogs: CatalogStore, clock: HandClock
) -> None:
    found = [directory.get("m").catalog]
    for seconds, catalog in ((0.1, {"burger": "V1"}), (LOOK + 0.1, {"burger": "V2"})):
        clock.seconds = seconds
        catalogs.put({"m": catalog})
        found.append(directory.get("m").catalog)
        clock.seconds = seconds + LOOK
        directory.look()
        found.append(directory.get("m").catalog)
    clock.seconds += 0.1
    catalogs.put({"m": {}})  # cleared
    clock.seconds += LOOK
    directory.look()
    found.append(directory.get("m").catalog)
    first, second = {"burger": "V1"}, {"burger": "V2"}
    assert found == [{}, {}, first, first, second, {}]


def test_an_edited_record_keeps_its_catalog(
    directory: Directory,
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    loads: Callable[[str, str], float],
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    directory.get("m")
    clock.seconds = 0.1
    store.put([a_merchant(max_concurrency=7)])
    clock.seconds = LOOK
    directory.look()
    merchant = directory.get("m")
    assert (merchant.max_concurrency, merchant.catalog) == (7, {"burger": "V1"})
    assert loads("catalogs", "loaded") == 1


def test_a_stale_catalog_is_served_while_the_database_is_unavailable_up_to_its_bound(
    directory: Directory,
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    directory.get("m")
    clock.seconds = 100.0
    store.put([a_merchant(max_concurrency=7)])  # the record is newer than the catalog
    clock.seconds = 100.0 + LOOK
    directory.look()
    directory.get("m")
    go_away(store, catalogs, monkeypatch)
    clock.seconds = LIFETIME + STALE - 0.1
    assert directory.get("m").catalog == {"burger": "V1"}
    clock.seconds = LIFETIME + STALE
    with pytest.raises(OperationalError):
        directory.get("m")


def test_a_replaced_catalog_is_not_served_while_the_new_one_cannot_be_loaded(
    directory: Directory,
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    directory.get("m")
    clock.seconds = LOOK
    directory.look()
    catalogs.put({"m": {"burger": "V2"}})
    directory.look()
    go_away(store, catalogs, monkeypatch)
    with pytest.raises(OperationalError):
        directory.get("m")


def test_workers_read_each_others_catalogs_and_none_from_before_an_import(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    redis_url: str,
    polls: Polls,
    loads: Callable[[str, str], float],
) -> None:
    store.put([a_merchant(), a_merchant("without")])
    catalogs.put({"m": {"burger": "V1"}})
    shared_cache = SharedCache(redis_url, store, VAULT)
    one, other, late = (
        Directory(store, catalogs, polls, shared_catalogs=shared_cache.catalogs, clock=clock)
        for _ in range(3)
    )
    for each in (one, other):
        assert each.get("m").catalog == {"burger": "V1"}
        assert each.get("without").catalog == {}
    assert (loads("catalogs", "loaded"), loads("catalogs", "taken_over")) == (2, 2)
    clock.seconds = 1.0
    catalogs.put({"m": {"burger": "V2"}, "without": {"burger": "V3"}})
    late.look()
    assert late.get("m").catalog == {"burger": "V2"}, "what is in Redis is older"
    clock.seconds += LOOK
    one.look()
    assert one.get("m").catalog == {"burger": "V2"}
    assert one.get("without").catalog == {"burger": "V3"}
    shared_cache.close()


def test_catalogs_of_many_merchants_are_few_loads(
    directory: Directory, catalogs: CatalogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has just started meets all merchants, and their orders hold slots meanwhile."""
    came, loads = threading.Semaphore(0), 0
    stamped = catalogs.stamped

    def heard(ids: Sequence[str]) -> dict[str, tuple[Mapping[str, str], float]]:
        nonlocal loads
        loads += 1
        return stamped(ids)

    monkeypatch.setattr(catalogs, "stamped", heard)
    directory._catalogs.listen(lambda _id, _catalog: came.release())
    with started(directory):
        for number in range(100):
            directory._catalogs.want(f"m{number}")
        for _ in range(100):
            assert came.acquire(timeout=SOON)
    assert loads < 10


def test_catalogs_are_exchanged_with_redis_a_few_at_a_time(
    redis_url: str, store: MerchantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange has half a second, and reading its values does not yield."""
    shared = SharedCache(redis_url, store, VAULT).catalogs
    exchanges: list[tuple[str, int]] = []
    do = shared._do

    def heard(keys: Sequence[str], what: str, *more: Any) -> Sequence[Any]:
        exchanges.append((what, len(keys)))
        return do(keys, what, *more)

    monkeypatch.setattr(shared, "_do", heard)
    least = dict.fromkeys((f"m{number}" for number in range(2 * BATCH_SIZE + 1)), 0.0)
    ours = shared.claim(least).ours
    assert ours.keys() == least.keys()
    shared.store(
        {
            key: CacheEntry(fence, {"a": key}, 1.0, age=0.0, refresh_at_age=45.0, lifetime=100.0)
            for key, fence in ours.items()
        }
    )
    found = shared.claim(least).found
    assert {key: loaded.value for key, loaded in found.items()} == {k: {"a": k} for k in least}
    sizes = [BATCH_SIZE, BATCH_SIZE, 1]
    assert exchanges == [(what, n) for what in ("claim", "store", "claim") for n in sizes]
    shared.close()


def test_a_catalog_is_loaded_in_the_background_once_its_merchant_is_known(
    directory: Directory, catalogs: CatalogStore
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    came = threading.Semaphore(0)
    told = threading.Event()
    directory.listen(lambda merchant_id, _: told.set() if merchant_id == "m" else None)
    directory._catalogs.listen(lambda _id, _catalog: came.release())
    with started(directory):
        directory.want("no-such")
        directory.want("m")
        assert came.acquire(timeout=SOON)
        assert directory._catalogs.peek("m") == {"burger": "V1"}
        assert told.wait(SOON)
    assert not directory._catalogs.is_fresh("no-such")


def test_catalogs_in_memory_are_bounded_by_all_of_their_entries(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    polls: Polls,
) -> None:
    monkeypatch.setattr(subject, "MAX_ENTRIES", 12)
    directory = Directory(store, catalogs, polls, clock=clock)
    ids = ["large", "without", "middling"]
    store.put(map(a_merchant, ids))
    large = {f"sku-{n}": f"{n}" for n in range(9)}
    catalogs.put({"large": large, "middling": dict(list(large.items())[:5])})
    for each in ids:
        assert len(directory.get(each).catalog) == len(catalogs.get(each))
    assert [directory._catalogs.is_fresh(each) for each in ids] == [False, True, True]
    assert directory.get("large").catalog == large


def test_a_large_import_does_not_block_orders_at_a_poll(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    polls: Polls,
) -> None:
    directory, turns = Directory(store, catalogs, polls, clock=clock), []
    ids = [f"m{number}" for number in range(5 * YIELD_EVERY)]
    store.put(map(a_merchant, ids))
    catalogs.put({each: {} for each in ids})
    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=turns.append))
    directory.look()
    rows = 2 * len(ids)  # are read by the thousand, and then handled for each table
    assert len(turns) == rows // 1000 + 2 * (rows // YIELD_EVERY - 1)


def test_an_invalid_row_fails_no_order(
    engine: Engine, directory: Directory, catalogs: CatalogStore
) -> None:
    catalogs.put({"m": {"burger": "V1"}})
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE catalogs SET entries = '{'")
    with pytest.raises(NotLoaded, match="cannot be read"):  # retried later
        directory.get("m")


def test_an_invalid_row_does_not_affect_merchants_loaded_with_it(
    engine: Engine, store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    directory = Directory(store, catalogs, polls, clock=clock)
    ids = [f"m{number}" for number in range(9)]
    store.put(map(a_merchant, ids))
    catalogs.put({each: {"burger": "V1"} for each in ids})
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE catalogs SET entries = '[' WHERE merchant_id = 'm4'")
        connection.exec_driver_sql("UPDATE merchants SET auth = '7' WHERE id = 'm5'")
    directory.look()
    directory._cache._fly(ids)
    directory._catalogs._fly(ids)
    for each in ids:
        if each in ("m4", "m5"):
            with pytest.raises(NotLoaded, match=f"'{each}' cannot be read"):
                directory.get(each)
        else:
            assert directory.get(each).catalog == {"burger": "V1"}


def test_an_invalid_stamp_hides_no_edit_of_another_kind(
    engine: Engine, store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    directory = Directory(store, catalogs, polls, clock=clock)
    store.put([a_merchant()])
    directory.look()
    assert directory.get("m").catalog == {}
    none = "later" if engine.dialect.name == "sqlite" else "infinity"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE merchants SET updated_at = '{none}'")
    catalogs.put({"m": {"burger": "V1"}})
    clock.seconds = LOOK
    directory.look()  # on its thread, an exception would end the worker
    assert directory.get("m").catalog == {"burger": "V1"}
    for number in range(3):  # nor later, when only what is higher than the highest stamp is read
        catalogs.put({"m": {"burger": f"V{number}"}})
        clock.seconds += LOOK
        directory.look()
        assert directory.get("m").catalog == {"burger": f"V{number}"}
