"""Merchants in the database: the same on SQLite and on PostgreSQL."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from pos_gateway.errors import InvalidSettings, PendingMigration, UnknownMerchant
from pos_gateway.ledger.database import open_database, require_current, upgrade
from pos_gateway.merchant import Merchant
from pos_gateway.merchants.directory import LIFETIME, Directory
from pos_gateway.merchants.store import MerchantStore
from tests.worker.lab import Lab


def a_merchant(merchant_id: str = "m", **fields: object) -> Merchant:
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos.example.com", **fields})


@pytest.fixture(params=["database_url", "postgres_url"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A fresh database of each kind."""
    engine = open_database(request.getfixturevalue(request.param))
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> MerchantStore:
    upgrade(engine)
    return MerchantStore(engine)


def test_a_fresh_database_is_pending_until_it_is_upgraded(engine: Engine) -> None:
    with pytest.raises(PendingMigration, match="pos-gateway db upgrade"):
        require_current(engine)
    upgrade(engine)
    upgrade(engine)  # harmless
    require_current(engine)


def test_a_merchant_comes_back_as_it_was_put(store: MerchantStore) -> None:
    merchant = a_merchant(
        provider="v", max_concurrency=3, request_timeout=2.5, pos={"shop": "7"}, paused=True
    )
    store.put([merchant, a_merchant("other")])
    assert store.get(["m", "nobody"]) == {"m": merchant}
    assert [each.id for each in store.all()] == ["m", "other"]


def test_a_row_from_before_there_were_pos_ids_has_none(
    store: MerchantStore, engine: Engine
) -> None:
    store.put([a_merchant()])
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE merchants SET pos = NULL")
    assert store.get(["m"]) == {"m": a_merchant()}


def test_a_record_replaces_the_one_before_it(store: MerchantStore) -> None:
    store.put([a_merchant(max_concurrency=3)])
    store.put([a_merchant(max_concurrency=4), a_merchant(max_concurrency=5)])
    assert store.get(["m"])["m"].max_concurrency == 5


def test_ten_thousand_merchants_are_stored_and_found(store: MerchantStore) -> None:
    ids = [f"m{n:05}" for n in range(10_000)]
    assert store.put(a_merchant(each) for each in ids) == 10_000
    assert sorted(store.get(ids)) == ids


def test_a_url_that_is_no_databases_is_told_without_its_password() -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_DATABASE_URL") as caught:
        open_database("postgresql://user:s3cr3t@host:port/x")
    assert "s3cr3t" not in str(caught.value)


class HandClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> None:
        raise AssertionError("the directory needs no time of day")


def test_the_directory_serves_from_memory_until_a_record_is_stale(store: MerchantStore) -> None:
    clock = HandClock()
    directory = Directory(store, clock=clock)  # type: ignore[arg-type]
    store.put([a_merchant(max_concurrency=3)])
    assert directory.get("m").max_concurrency == 3
    store.put([a_merchant(max_concurrency=4)])
    clock.seconds = LIFETIME
    assert directory.get("m").max_concurrency == 3
    clock.seconds += 0.1
    assert directory.get("m").max_concurrency == 4


def test_the_directory_says_so_when_there_is_no_such_merchant(store: MerchantStore) -> None:
    directory = Directory(store)
    with pytest.raises(UnknownMerchant, match="nobody"):
        directory.get("nobody")
    assert directory.is_fresh("nobody")
    assert directory.peek("nobody") is None


def test_a_record_that_nobody_wanted_for_a_while_is_not_taken_for_the_present_one(
    store: MerchantStore,
) -> None:
    clock = HandClock()
    directory = Directory(store, clock=clock)  # type: ignore[arg-type]
    store.put([a_merchant()])
    directory.get("m")
    clock.seconds = 2 * LIFETIME
    assert directory.is_fresh("m")
    clock.seconds += 0.1
    assert not directory.is_fresh("m")


def test_while_the_database_is_away_what_is_known_counts_as_fresh(store: MerchantStore) -> None:
    clock = HandClock()
    directory = Directory(store, clock=clock)  # type: ignore[arg-type]
    store.put([a_merchant()])
    directory.get("m")
    clock.seconds = 3 * LIFETIME
    told: list[object] = []
    directory.listen(lambda merchant_id, merchant: told.append((merchant_id, merchant)))
    directory._serve_on(["m", "nobody"])
    assert directory.is_fresh("m")
    assert not directory.is_fresh("nobody")
    assert told == [("m", directory.peek("m"))]


def test_a_worker_serves_merchants_from_postgresql(
    broker_url: str, postgres_url: str, simulated_merchants: object, tmp_path: object
) -> None:
    lab = Lab(broker_url, postgres_url, simulated_merchants, tmp_path)  # type: ignore[arg-type]
    lab.merchants.reset()
    lab.open_merchants("fast-1")
    lab.submit("fast-1", "o1", "o2")
    with lab.worker():
        assert {event["type"] for event in lab.events(2)} == {"order.accepted"}
    lab.close()


def test_a_merchant_that_is_paused_through_the_directory_is_paused_for_all(
    store: MerchantStore,
) -> None:
    store.put([a_merchant("m")])
    directory = Directory(store)
    assert not directory.get("m").paused
    directory.pause("m")
    assert directory.get("m").paused
    assert store.get(["m"])["m"].paused
