"""``pos-gateway audit``: what operators did, narrowed down, without a ceiling, and as it happens."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pos_gateway.audit.log import PAGE
from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.engine import open_database
from tests.cli.conftest import Program, on_terminal, press_ctrl_c
from tests.cli.test_merchants_command import json_lines, merchant

PAUSED = {"paused": (False, True)}


def note(program: Program, *notes: Note, at: float = 0.0, reason: str | None = None) -> None:
    """Write lines, by kim."""
    engine = open_database(program.settings["POS_GATEWAY_DATABASE_URL"])
    with engine.begin() as connection:
        moment = at or datetime.now(UTC).timestamp()
        write(connection, notes, by=By("kim", reason), at=moment)
    engine.dispose()


def listed(program: Program, *arguments: str) -> list[dict[str, Any]]:
    done = program.invoke("audit", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_operators_did_is_listed_the_newest_last(migrated: Program) -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    note(migrated, Note("merchants.pause", "m", changes=PAUSED), at=at, reason="slow")
    note(migrated, Note("orders.cancel", "m", "o", "over HTTP, from 10.0.0.1"), at=at + 1)
    assert migrated.invoke("audit").stdout.splitlines() == [
        "AT\tOPERATOR\tWHAT\tMERCHANT\tORDER\tDETAILS\tREASON",
        "2026-01-31T12:00:00Z\tkim\tmerchants.pause\tm\t\tpaused: no -> yes\tslow",
        "2026-01-31T12:00:01Z\tkim\torders.cancel\tm\to\tover HTTP, from 10.0.0.1\t",
    ]
    first, second = listed(migrated)
    assert first["changes"] == {"paused": [False, True]}
    assert (second["order_id"], second["details"]) == ("o", "over HTTP, from 10.0.0.1")


def test_it_is_narrowed_down(migrated: Program) -> None:
    note(migrated, Note("merchants.pause", "m"), Note("dead.replay", "m", "o"))
    note(migrated, Note("merchants.set", "n"), at=datetime.now(UTC).timestamp() - 7200)

    def found(*arguments: str) -> list[str]:
        return [each["what"] for each in listed(migrated, *arguments)]

    assert found("--what", "merchants", "--since", "1h") == ["merchants.pause"]
    assert found("--what", "dlq") == found("--what", "dlq.replay") == ["dead.replay"]
    assert found("--merchant", "n") == ["merchants.set"]
    assert found("--order", "o", "--operator", "kim") == ["dead.replay"]
    assert found("--since", "2020-01-01T00:00:00Z") == ["merchants.pause", "dead.replay", "merchants.set"]  # fmt: skip
    wrong = migrated.invoke("audit", "--since", "yesterday")
    assert (wrong.exit_code, "is no time with its offset" in wrong.stderr) == (2, True)


def test_all_of_it_is_more_than_a_page(migrated: Program) -> None:
    note(migrated, *(Note(f"n{number}") for number in range(PAGE + 7)))
    assert len(listed(migrated)) == 100
    assert [each["what"] for each in listed(migrated, "--limit", "2")] == [f"n{PAGE + 5}", f"n{PAGE + 6}"]  # fmt: skip
    assert len(listed(migrated, "--all")) == PAGE + 7


def test_text_in_it_is_text(migrated: Program) -> None:
    """An operator's name and reason come from outside."""
    note(migrated, Note("x", "m", details="\x1b[2J\u202e"), reason="\x1b]0;title\x07")
    for shown in (migrated.invoke("audit").stdout, on_terminal(migrated, "audit", NO_COLOR="1")):
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        assert "\x07" not in shown


def test_it_follows_until_ctrl_c(migrated: Program) -> None:
    note(migrated, Note("before"))
    process = migrated.start("audit", "--follow", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["what"] == "before"
    note(migrated, Note("after", "m"))
    assert json.loads(process.stdout.readline())["what"] == "after"
    press_ctrl_c(process)
    assert process.returncode == 0


def test_the_line_of_a_change_is_the_command_s(migrated: Program) -> None:
    migrated.invoke("merchants", "import", "-", stdin=json_lines(merchant("m")))
    migrated.invoke("merchants", "pause", "m", "--as", "robin", "--reason", "closed  on\nMondays")
    imported, paused = listed(migrated, "--merchant", "m")
    assert (imported["what"], imported["details"], imported["operator"]) == ("merchants.import", "new", "kim")  # fmt: skip
    assert (paused["operator"], paused["reason"]) == ("robin", "closed on Mondays")
    assert paused["changes"] == {"paused": [False, True]}


@pytest.mark.parametrize("reason", ["x" * 501, "a\x1b[2Jb"])
def test_a_reason_is_a_line_that_can_be_shown(migrated: Program, reason: str) -> None:
    done = migrated.invoke("merchants", "pause", "m", "--reason", reason)
    assert (done.exit_code, "a reason has at most 500 characters" in done.stderr) == (2, True)
