"""Operators change merchants: each change with its line in the audit, or none of it.

================================================  =====================================================
adversary                                         promise
================================================  =====================================================
another operator, between look and edit           the edit is refused; nothing is written
another operator, in the same moment              both changes apply, each to what the other has left
the audit cannot be written                       nothing is changed
a merchant is removed whose stamp is the highest  workers see it, and the next edit, at their next poll
an editor's clock is wrong                        the same
================================================  =====================================================
"""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event, select

from pos_gateway.audit.log import AuditFilter, AuditLog
from pos_gateway.audit.note import By
from pos_gateway.database.schema import merchants, removed_merchants
from pos_gateway.domain.errors import FieldError, InvalidMerchant, MerchantChanged, UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants import admin as administration
from pos_gateway.merchants import store as records
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import LIFETIME, LOOK, Directory
from pos_gateway.merchants.masked import Document
from pos_gateway.merchants.removed import KEPT
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from tests.merchants.conftest import HandClock
from tests.merchants.test_edits import SKEWS, off_by
from tests.merchants.test_operators_at_once import Operators, operators
from tests.merchants.test_store import a_merchant

__all__ = ["operators"]
KEY = new_key()
KIM = By("kim", "why not")
SECRET = {"type": "bearer", "token": "Xk9-hunter2"}


def admin_of(engine: Engine, clock: HandClock | None = None, key: str = KEY) -> MerchantAdmin:
    return MerchantAdmin(engine, Vault(key), lambda _: [], clock or HandClock())


def setting(**fields: Any) -> Callable[[Document], Document]:
    return lambda record: {**record, **fields}


def audited(engine: Engine) -> list[tuple[str, str]]:
    return [(each.what, each.merchant_id) for each in AuditLog(engine).all(AuditFilter())]


def test_an_edit_of_what_was_seen_is_refused_once_it_is_another(engine: Engine) -> None:
    admin = admin_of(engine)
    admin.put([a_merchant(max_concurrency=4)], KIM)
    seen = admin.seen("m")
    admin.change("m", setting(provider="p"), by=KIM, what="merchants.set")
    with pytest.raises(MerchantChanged):
        admin.change("m", setting(max_concurrency=9), by=KIM, what="x", stamp=seen.stamp)
    assert admin.seen("m").document["max_concurrency"] == 4
    assert audited(engine) == [("merchants.import", "m"), ("merchants.set", "m")]
    seen = admin.seen("m")
    admin.change("m", setting(max_concurrency=9), by=KIM, what="x", stamp=seen.stamp)


