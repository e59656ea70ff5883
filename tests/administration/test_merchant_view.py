"""One merchant as an operator sees it: everything but its secrets."""

import json
import time
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from pos_gateway.administration.merchant_view import MerchantViews
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.ledger.states import State
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.report import Trouble
from pos_gateway.runtime.vault import Vault, new_key
from tests.administration.conftest import KEY, KIM, a_merchant
from tests.reports.lab import Reports

SECRET = "Xk9-hunter2"


def views(engine: Engine, key: str = KEY) -> MerchantViews:
    vault = Vault(key)
    store = MerchantStore(engine, vault=vault)
    return MerchantViews(engine, store)


def add_order(
    engine: Engine, order_id: str, state: State, at: float, merchant_id: str = "m"
) -> None:
    row = {
        "merchant_id": merchant_id,
        "order_id": order_id,
        "action": "submit",
        "state": state,
        "pending": False,
        "created_at": at,
        "updated_at": at,
        **dict.fromkeys(("ticket", "epoch", "attempts", "deaths", "reopened"), 0),
    }
    with engine.begin() as connection:
        connection.execute(insert(orders).values(row))


def test_all_that_is_known_of_it(engine: Engine, reports: Reports, admin: MerchantAdmin) -> None:
    admin.put([a_merchant(provider="acme", max_concurrency=4)], KIM)
    admin.pause(["m"], KIM, paused=True)
    CatalogStore(engine).put({"m": {"burger": "V1"}})
    reports.worker("a").report(Trouble("m", waiting=2))
    now = time.time()
    for number, state in enumerate((State.NEW, State.ACCEPTED, State.ACCEPTED)):
        add_order(engine, f"o-{number}", state, now - number)
    add_order(engine, "o-1", State.NEW, now, "other")
    view, state, work = views(engine).file("m"), views(engine).now("m"), views(engine).work("m")
    assert view.fields == {
        "id": "m",
        "provider": "acme",
        "adapter": "rest",
        "base_url": "https://pos.example.com",
        "max_concurrency": 4,
        "paused": True,
        "auth": {"type": "none", "webhook_signature_key": "not set"},
    }
    assert admin.seen("m").stamp == view.stamp
    assert (state.record.paused, state.record.by) == (True, "kim")
    assert state.trouble is not None
    assert state.trouble.words.startswith("paused by kim since ")
    assert {each.state: each.number for each in work.counts} == {State.NEW: 1, State.ACCEPTED: 2}
    assert [each.order_id for each in work.last] == ["o-0", "o-1", "o-2"]
    assert view.has_catalog
    assert [each.what for each in view.audit] == ["merchants.import", "merchants.pause"]
    CatalogStore(engine).put({"m": {}})
    assert not views(engine).file("m").has_catalog


def test_a_quiet_merchant_has_no_trouble(engine: Engine, admin: MerchantAdmin) -> None:
    admin.put([a_merchant()], KIM)
    view = views(engine)
    now, work = view.now("m"), view.work("m")
    assert (now.trouble, now.workers, [*work.counts], work.hour.minutes) == (None, 0, [], [])
    assert now.record.exists and not view.file("m").has_catalog
    with pytest.raises(UnknownMerchant):
        view.file("n")
    assert not view.now("n").record.exists


@pytest.mark.parametrize(
    ("auth", "shown"),
    [
        ({"type": "bearer", "token": SECRET}, {"token": "set", "webhook_signature_key": "not set"}),
        ({"type": "api_key", "key": SECRET, "header": "X-Key"}, {"key": "set", "header": "X-Key"}),
        ({"type": "basic", "username": "us", "password": SECRET}, {"username": "us", "password": "set"}),
        (
            {"type": "none", "webhook_signature_key": SECRET},
            {"type": "none", "webhook_signature_key": "set"},
        ),
        (
            {"type": "oauth2", "token_url": "https://x", "client_id": "us", "client_secret": SECRET},
            {"client_secret": "set", "client_id": "us"},
        ),
    ],
)  # fmt: skip
def test_no_secret_is_in_it(
    engine: Engine, admin: MerchantAdmin, auth: dict[str, Any], shown: dict[str, str]
) -> None:
    admin.put([a_merchant(auth=auth)], KIM)
    view = views(engine).file("m")
    assert "hunter" not in repr(view)
    json.dumps(view.fields)
    assert shown.items() <= view.fields["auth"].items()
    unreadable = views(engine, new_key()).file("m")
    assert unreadable.fields["auth"]["problem"].startswith("its secrets are sealed with the key")
    assert "hunter" not in repr(unreadable)
