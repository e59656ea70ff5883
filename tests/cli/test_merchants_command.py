"""``pos-gateway merchants``: import all or nothing, list, show; the same of catalogs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.catalog import MAX_ENTRIES
from tests.adapters.vendors import TOAST, guid
from tests.cli.conftest import ROOT, Program


def merchant(merchant_id: str = "m-1", **fields: Any) -> dict[str, Any]:
    return {"id": merchant_id, "base_url": "https://pos.example.com/api", **fields}


def json_lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines_are_imported_listed_and_shown(migrated: Program) -> None:
    path = migrated.folder / "merchants.jsonl"
    path.write_text(json_lines(merchant("b", max_concurrency=3), merchant("a", paused=True)))
    assert migrated.invoke("merchants", "import", str(path)).stdout == "2 merchants imported\n"

    listed = migrated.invoke("merchants", "list").stdout.splitlines()
    assert listed == [
        "ID\tPROVIDER\tADAPTER\tBASE_URL\tLIMIT\tTIMEOUT\tPAUSED",
        "a\t\trest\thttps://pos.example.com/api\t\t\tyes",
        "b\t\trest\thttps://pos.example.com/api\t3\t\tno",
    ]
    shown = migrated.invoke("merchants", "show", "b")
    assert "max_concurrency\t3" in shown.stdout.splitlines()
    assert 'auth\t{"type": "none"}' in shown.stdout.splitlines()
    assert json.loads(migrated.invoke("merchants", "show", "b", "--json").stdout)["id"] == "b"
    migrated.invoke("merchants", "pause", "b", "--reason", "the kitchen is flooded", "--as", "kim")
    [paused] = [
        line
        for line in migrated.invoke("merchants", "show", "b").stdout.splitlines()
        if line.startswith("paused\t")
    ]
    assert paused.startswith("paused\tpaused by kim since ") and "kitchen is flooded" in paused
    assert json.loads(migrated.invoke("merchants", "show", "b", "--json").stdout)["paused"] is True


def test_what_list_writes_as_json_can_be_imported(migrated: Program) -> None:
    migrated.invoke("merchants", "import", "-", stdin=json_lines(merchant("a"), merchant("b")))
    before = migrated.invoke("merchants", "list", "--json").stdout
    done = migrated.invoke("merchants", "import", "-", stdin=before)
    assert done.stdout == "2 merchants imported\n"
    assert migrated.invoke("merchants", "list", "--json").stdout == before


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_and_a_single_record_are_imported_too(
    migrated: Program, indent: int | None
) -> None:
    several = json.dumps([merchant("a"), merchant("b")], indent=indent)
    assert migrated.invoke("merchants", "import", "-", stdin=several).exit_code == 0
    one = json.dumps(merchant("c"), indent=indent)
    assert migrated.invoke("merchants", "import", "-", stdin=one).exit_code == 0
    assert len(migrated.invoke("merchants", "list").stdout.splitlines()) == 4


@pytest.mark.parametrize("nothing", ["", "\n \n", "[]"])
@pytest.mark.parametrize("words", [("merchants",), ("merchants", "catalog")])
def test_an_import_of_nothing_is_not_done(
    migrated: Program, words: tuple[str, ...], nothing: str
) -> None:
    """The program before it in the pipe may have failed."""
    done = migrated.invoke(*words, "import", "-", stdin=nothing)
    said = "pos-gateway: no record was read, and nothing was written\n"
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", said)


def test_one_wrong_record_and_nothing_is_written(migrated: Program) -> None:
    records = json_lines(
        merchant("good"),
        merchant("m-2", base_url="ftp://pos.example.com"),
        merchant("m-3", max_concurency=5),
        merchant("m-4", max_concurrency="5"),
        merchant("m 5"),
        {"id": "m-6"},
        merchant("m-7", adapter="fax"),
        merchant("good"),
        "m-9",
    )
    done = migrated.invoke("merchants", "import", "-", stdin=records + "{\n")
    assert (done.exit_code, done.stdout) == (1, "")
    expected = (
        "line 2: base_url: must look like https://pos.example.com/api",
        "line 3: max_concurency: is not a field of this record",
        "line 4: max_concurrency: input should be a valid integer",
        "line 5: id: string should match pattern",
        "line 6: base_url: is required",
        "line 7: adapter: is not one of the adapters here: clover, hubrise, rest, square, toast",
        "line 8: id: was given by line 1 already",
        "line 9: (record): should be an object",
        "line 10: (record): is not JSON: ",
        "pos-gateway: 9 of 10 records are wrong; none was written",
    )
    reported = done.stderr.splitlines()
    assert len(reported) == len(expected)
    for line, beginning in zip(reported, expected, strict=True):
        assert line.startswith(beginning), (line, beginning)
    assert len(migrated.invoke("merchants", "list").stdout.splitlines()) == 1


def test_what_is_wrong_with_a_record_repeats_nothing_that_may_be_a_secret(
    migrated: Program,
) -> None:
    wrong = [
        merchant("a", auth={"type": "s3cr3t"}),
        merchant("b", auth="s3cr3t"),
        merchant("c", auth={"type": "bearer", "token": "s3cr3t\n"}),
        merchant("d", base_url="https://user:s3cr3t@pos.example.com"),
        merchant("f", base_url="https://user:s3cr3t"),
        merchant("g", base_url="https://[s3cr3t"),
        merchant("h", token="s3cr3t"),
        merchant("i", adapter="s3cr3t"),
        merchant("j", max_concurrency="s3cr3t"),
        merchant("k", adapter="toast", pos={"restaurant": "s3cr3t"}),
        merchant("s3cr3t "),
        "s3cr3t",
    ]
    broken = '{"id": "x", "auth": {"type": "bearer", "token": "s3cr3t"'
    done = migrated.invoke("merchants", "import", "-", stdin=json_lines(*wrong) + broken)
    assert f"{len(wrong) + 1} of {len(wrong) + 1} records are wrong" in done.stderr
    assert "s3cr3t" not in done.output
    entry = '{"merchant_id": "m", "sku": "a", "pos_id": "b", "token": "s3cr3t"'
    assert (
        "s3cr3t" not in migrated.invoke("merchants", "catalog", "import", "-", stdin=entry).output
    )


def test_an_adapter_names_what_it_needs_of_a_record(migrated: Program) -> None:
    records = json_lines(
        merchant("a", adapter="square"),
        merchant(
            "b",
            adapter="clover",
            pos={"merchant_id": "M1"},
            max_concurrency=6,
            request_timeout=30,
        ),
        merchant("c", adapter="square", pos={"location_id": "L1"}),
        merchant("d", pos={"location_id": "L1"}),
    )
    done = migrated.invoke("merchants", "import", "-", stdin=records)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "line 1: pos.location_id: is required: the Square location's id",
        "line 2: max_concurrency: must be at most 5: the POS allows no more at once",
        "line 4: pos.location_id: is no field of this adapter; it has: none",
        "pos-gateway: 3 of 4 records are wrong; none was written",
    ]


def test_adapters_of_installed_packages_are_known_and_a_broken_one_is_told_of(
    migrated: Program, tmp_path: Path
) -> None:
    (tmp_path / "acme.py").write_text(
        "from pos_gateway.adapters.rest import RestAdapter\n"
        "class Acme(RestAdapter):\n"
        "    name = 'acme'\n"
    )
    metadata = tmp_path / "acme-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[pos_gateway.adapters]\nacme = acme:Acme\nbroken = acme:Missing\n"
    )
    records = json_lines(merchant("a", adapter="acme"), merchant("b"))
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = migrated.run("merchants", "import", "-", stdin=records, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "2 merchants imported\n")
    assert done.stderr.startswith("the adapter 'broken' (acme:Missing) cannot be used: ")


def test_the_ids_by_which_a_pos_knows_a_merchant_are_kept(migrated: Program) -> None:
    records = json_lines(merchant("a", adapter="square", pos={"location_id": "L1"}))
    migrated.invoke("merchants", "import", "-", stdin=records)
    shown = json.loads(migrated.invoke("merchants", "show", "a", "--json").stdout)
    assert shown["pos"] == {"location_id": "L1"}


def test_a_wrong_record_of_a_list_is_named_by_its_number(migrated: Program) -> None:
    records = json.dumps([merchant("a"), merchant("b", paused="maybe")])
    done = migrated.invoke("merchants", "import", "-", stdin=records)
    assert done.exit_code == 1
    assert done.stderr.startswith("record 2: paused: ")


def test_a_list_that_is_not_json_is_said_once(migrated: Program) -> None:
    done = migrated.invoke("merchants", "import", "-", stdin='[\n{"id": "a"},\n')
    assert done.exit_code == 1
    assert done.stderr.startswith("the list: (record): is not JSON: ")
    assert len(done.stderr.splitlines()) == 2


def test_a_merchant_that_is_not_there_gets_the_nearest_ids(migrated: Program) -> None:
    records = json_lines(merchant("pizza-1"), merchant("pizza-2"), merchant("sushi"))
    migrated.invoke("merchants", "import", "-", stdin=records)
    done = migrated.invoke("merchants", "show", "piza-1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("pos-gateway: no merchant has the id 'piza-1'; did you mean ")
    assert "'pizza-1'" in done.stderr
    assert "sushi" not in done.stderr


def test_a_database_without_tables_names_the_command(program: Program) -> None:
    for arguments in (("list",), ("show", "m"), ("import", "-")):
        done = program.invoke("merchants", *arguments, stdin=json_lines(merchant()))
        assert done.exit_code == 1
        assert "run: pos-gateway db upgrade" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not list(program.folder.iterdir())


def test_a_database_that_is_down_is_one_sentence_with_its_url_masked(program: Program) -> None:
    url = "postgresql://gateway:hunter2@127.0.0.1:1/gateway"
    for command in (("merchants", "list"), ("db", "upgrade")):
        done = program.invoke(*command, POS_GATEWAY_DATABASE_URL=url)
        assert done.exit_code == 1
        assert "postgresql://gateway:********@127.0.0.1:1/gateway failed" in done.stderr
        assert "hunter2" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_upgrading_twice_is_harmless(program: Program) -> None:
    assert "is now up to date" in program.invoke("db", "upgrade").stdout
    assert "is up to date already" in program.invoke("db", "upgrade").stdout


def test_a_file_that_is_no_database_is_said(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear database, " * 100)
    done = program.invoke("merchants", "list", POS_GATEWAY_DATABASE_URL=f"sqlite:///{path}")
    assert done.exit_code == 1
    assert "file is not a database" in done.stderr


def test_merchants_are_paused_and_resumed_all_or_none(migrated: Program) -> None:
    records = json_lines(merchant("a"), merchant("b"), merchant("c"))
    migrated.invoke("merchants", "import", "-", stdin=records)

    def paused() -> list[str]:
        listed = migrated.invoke("merchants", "list", "--json").stdout.splitlines()
        return [each["id"] for each in map(json.loads, listed) if each["paused"]]

    assert migrated.invoke("merchants", "pause", "a", "b", "a").stdout == "2 merchants paused\n"
    assert paused() == ["a", "b"]
    assert migrated.invoke("merchants", "resume", "b").stdout == "1 merchant resumed\n"
    assert paused() == ["a"]
    wrong = migrated.invoke("merchants", "pause", "c", "bb")
    assert wrong.exit_code == 1
    assert "no merchant has the id 'bb'; did you mean 'b'?" in wrong.stderr
    assert paused() == ["a"]


# Catalogs.


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


def test_a_catalog_replaces_its_merchant_s_and_no_other(open_merchants: Program) -> None:
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
        "line 10: pos_id: must be the GUIDs of the item's menu group",
        "line 12: (record): is not JSON: ",
        "pos-gateway: 10 of 12 entries are wrong; none was written",
    )
    reported = done.stderr.splitlines()
    assert len(reported) == len(expected)
    for line, beginning in zip(reported, expected, strict=True):
        assert line.startswith(beginning), (line, beginning)
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "burger\tV1"]


def test_a_catalog_is_bounded(open_merchants: Program) -> None:
    entries = [entry(f"sku-{n}") for n in range(MAX_ENTRIES)]
    assert imported(open_merchants, *entries).startswith(f"{MAX_ENTRIES} entries")
    records = json_lines(*entries, entry("one more"))
    done = open_merchants.invoke("merchants", "catalog", "import", "-", stdin=records)
    assert done.exit_code == 1
    assert done.stderr.startswith(
        f"line {MAX_ENTRIES + 1}: sku: is one more than the {MAX_ENTRIES} "
    )


def test_catalogs_are_cleared_all_or_none(open_merchants: Program) -> None:
    imported(open_merchants, entry(), entry(merchant_id="b"))
    wrong = open_merchants.invoke("merchants", "catalog", "clear", "a", "tost")
    assert wrong.exit_code == 1
    assert "no merchant has the id 'tost'; did you mean 'toast'?" in wrong.stderr
    assert len(shown(open_merchants, "a")) == 2
    done = open_merchants.invoke("merchants", "catalog", "clear", "a", "b", "a")
    assert done.stdout == "2 catalogs cleared\n"
    assert shown(open_merchants, "a") == shown(open_merchants, "b") == ["SKU\tPOS_ID"]


def test_the_catalog_of_an_unknown_merchant_is_a_sentence(open_merchants: Program) -> None:
    done = open_merchants.invoke("merchants", "catalog", "show", "c")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("pos-gateway: no merchant has the id 'c'")


def test_an_import_of_merchants_leaves_their_catalogs_alone(open_merchants: Program) -> None:
    imported(open_merchants, entry())
    records = json_lines(merchant("a", max_concurrency=3))
    open_merchants.invoke("merchants", "import", "-", stdin=records)
    assert shown(open_merchants, "a") == ["SKU\tPOS_ID", "burger\tV1"]


def test_a_catalog_that_is_different_is_in_the_audit(open_merchants: Program) -> None:
    imported(open_merchants, entry("soup", "V2"), entry(), entry("x", "X", "b"))
    imported(open_merchants, entry(), entry("soup", "V2"), entry("x", "Y", "b"))
    clear = ("merchants", "catalog", "clear", "a", "toast", "--as", "robin", "--reason", "new menu")
    open_merchants.invoke(*clear)
    listed = open_merchants.invoke("audit", "--what", "merchants.catalog", "--json").stdout
    lines = [json.loads(line) for line in listed.splitlines()]
    assert [(each["merchant_id"], each["details"], each["operator"]) for each in lines] == [
        ("a", "2 entries", "kim"),
        ("b", "1 entry", "kim"),
        ("b", "1 entry", "kim"),
        ("a", "cleared", "robin"),
    ]
    assert lines[-1]["reason"] == "new menu"
