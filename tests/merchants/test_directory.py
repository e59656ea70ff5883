"""The directory over a real database: records are read from memory, and edits are seen."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from pos_gateway.attempt.shared_cache import SharedCache
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants import directory as subject
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import LIFETIME, LOOK, STALE, Directory
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from testkit.patience import PATIENCE
from testkit.servers.redis import Redis
from tests.merchants.conftest import HandClock
from tests.merchants.test_store import a_merchant

VAULT = Vault(new_key())
SOON = PATIENCE


@contextmanager
def started(directory: Directory) -> Iterator[Directory]:
    directory.start()
    try:
        yield directory
    finally:
        directory.stop()


def test_a_record_is_read_from_memory(
    store: MerchantStore, catalogs: CatalogStore, clock: HandClock, engine: Engine, polls: Polls
) -> None:
    directory = Directory(store, catalogs, polls, clock=clock)
    store.put([a_merchant(max_concurrency=3)])
    assert directory.get("m").max_concurrency == 3
    with engine.begin() as connection:  # bypassing the edit's stamp
        connection.exec_driver_sql("UPDATE merchants SET max_concurrency = 4")
    clock.seconds = LIFETIME - 1
    assert directory.get("m").max_concurrency == 3
    clock.seconds = LIFETIME
    assert directory.get("m").max_concurrency == 4


def test_a_merchant_imported_after_a_miss_is_found(
    store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    directory = Directory(store, catalogs, polls, clock=clock)
    with pytest.raises(UnknownMerchant, match="no-such"):
        directory.get("no-such")
    assert directory.is_fresh("no-such")
    assert directory.peek("no-such") is None
    store.put([a_merchant("no-such")])
    clock.seconds = LOOK
    directory.look()
    assert directory.get("no-such") == a_merchant("no-such")


def test_a_merchant_that_is_paused_through_the_directory_is_paused_for_all(
    store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    store.put([a_merchant("m")])
    directory = Directory(store, catalogs, polls, clock=clock)
    merchant = directory.get("m")
    assert not merchant.paused
    clock.seconds = 0.1
    assert directory.pause(merchant)
    assert directory.get("m").paused
    assert store.get(["m"])["m"].paused


@pytest.mark.parametrize("edit", ["put", "resume", "remove"])
def test_a_merchant_that_was_edited_since_it_was_read_is_not_paused(
    store: MerchantStore, catalogs: CatalogStore, engine: Engine, edit: str, polls: Polls
) -> None:
    """With the clock standing still, too: an edit has a higher stamp."""
    store.put([a_merchant("m")])
    directory = Directory(store, catalogs, polls)
    catalogs.put({"m": {"sku": "item"}})
    merchant = directory.get("m")
    if edit == "put":
        store.put([a_merchant("m", base_url="https://new.example")])
    elif edit == "resume":
        assert directory.pause(merchant)
        store.put([a_merchant("m", paused=False)])
    else:
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM merchants")
    assert not directory.pause(merchant)
    assert not any(each.paused for each in store.all())


def test_stale_records_are_served_while_the_database_is_unavailable(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    polls: Polls,
) -> None:
    directory = Directory(store, catalogs, polls, clock=clock)
    store.put([a_merchant()])
    directory.get("m")

    def away(_: object) -> None:
        raise OperationalError("select", {}, Exception("the database is away"))

    monkeypatch.setattr(store, "stamped", away)
    monkeypatch.setattr(store, "edited_since", away)
    clock.seconds = LIFETIME
    assert directory.get("m") == a_merchant()
    clock.seconds = LIFETIME + STALE
    with pytest.raises(OperationalError):
        directory.get("m")


def test_listeners_get_an_edit_without_a_read(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    polls: Polls,
) -> None:
    monkeypatch.setattr(subject, "LOOK", 0.01)
    store.put([a_merchant(max_concurrency=3)])
    directory = Directory(store, catalogs, polls, clock=clock)
    told: list[int | None] = []
    came = threading.Semaphore(0)

    def on_load(_: str, merchant: object) -> None:
        told.append(getattr(merchant, "max_concurrency", None))
        came.release()

    directory.listen(on_load)
    with started(directory):
        directory.want("m")
        assert came.acquire(timeout=SOON)
        clock.seconds = 1.0
        store.put([a_merchant(max_concurrency=4)])
        assert came.acquire(timeout=SOON)
    assert told == [3, 4]


def test_workers_share_records_and_none_from_before_an_edit(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    redis_url: str,
    polls: Polls,
    loads: Callable[[str, str], float],
) -> None:
    one, other, late = (
        Directory(
            store, catalogs, polls, shared=SharedCache(redis_url, store, VAULT).records, clock=clock
        )
        for _ in range(3)
    )
    store.put([a_merchant(max_concurrency=3)])
    assert one.get("m").max_concurrency == 3
    assert other.get("m").max_concurrency == 3
    assert (loads("merchants", "loaded"), loads("merchants", "taken_over")) == (1, 1)
    clock.seconds = 1.0
    store.put([a_merchant(max_concurrency=4)])
    late.look()
    assert late.get("m").max_concurrency == 4, "what is in Redis is older"
    clock.seconds = 1.0 + LOOK
    one.look()
    assert one.get("m").max_concurrency == 4
    assert (loads("merchants", "loaded"), loads("merchants", "taken_over")) == (2, 2)


def test_a_merchant_whose_record_came_from_redis_can_be_paused(
    store: MerchantStore,
    catalogs: CatalogStore,
    redis_url: str,
    polls: Polls,
    loads: Callable[[str, str], float],
) -> None:
    store.put([a_merchant("m")])
    one, two = (
        Directory(store, catalogs, polls, shared=SharedCache(redis_url, store, VAULT).records)
        for _ in range(2)
    )
    with started(one), started(two):
        assert one.get("m") == two.get("m")
        assert loads("merchants", "taken_over") == 1
        assert two.pause(two.get("m"))
    assert store.get(["m"])["m"].paused


def test_without_redis_each_worker_loads_its_records(
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    redis: Redis,
    redis_url: str,
    polls: Polls,
) -> None:
    store.put([a_merchant()])
    redis.stop()
    directory = Directory(
        store, catalogs, polls, shared=SharedCache(redis_url, store, VAULT).records, clock=clock
    )
    assert directory.get("m") == a_merchant()
