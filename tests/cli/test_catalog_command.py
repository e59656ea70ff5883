"""``pos-gateway merchants catalog``: import all or nothing, show, clear."""

import json
from typing import Any

import pytest

from pos_gateway.domain.catalog import MOST
from tests.adapters.vendors import TOAST, guid
from tests.cli.conftest import Program
from tests.cli.test_merchants_command import json_lines, merchant


@pytest.fixture
def open_merchants(migrated: Program) -> Program:
    """The program with merchants ``a`` and ``b``, and ``toast``, whose ids must be GUIDs."""
    toast = merchant("toast", adapter="toast", request_timeout=30, pos=TOAST.record["pos"])
    records = json_lines(merchant("a"), merchant("b"), toast)
    assert migrated.invoke("merchants", "import", "-", stdin=records).exit_code == 0
    return migrated


def entry(sku: object = "burger", pos_id: object = "V1", merchant_id: object = "a") -> Any:
    return {"merchant_id": merchant_id, "sku": sku, "pos_id": pos_id}


def imported(program: Program, *entries: Any) -> str:
    done = program.invoke("merchants", "catalog", "import", "-", stdin=json_lines(*entries))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def shown(program: Program, merchant_id: str) -> list[str]:
    return program.invoke("merchants", "catalog", "show", merchant_id).stdout.splitlines()


def test_catalogs_are_imported_and_shown(open_merchants: Program) -> None:
    said = imported(open_merchants, entry("soup", "V2"), entry(), entry("x", "X", "b"))
    assert said == "3 entries imported for 2 merchants\n"
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "burger\tV1", "soup\tV2"]
    assert shown(open_merchants, "b") == ["SKU\tPOS_ID", "x\tX"]


def test_a_catalog_replaces_the_one_before_it_and_nobody_elses(open_merchants: Program) -> None:
    imported(open_merchants, entry("soup", "V2"), entry(), entry("x", "X", "b"))
    assert imported(open_merchants, entry("soup", "V9")) == "1 entry imported for 1 merchant\n"
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "soup\tV9"]
    assert shown(open_merchants, "b") == ["SKU\tPOS_ID", "x\tX"]


def test_what_show_writes_as_json_can_be_imported(open_merchants: Program) -> None:
    imported(open_merchants, entry("soupe à l'oignon", "V/2"), entry())
    command = ("merchants", "catalog", "show", "a", "--json")
    before = open_merchants.invoke(*command).stdout
    assert json.loads(before.splitlines()[0]) == entry()
    open_merchants.invoke("merchants", "catalog", "clear", "a")
    done = open_merchants.invoke("merchants", "catalog", "import", "-", stdin=before)
    assert done.stdout == "2 entries imported for 1 merchant\n"
    assert open_merchants.invoke(*command).stdout == before


def test_one_wrong_entry_and_nothing_is_written(open_merchants: Program) -> None:
    imported(open_merchants, entry())
    records = json_lines(
        entry("soup", "V2"),
        entry("tea", "V 3"),
        entry("", "V4"),
        entry("x" * 257),
        entry("tea", "V" * 193),
        entry("tea", 5),
        {**entry("tea"), "price": 5},
        entry("tea", "V5", "c"),
        entry("soup", "V6"),
        entry("tea", "V7", "toast"),
        entry("tea", f"{guid('drinks')}/{guid('tea')}", "toast"),
    )
    command = ("merchants", "catalog", "import", "-")
    done = open_merchants.invoke(*command, stdin=records + "{\n")
    assert (done.exit_code, done.stdout) == (1, "")
    expected = (
        "line 2: pos_id: string should match pattern",
        "line 3: sku: string should have at least 1 character",
        "line 4: sku: string should have at most 256 characters",
        "line 5: pos_id: string should match pattern",
        "line 6: pos_id: input should be a valid string (got 5)",
        "line 7: price: is not a field of this record (got 5)",
        "line 8: merchant_id: is no merchant's here; pos-gateway merchants import writes them (got ",
        "line 9: sku: was given by line 1 already (got 'soup')",
        "line 10: pos_id: must be the item's GUID at Toast, or its group's and its own: group/item",
        "line 12: (record): is not JSON: ",
        "pos-gateway: 10 of 12 entries are wrong; none was written",
    )
    reported = done.stderr.splitlines()
    assert len(reported) == len(expected)
    for line, beginning in zip(reported, expected, strict=True):
        assert line.startswith(beginning), (line, beginning)
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "burger\tV1"]


def test_a_catalog_is_bounded(open_merchants: Program) -> None:
    entries = [entry(f"sku-{n}") for n in range(MOST)]
    assert imported(open_merchants, *entries).startswith(f"{MOST} entries")
    records = json_lines(*entries, entry("one more"))
    done = open_merchants.invoke("merchants", "catalog", "import", "-", stdin=records)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"line {MOST + 1}: sku: is one more than the {MOST} ")


def test_catalogs_are_cleared_all_or_none(open_merchants: Program) -> None:
    imported(open_merchants, entry(), entry(merchant_id="b"))
    wrong = open_merchants.invoke("merchants", "catalog", "clear", "a", "tost")
    assert wrong.exit_code == 1
    assert "no merchant has the id 'tost'; did you mean 'toast'?" in wrong.stderr
    assert len(shown(open_merchants, "a")) == 2
    done = open_merchants.invoke("merchants", "catalog", "clear", "a", "b", "a")
    assert done.stdout == "2 catalogs cleared\n"
    assert shown(open_merchants, "a") == shown(open_merchants, "b") == ["SKU\tPOS_ID"]


def test_the_catalog_of_nobody_is_said_to_be_that(open_merchants: Program) -> None:
    done = open_merchants.invoke("merchants", "catalog", "show", "c")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("pos-gateway: no merchant has the id 'c'")


def test_an_import_of_merchants_leaves_their_catalogs_alone(open_merchants: Program) -> None:
    imported(open_merchants, entry())
    records = json_lines(merchant("a", max_concurrency=3))
    open_merchants.invoke("merchants", "import", "-", stdin=records)
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "burger\tV1"]
