"""Validation of a merchant's record."""

from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidMerchant
from pos_gateway.domain.merchant import Merchant


def test_a_record_needs_only_an_id_and_a_url() -> None:
    merchant = Merchant.parse({"id": "m", "base_url": "https://pos.example.com/api/"})
    assert merchant.base_url == "https://pos.example.com/api"
    assert (merchant.adapter, merchant.max_concurrency, merchant.paused) == ("rest", None, False)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "a b"}, "id"),
        ({"base_url": "pos.example.com"}, "base_url"),
        ({"base_url": "ftp://pos.example.com"}, "base_url"),
        ({"base_url": "https://"}, "base_url"),
        ({"base_url": "https://user:secret@pos.example.com"}, "base_url"),
        ({"base_url": "https://pos.example.com:99999"}, "base_url"),
        ({"base_url": "https://pos.example.com/a b"}, "base_url"),
        ({"base_url": "https://pos.example.com?key=1"}, "base_url"),
        ({"base_url": "https://pos.example.com/api?"}, "base_url"),
        ({"base_url": "https://pos.example.com/api#"}, "base_url"),
        ({"base_url": "https://@pos.example.com"}, "base_url"),
        ({"base_url": "https://pos.example.com/api/.."}, "base_url"),
        ({"base_url": "https://pos.example.com/api/%2E%2e/x"}, "base_url"),
        ({"base_url": "https://pos.example.com/api/..;/x"}, "base_url"),
        ({"id": ".."}, "id"),
        ({"pos": {"location_id": "../x"}}, "pos.location_id"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": -3}, "max_concurrency"),
        ({"max_concurrency": 2.5}, "max_concurrency"),
        ({"request_timeout": 0}, "request_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout"),
        ({"request_timeout": 1e9}, "request_timeout"),
        ({"max_concurency": 3}, "max_concurency"),
        ({"auth": {"type": "telepathy"}}, "auth"),
        ({"pos": "L1"}, "pos"),
        ({"pos": {"location_id": "a b"}}, "pos.location_id"),
        ({"pos": {"location_id": 7}}, "pos.location_id"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMerchant) as caught:
        Merchant.parse({"id": "m", "base_url": "https://pos.example.com", **change})
    assert caught.value.field == field