@pytest.mark.parametrize("act", ["put", "change", "pause", "resume", "remove", "reveal"])
def test_what_cannot_be_audited_is_not_done(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    admin = admin_of(engine)
    admin.put([a_merchant(auth=SECRET, provider="p"), a_merchant("paused", paused=True)], KIM)

    def rows() -> list[Any]:
        with engine.connect() as connection:
            return [
                *connection.execute(select(merchants)),
                *connection.execute(select(removed_merchants)),
            ]

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the audit is full")

    before = rows()
    for module in (administration, records):
        monkeypatch.setattr(module, "write", fail)
    acts: dict[str, Callable[[], Any]] = {
        "put": lambda: admin.put([a_merchant(), a_merchant("new")], KIM),
        "change": lambda: admin.change("m", setting(provider="q"), by=KIM, what="x"),
        "pause": lambda: admin.pause(["m"], KIM, paused=True),
        "resume": lambda: admin.pause(["paused"], KIM, paused=False),
        "remove": lambda: admin.remove("m", KIM),
        "reveal": lambda: admin.revealed(None, KIM),
    }
    with pytest.raises(RuntimeError, match="the audit is full"):
        acts[act]()
    assert rows() == before


def test_a_pause_by_the_gateway_is_audited(engine: Engine, store: MerchantStore) -> None:
    store.put([a_merchant()])
    for _ in range(2):  # also one that is paused already
        [(merchant, stamp)] = store.stamped(["m"]).values()
        assert store.pause_unedited(merchant.with_stamp(stamp))
    [line] = AuditLog(engine).all(AuditFilter())
    assert (line.what, line.operator, line.reason) == ("merchants.pause", "pos-gateway", "its POS says that it is gone")  # fmt: skip
    assert line.changes == {"paused": (False, True)}


def test_a_record_that_does_not_fit_its_adapter_is_not_written(engine: Engine) -> None:
    def check(merchant: Merchant) -> list[FieldError]:
        return [FieldError("pos.shop", "is required")] if merchant.adapter == "odd" else []

    admin = MerchantAdmin(engine, Vault(KEY), check, HandClock())
    admin.put([a_merchant()], KIM)
    with pytest.raises(InvalidMerchant, match=r"pos\.shop: is required"):
        admin.change("m", setting(adapter="odd"), by=KIM, what="x")
    assert admin.seen("m").document["adapter"] == "rest"


def test_the_check_of_secrets_that_cannot_be_opened_is_left_to_others(engine: Engine) -> None:
    problem = [FieldError("auth", "must be of the type toast")]
    admin_of(engine).put([a_merchant(auth=SECRET)], KIM)
    admin = MerchantAdmin(engine, Vault(new_key()), lambda _: problem, HandClock())
    admin.change("m", setting(max_concurrency=3), by=KIM, what="x")
    with pytest.raises(InvalidMerchant, match="must be of the type toast"):
        admin.change("m", setting(auth={}), by=KIM, what="x")


def test_unknown_merchants_are_not_changed(engine: Engine) -> None:
    admin = admin_of(engine)
    admin.put([a_merchant()], KIM)
    for act in (
        lambda: admin.change("n", setting(), by=KIM, what="x"),
        lambda: admin.remove("n", KIM),
        lambda: admin.seen("n"),
    ):
        with pytest.raises(UnknownMerchant):
            act()
    assert admin.pause(["m", "n"], KIM, paused=True).missing == ["n"]
    assert not admin.seen("m").document["paused"]
    assert not list(admin.exported(["n"]))


# What was removed.


@pytest.mark.parametrize("skew", SKEWS)
def test_a_removal_and_a_later_import_are_seen_at_the_next_poll(
    engine: Engine,
    store: MerchantStore,
    catalogs: CatalogStore,
    clock: HandClock,
    skew: float,
    polls: Polls,
) -> None:
    """The merchant that is removed had the highest stamp."""
    wrong = off_by(clock, skew)
    store.put([a_merchant("other")])
    admin_of(engine, wrong).put([a_merchant(max_concurrency=3)], KIM)
    catalogs.put({"m": {"a": "1"}})
    directory = Directory(store, catalogs, polls, clock=clock)
    assert directory.get("m").max_concurrency == 3
    for number in range(3):
        admin_of(engine, wrong).remove("m", KIM)
        clock.seconds += LOOK
        directory.look()
        with pytest.raises(UnknownMerchant):
            directory.get("m")
        assert directory.get("other")
        # By a clock that is right, or behind: its stamp is above the removal's all the same.
        admin_of(engine, clock).put([a_merchant(max_concurrency=4 + number)], KIM)
        clock.seconds += LOOK
        directory.look()
        merchant = directory.get("m")
        assert (merchant.max_concurrency, dict(merchant.catalog)) == (4 + number, {})
        clock.seconds += LIFETIME / 4
        directory.look()


def test_an_edit_after_a_removal_is_seen(
    engine: Engine, store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    """Its clock is behind, and the row with the highest stamp is gone."""
    store.put([a_merchant("other", max_concurrency=1)])
    admin_of(engine, off_by(clock, 3600)).put([a_merchant()], KIM)
    directory = Directory(store, catalogs, polls, clock=clock)
    for _ in range(3):  # what is seen is no older than a poll
        clock.seconds += LOOK
        directory.look()
        directory.get("other")
    admin_of(engine, clock).remove("m", KIM)
    admin_of(engine, clock).change("other", setting(max_concurrency=2), by=KIM, what="x")
    clock.seconds += LOOK
    directory.look()
    assert directory.get("other").max_concurrency == 2


def test_removals_are_kept_for_a_day(engine: Engine, clock: HandClock) -> None:
    admin = admin_of(engine, clock)
    for name in ("a", "b", "c"):
        admin.put([a_merchant(name)], KIM)
        admin.remove(name, KIM)
        clock.seconds += KEPT * 0.6
    with engine.connect() as connection:
        assert {row.id for row in connection.execute(select(removed_merchants))} == {"b", "c"}


def test_a_removed_merchant_that_is_asked_for_is_loaded_once(
    engine: Engine, store: MerchantStore, catalogs: CatalogStore, clock: HandClock, polls: Polls
) -> None:
    admin_of(engine, clock).put([a_merchant()], KIM)
    directory = Directory(store, catalogs, polls, clock=clock)
    directory.get("m")
    admin_of(engine, clock).remove("m", KIM)
    clock.seconds += LOOK
    directory.look()
    for _ in range(2):
        with pytest.raises(UnknownMerchant):
            directory.get("m")
    loads: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *each: loads.append(each[2]))
    clock.seconds += LOOK
    directory.look()
    with pytest.raises(UnknownMerchant):
        directory.get("m")
    assert not [each for each in loads if "merchants.base_url" in each]


# Two operators at once, on PostgreSQL.


def test_two_changes_at_once_both_apply(operators: Operators) -> None:
    admin_of(operators.first).put([a_merchant(auth=SECRET, max_concurrency=4)], KIM)
    changed = operators.at_once(
        lambda engine: admin_of(engine).change("m", setting(provider="p"), by=KIM, what="a"),
        lambda engine: admin_of(engine).change("m", setting(max_concurrency=5), by=KIM, what="b"),
    )
    assert changed == {"max_concurrency": (4, 5)}
    record = admin_of(operators.first).seen("m").document
    assert (record["provider"], record["max_concurrency"]) == ("p", 5)
    assert [what for what, _ in audited(operators.first)] == ["merchants.import", "a", "b"]


def test_an_edit_that_waits_for_another_is_refused(operators: Operators) -> None:
    admin_of(operators.first).put([a_merchant()], KIM)
    stamp = admin_of(operators.first).seen("m").stamp

    def edit(engine: Engine) -> str:
        try:
            admin_of(engine).change("m", setting(provider="q"), by=KIM, what="b", stamp=stamp)
        except MerchantChanged:
            return "refused"
        return "written"

    said = operators.at_once(
        lambda engine: admin_of(engine).change("m", setting(provider="p"), by=KIM, what="a"), edit
    )
    assert said == "refused"
    assert admin_of(operators.first).seen("m").document["provider"] == "p"


def test_a_merchant_that_is_removed_meanwhile_is_not_changed(operators: Operators) -> None:
    admin_of(operators.first).put([a_merchant()], KIM)

    def change(engine: Engine) -> str:
        try:
            admin_of(engine).change("m", setting(provider="q"), by=KIM, what="b")
        except UnknownMerchant:
            return "refused"
        return "written"

    assert operators.at_once(lambda engine: admin_of(engine).remove("m", KIM), change) == "refused"
    assert not list(admin_of(operators.first).exported())
