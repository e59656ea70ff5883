"""Whose requests a vendor counts together."""

from typing import Any

import pytest

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.worker.quotas import quotas_of

GRANT = {
    "type": "oauth2_grant",
    "token_url": "https://api.clover.com/oauth/v2/refresh",
    "client_id": "APP1",
}
LOGIN = {
    "type": "toast",
    "token_url": "https://ws-api.toasttab.com/login",
    "client_id": "C",
    "client_secret": "s",
}


def keys(
    limits: Limits, adapter: str, auth: dict[str, Any], id_: str = "m", **more: str
) -> list[str]:
    fields = {"id": id_, "adapter": adapter, "base_url": "https://pos.example.com", **more}
    return [each.key for each in quotas_of(Merchant.parse({**fields, "auth": auth}), limits)]


def test_merchants_of_one_app_at_clover_share_it_and_no_token() -> None:
    limits = CloverAdapter.limits
    (one, app), (two, same) = (
        keys(limits, "clover", {**GRANT, "refresh_token": token}) for token in ("a", "b")
    )
    assert one != two
    assert app == same == "app clover APP1"


@pytest.mark.parametrize(("provider", "app"), [("ours", ["app clover ours"]), (None, [])])
def test_tokens_that_name_no_app_are_of_the_providers(provider: str | None, app: list[str]) -> None:
    more = {} if provider is None else {"provider": provider}
    auth = {"type": "bearer", "token": "t"}
    _, *found = keys(CloverAdapter.limits, "clover", auth, **more)
    assert found == app


def test_merchants_with_one_token_share_it() -> None:
    auth = {"type": "api_key", "header": "X-Access-Token", "key": "t"}
    found = [keys(HubRiseAdapter.limits, "hubrise", auth, id_) for id_ in "ab"]
    assert found[0] == found[1] != ["a"]


def test_locations_with_one_client_at_toast_share_nothing() -> None:
    assert [keys(ToastAdapter.limits, "toast", LOGIN, id_) for id_ in "ab"] == [["a"], ["b"]]


def test_a_vendor_that_states_no_limit_has_no_quota() -> None:
    assert keys(SquareAdapter.limits, "square", {"type": "bearer", "token": "t"}) == []


def test_a_quotas_key_is_no_merchants_id() -> None:
    """The fleet and admission know both by one name."""
    auth = {**GRANT, "refresh_token": "a"}
    assert all(" " in each for each in keys(CloverAdapter.limits, "clover", auth))
