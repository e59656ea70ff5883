"""Secrets at rest."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text, update

from pos_gateway.audit.note import By
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import merchants
from pos_gateway.domain.credentials import UnreadableCredentials
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.resealing import Resealed
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import CannotOpen, Vault, new_key
from tests.schema import make_tables

SECRET = "s3cr3t-marker"
OLD, NEW = new_key(), new_key()


def test_a_ciphertext_is_decrypted_only_with_its_key_for_its_owner() -> None:
    sealed = Vault(OLD).seal({"key": SECRET}, whose="m1")
    assert SECRET not in json.dumps(sealed)
    assert Vault(OLD).open(sealed, whose="m1") == {"key": SECRET}
    assert Vault(f"{NEW}, {OLD}").open(sealed, whose="m1") == {"key": SECRET}
    with pytest.raises(CannotOpen, match="POS_GATEWAY_SECRET_KEY"):
        Vault(NEW).open(sealed, whose="m1")
    with pytest.raises(CannotOpen, match="another"):
        Vault(OLD).open(sealed, whose="m2")


def test_encrypting_twice_gives_different_ciphertexts() -> None:
    vault = Vault(OLD)
    assert vault.seal({"key": "a"}, whose="m") != vault.seal({"key": "a"}, whose="m")


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_changed_ciphertext_is_not_decrypted(place: int) -> None:
    sealed = Vault(OLD).seal({"key": SECRET}, whose="m")
    data = bytearray(base64.b64decode(sealed["sealed"]))
    data[place % len(data)] ^= 1
    with pytest.raises(CannotOpen):
        Vault(OLD).open({**sealed, "sealed": base64.b64encode(data).decode()}, whose="m")


@pytest.mark.parametrize("sealed", [{}, {"key": "x"}, {"sealed": "!!"}, {"key": "", "sealed": ""}])
def test_nonsense_is_not_decrypted(sealed: dict[str, str]) -> None:
    with pytest.raises(CannotOpen):
        Vault(OLD).open(sealed, whose="m")


def test_a_passphrase_is_a_key_too() -> None:
    sealed = Vault("correct horse battery staple").seal({"key": SECRET}, whose="m")
    assert Vault(f"{NEW},correct horse battery staple").open(sealed, whose="m") == {"key": SECRET}


@pytest.mark.parametrize("text", ["!!", "", "AAAA", "AAAAAAAAAAAAAAAA", "\u00e9", "AAAA AAAA\n"])
def test_nonsense_under_a_known_key_is_not_decrypted(text: str) -> None:
    vault = Vault(OLD)
    with pytest.raises(CannotOpen, match="changed"):
        vault.open_bytes(f"{vault.current}.{text}", whose="m")


@pytest.mark.parametrize(
    ("key", "sealed"),
    [
        (
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            "630dcd29.zh3oX4o0OydtJ4YNYcLjVCoeH7Lixr2+tF4ANWaRTLkqHA==",
        ),
        (
            "correct horse battery staple",
            "60092d10.CdvUIE0LEiqHd4J9awAim74SNhGHT4N/voH27AhO9CGbIA==",
        ),
    ],
)
def test_ciphertexts_of_earlier_releases_are_decrypted(key: str, sealed: str) -> None:
    """Otherwise a database could not be read after an upgrade, or a passphrase would be weaker."""
    assert Vault(key).open_bytes(sealed, whose="m1") == b"s3cr3t"


def test_a_base64_text_of_another_length_is_a_passphrase() -> None:
    short = base64.b64encode(bytes(16)).decode()
    assert Vault(short).current not in (None, hashlib.sha256(bytes(16)).hexdigest()[:8])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path / 'gateway.db'}")
    make_tables(engine)
    yield engine
    engine.dispose()


def record(name: str, **auth: Any) -> Merchant:
    auth = auth or {"type": "bearer", "token": f"{SECRET}-{name}"}
    return Merchant.parse({"id": name, "base_url": "https://pos.example", "auth": auth})


def test_the_database_has_no_secret_in_clear(engine: Engine) -> None:
    store = MerchantStore(engine, vault=Vault(OLD))
    store.put([record("m1"), record("m2", type="none")])
    with engine.connect() as connection:
        rows = connection.execute(text("select * from merchants order by id")).all()
    assert SECRET not in repr(rows)
    assert json.loads(rows[1].auth) == {}
    assert store.get(["m1"])["m1"] == record("m1")


def test_secrets_are_not_written_without_a_key(engine: Engine) -> None:
    store = MerchantStore(engine)
    with pytest.raises(CannotOpen, match="set POS_GATEWAY_SECRET_KEY"):
        store.put([record("m2", type="none"), record("m1")])
    assert store.get(["m1", "m2"]) == {}


def test_a_merchants_unreadable_secrets_affect_no_other_merchant(engine: Engine) -> None:
    MerchantStore(engine, vault=Vault(OLD)).put([record("m1"), record("m2", type="none")])
    found = MerchantStore(engine, vault=Vault(NEW)).get(["m1", "m2"])
    assert isinstance(found["m1"].auth, UnreadableCredentials)
    assert found["m2"] == record("m2", type="none")


def test_credentials_of_another_version_affect_no_other_merchant_and_are_not_shown(
    engine: Engine,
) -> None:
    vault = Vault(OLD)
    store = MerchantStore(engine, vault=vault)
    store.put([record("m1"), record("m2")])
    newer = vault.seal({"type": "of next year", "token": SECRET}, whose="m1")
    with engine.begin() as connection:
        connection.execute(update(merchants).where(merchants.c.id == "m1").values(auth=newer))
    found = store.get(["m1", "m2"])
    assert isinstance(found["m1"].auth, UnreadableCredentials)
    assert SECRET not in found["m1"].auth.problem
    assert found["m2"] == record("m2")


def test_a_changed_secret_is_not_served_from_the_cache(engine: Engine) -> None:
    store = MerchantStore(engine, vault=Vault(OLD))
    store.put([record("m1")])
    before = store.get(["m1"])["m1"].auth
    assert store.get(["m1"])["m1"].auth is before  # not decrypted again on every load
    MerchantStore(engine, vault=Vault(OLD)).put([record("m1", type="bearer", token="changed")])
    assert store.get(["m1"])["m1"] == record("m1", type="bearer", token="changed")


def test_secrets_are_reencrypted_in_batches_beside_other_writes(engine: Engine) -> None:
    names = [f"m{n:02d}" for n in range(25)]
    old = MerchantStore(engine, vault=Vault(f"{OLD},{NEW}"))
    old.put([record(name) for name in names])
    new = MerchantStore(engine, vault=Vault(f"{NEW},{OLD}"))
    steps = new.reseal(10)
    assert next(steps) == Resealed(10, 10)
    new.put([record("m20", type="bearer", token="changed")])
    assert list(steps) == [Resealed(10, 10), Resealed(5, 4)]
    only_new = MerchantStore(engine, vault=Vault(NEW))
    found = only_new.get(names)
    assert {name: found[name] for name in names if name != "m20"} == {
        name: record(name) for name in names if name != "m20"
    }
    assert found["m20"] == record("m20", type="bearer", token="changed")
    assert [each.sealed for each in only_new.reseal()] == [0]


def test_a_concurrent_write_is_not_overwritten(postgres_url: str) -> None:
    engine = open_database(postgres_url)
    make_tables(engine)
    MerchantStore(engine, vault=Vault(OLD)).put([record("m1")])
    other = MerchantStore(engine, vault=Vault(NEW))

    class Slow(Vault):
        def seal(self, secrets: Mapping[str, Any], *, whose: str) -> dict[str, str]:
            other.put([record(whose, type="bearer", token="changed")])
            return super().seal(secrets, whose=whose)

    list(MerchantStore(engine, vault=Slow(f"{NEW},{OLD}")).reseal())
    assert other.get(["m1"])["m1"] == record("m1", type="bearer", token="changed")
    engine.dispose()


def test_secrets_of_a_merchant_that_is_paused_concurrently_are_encrypted(engine: Engine) -> None:
    MerchantStore(engine, vault=Vault(OLD)).put([record("m1")])
    operator = MerchantAdmin(engine, Vault(OLD), lambda _: [])

    class Slow(Vault):
        def seal(self, secrets: Mapping[str, Any], *, whose: str) -> dict[str, str]:
            operator.pause([whose], By("kim"), paused=True)
            return super().seal(secrets, whose=whose)

    store = MerchantStore(engine, vault=Slow(f"{NEW},{OLD}"))
    assert store.count_stale() == 1
    assert list(store.reseal()) == [Resealed(1, 1)]
    assert store.count_stale() == 0
    [merchant] = MerchantStore(engine, vault=Vault(NEW)).all()
    assert (merchant.auth, merchant.paused) == (record("m1").auth, True)


def test_undecryptable_secrets_are_named_and_do_not_stop_the_reencryption(
    engine: Engine,
) -> None:
    MerchantStore(engine, vault=Vault(new_key())).put([record("m1")])
    MerchantStore(engine, vault=Vault(OLD)).put([record("m2")])
    [done] = MerchantStore(engine, vault=Vault(f"{NEW},{OLD}")).reseal()
    assert (done.looked_at, done.sealed) == (2, 1)
    assert ["'m1'" in each for each in done.unopened] == [True]
    assert MerchantStore(engine, vault=Vault(f"{NEW},{OLD}")).count_stale() == 1
    assert MerchantStore(engine, vault=Vault(NEW)).get(["m2"])["m2"] == record("m2")
