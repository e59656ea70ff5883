"""Adapters from other packages, and each adapter's requirements on a merchant's record."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest
from structlog.testing import capture_logs

from pos_gateway.adapters.registry import BUILT_IN, GROUP, adapters, collect
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.merchant import Merchant
from tests.adapters.vendors import VENDORS, guid

BUILT_IN_NAMES = {adapter.name for adapter in BUILT_IN}


class Fax(RestAdapter):
    name = "fax"


class Stairs(RestAdapter):
    """Has no steps."""

    name = "stairs"
    steps = ()


class Unfinished:
    name = "unfinished"


class Usurper(RestAdapter):
    """Takes the name of a built-in adapter."""


def quits() -> None:
    raise SystemExit(1)


def entry(name: str, what: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{what}", GROUP)


def test_an_adapter_of_another_package_is_found_by_its_entry_point() -> None:
    found = collect([entry("fax", "Fax")])
    assert set(found) == BUILT_IN_NAMES | {"fax"}
    assert isinstance(found["fax"], Fax)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("fax", "Missing"),
        ("telex", "Fax"),
        ("stairs", "Stairs"),
        ("unfinished", "Unfinished"),
        ("rest", "Usurper"),
        ("quits", "quits"),
        ("fax", "GROUP"),
    ],
)
def test_a_broken_adapter_is_logged_and_the_others_are_loaded(name: str, what: str) -> None:
    with capture_logs() as logs:
        found = collect([entry(name, what), entry("fax", "Fax")])
    assert set(found) == BUILT_IN_NAMES | {"fax"}
    assert not isinstance(found["rest"], Usurper)
    [told] = logs
    assert (told["event"], told["adapter"]) == ("adapter.unusable", name)


def test_the_built_in_adapters_are_loaded() -> None:
    assert set(adapters()) >= BUILT_IN_NAMES


@pytest.mark.parametrize(
    ("adapter", "change", "fields"),
    [
        ("rest", {"pos": {"location_id": "L1"}}, ["pos.location_id"]),
        ("square", {"pos": {}}, ["pos.location_id"]),
        ("square", {"pos": {"location_id": "L/1"}}, ["pos.location_id"]),
        ("square", {"pos": {"location_id": "L1", "site": "2"}}, ["pos.site"]),
        ("clover", {"max_concurrency": 6}, ["max_concurrency"]),
        ("clover", {"request_timeout": None}, ["request_timeout"]),
        ("hubrise", {"pos": {}}, ["pos.location_id"]),
        ("hubrise", {"auth": {"type": "bearer", "token": "t"}}, ["auth.type"]),
        ("hubrise", {"auth": {"type": "api_key", "key": "t"}}, ["auth.header"]),
        (
            "hubrise",
            {"pos": {"location_id": "3r4s3-1", "accepted_as": "NEW", "taxes_as": "TAX"}},
            ["pos.taxes_as", "pos.accepted_as"],
        ),
        ("toast", {"request_timeout": None}, ["request_timeout"]),
        ("toast", {"request_timeout": 29.9}, ["request_timeout"]),
        (
            "toast",
            {"pos": {"restaurant": "r", "naming_authority": "x" * 17, "payment": guid("p")}},
            ["pos.restaurant", "pos.dining_option", "pos.naming_authority"],
        ),
    ],
)
def test_a_wrong_field_of_a_merchants_record_is_named(
    adapter: str, change: dict[str, Any], fields: list[str]
) -> None:
    vendor = VENDORS[adapter]
    plain = vendor.merchant.model_dump(exclude={"auth"})
    merchant = Merchant.parse({**plain, "auth": vendor.record.get("auth", {}), **change})
    assert [error.field for error in vendor.adapter.check(merchant)] == fields
