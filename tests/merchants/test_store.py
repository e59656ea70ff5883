"""Merchants in the database: the same on SQLite and on PostgreSQL."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.engine import open_database, require_current, upgrade
from pos_gateway.domain.errors import InvalidSettings, PendingMigration
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.runtime.vault import CannotOpen, Vault, new_key
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


def test_a_database_error_quotes_no_parameter(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(SQLAlchemyError) as caught:
        connection.execute(text("insert into nowhere values (:name)"), {"name": "Mrs. Smith"})
    assert "nowhere" in str(caught.value)
    assert "Mrs. Smith" not in str(caught.value)


def test_a_merchant_is_read_back_unchanged(store: MerchantStore) -> None:
    merchant = a_merchant(
        provider="v", max_concurrency=3, request_timeout=2.5, pos={"shop": "7"}, paused=True
    )
    store.put([merchant, a_merchant("other")])
    assert store.get(["m", "no-such"]) == {"m": merchant}
    assert [each.id for each in store.all()] == ["m", "other"]


def test_a_row_from_before_there_were_pos_ids_has_none(
    store: MerchantStore, engine: Engine
) -> None:
    store.put([a_merchant()])
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE merchants SET pos = NULL")
    assert store.get(["m"]) == {"m": a_merchant()}


def test_a_record_replaces_the_earlier_one(store: MerchantStore) -> None:
    store.put([a_merchant(max_concurrency=3)])
    store.put([a_merchant(max_concurrency=4), a_merchant(max_concurrency=5)])
    assert store.get(["m"])["m"].max_concurrency == 5


def test_a_record_without_the_field_neither_pauses_nor_resumes(store: MerchantStore) -> None:
    """An import of an edited export must not send orders to a merchant that was paused since."""
    store.put([a_merchant("m", paused=True), a_merchant("n")])
    assert store.put([a_merchant("m", provider="p"), a_merchant("n")]) == 2
    found = store.get(["m", "n"])
    assert [(each.provider, each.paused) for each in found.values()] == [("p", True), (None, False)]
    store.put([a_merchant("m", paused=False), a_merchant("n", paused=True)])
    assert [each.paused for each in store.get(["m", "n"]).values()] == [False, True]


def test_ten_thousand_merchants_are_stored_and_found(store: MerchantStore) -> None:
    ids = [f"m{n:05}" for n in range(10_000)]
    assert store.put(a_merchant(each) for each in ids) == 10_000
    assert sorted(store.get(ids)) == ids


def test_an_invalid_database_url_is_reported_without_its_password() -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_DATABASE_URL") as caught:
        open_database("postgresql://user:s3cr3t@host:port/x")
    assert "s3cr3t" not in str(caught.value)


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


def test_recently_edited_merchants_are_known(store: MerchantStore) -> None:
    before = SYSTEM_CLOCK.now().timestamp() - 1
    assert store.last_edit() == 0.0
    store.put([a_merchant("a"), a_merchant("b")])
    (_, first), (_, _) = sorted(edited := store.edited_since(before))
    assert {each for each, _ in edited} == {"a", "b"}
    assert store.stamped(["a"])["a"] == (a_merchant("a"), first)
    store.put([a_merchant("b", paused=True)])
    [(merchant_id, at)] = store.edited_since(first)
    assert (merchant_id, at) == ("b", store.stamped(["b"])["b"][1])
    assert at == store.last_edit() > first


def test_a_records_secrets_leave_the_process_encrypted(engine: Engine) -> None:
    upgrade(engine)
    store = MerchantStore(engine, vault=Vault(new_key()))
    merchant = a_merchant(auth={"type": "bearer", "token": "s3cr3t-token"}, provider="v")
    text = store.sealed(merchant)
    assert "s3cr3t" not in text
    assert store.unsealed(text) == merchant
    with pytest.raises(CannotOpen):
        MerchantStore(engine).sealed(merchant)
    with pytest.raises(ValueError, match="another version's"):
        store.unsealed('{"id": "m"}')
