"""The program as a whole: help, names, exit codes, terminals, plans, generated documents."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from pos_gateway import __version__
from pos_gateway.cli.exit_codes import leaves
from pos_gateway.cli.root import COMMANDS, root
from pos_gateway.cli.schema import documents
from pos_gateway.cli.worker import command
from testkit.patience import PATIENCE
from tests.cli.conftest import ROOT, Program, on_terminal


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, arguments, prog_name="pos-gateway")
    return result.exit_code, result.output


def test_help_lists_every_command_and_imports_none() -> None:
    code, shown = invoke("--help")
    assert code == 0
    for name, lazy in COMMANDS.items():
        assert f"{name}  " in shown
        assert lazy.summary in shown
    assert imported_with("root") == "set()"


def test_a_groups_help_imports_neither_the_database_nor_the_broker() -> None:
    groups = ("db", "merchants", "secrets", "enqueue", "orders", "dlq", "events", "canary")
    assert imported_with(*groups) == "set()"


def imported_with(*modules: str) -> str:
    """What these modules of the command line import that is heavy."""
    heavy = "{'rich', 'kombu', 'sqlalchemy', 'pydantic', 'celery', 'gevent'}"
    imports = ", ".join(f"pos_gateway.cli.{module}" for module in modules)
    probe = f"import sys, {imports}; sys.exit(str({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, cwd=ROOT, check=False)
    return done.stderr.decode().strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example(name: str) -> None:
    code, shown = invoke(name, "--help")
    assert code == 0
    assert "Example" in shown or "Commands:" in shown


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("enqeue",), "did you mean 'enqueue'?"),
        (("merchants", "lst"), "did you mean 'list'?"),
        (("events", "xyzzy"), "there are tail, replay, prune, run."),
    ],
)
def test_an_unknown_command_gets_the_nearest_name(arguments: tuple[str, ...], advice: str) -> None:
    code, shown = invoke(*arguments)
    assert code == 2
    assert advice in shown


#: Commands that print no data: what they do, a key, a token, or what is JSON, or Markdown, anyway.
WITHOUT_JSON = {
    *("demo", "worker", "serve", "events run", "schema", "outbox"),
    *(
        "db upgrade",
        "declare",
        "alerts test",
        "enqueue",
        "cancel",
        "orders prune",
        "events replay",
        "events prune",
    ),
    *("merchants set", "merchants edit", "merchants remove", "merchants import"),
    *("merchants pause", "merchants resume", "merchants catalog import", "merchants catalog clear"),
    *("secrets rotate", "tokens revoke", "runs stop", "canary set", "canary abort"),
    *("secrets key", "tokens create", "merchants export", "adapters new"),
}


def test_every_command_that_prints_data_has_json() -> None:
    without = {
        name
        for name, command in leaves(root)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT_JSON


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    command = [sys.executable, "-m", "pos_gateway", "demo"]
    paths = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, capture_output=True, env=paths, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def complete(*words: str) -> tuple[list[str], str]:
    """What is proposed for the last word, and what that has imported that is heavy."""
    probe = (
        "import sys\nfrom pos_gateway.cli import main\n"
        "try:\n main()\nfinally:\n"
        " print({'rich', 'kombu', 'sqlalchemy', 'celery', 'gevent'} & sys.modules.keys(), file=sys.stderr)"
    )
    asked = {
        "_POS_GATEWAY_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("pos-gateway", *words)),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-c", probe]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | asked, check=False
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()], done.stderr.strip()


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (("",), list(COMMANDS)),
        (("do",), ["doctor"]),
        (("merchants", "sl"), ["slow"]),
        (("dlq", "replay", "--pro"), ["--provider"]),
    ],
)
def test_a_shell_completes_commands_and_options(
    words: tuple[str, ...], proposed: list[str]
) -> None:
    found, heavy = complete(*words)
    assert found == proposed
    assert heavy == "set()"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    done = CliRunner().invoke(
        root, [], prog_name="pos-gateway", env={"_POS_GATEWAY_COMPLETE": f"{shell}_source"}
    )
    assert "_POS_GATEWAY_COMPLETE=" + f"{shell}_complete" in done.output
    page = (ROOT / "docs/cli.md").read_text()
    assert f"_POS_GATEWAY_COMPLETE={shell}_source pos-gateway" in page


def test_the_version_is_told() -> None:
    assert invoke("--version") == (0, f"pos-gateway {__version__}\n")
    assert version("pos-gateway") == __version__


def test_a_reader_that_goes_away_is_no_error(program: Program) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "pos_gateway", "settings"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=program.folder,
        env=program.environment({}),
        check=False,
    )
    os.close(writing)
    assert done.stderr == b""


def test_a_full_disk_is_said(program: Program) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pos_gateway", "settings"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=program.folder,
            env=program.environment({}),
            check=False,
        )
    assert done.returncode != 0
    assert done.stderr.startswith(b"pos-gateway: [Errno 28] No space left on device\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "exit_code"),
    [
        ("settings", ">&-", 0),
        ("enqueue /dev/null", "2>&-", 0),
        ("merchants import -", "<&-", 1),
    ],
)
def test_a_stream_that_the_caller_has_closed_is_no_mistake(
    program: Program, words: str, closed: str, exit_code: int
) -> None:
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m pos_gateway {words} {closed}"],
        cwd=program.folder, env=program.environment({}), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == exit_code, done.stderr


def test_no_file_or_connection_has_the_number_of_a_closed_stream(program: Program) -> None:
    """`<&- >&- 2>&- &` detaches a process: a log's line would go to the database's connection."""
    looks = """import os, pathlib, sys
from pos_gateway.cli import main
sys.argv[1:] = ["--version"]
try:
    main()
finally:
    found = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
    pathlib.Path("numbers").write_text(repr(found))
"""
    subprocess.run(
        ["bash", "-c", f'exec {sys.executable} -c "$1" <&- >&- 2>&-', "-", looks],
        cwd=program.folder, env=program.environment({}), timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (program.folder / "numbers").read_text() == repr(["/dev/null"] * 3)


@pytest.mark.parametrize("program_", ["pos_gateway", "celery -A pos_gateway.gcelery"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_worker_stands_a_stream_that_the_caller_has_closed(
    program: Program, program_: str, closed: str
) -> None:
    """It comes as far as its settings, and refuses a wrong one."""
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m {program_} worker {closed}"],
        cwd=program.folder, env=program.environment({"POS_GATEWAY_SLOTS": "none"}), timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 78


def test_settings_are_listed_with_secrets_masked(program: Program) -> None:
    done = program.invoke("settings", POS_GATEWAY_SECRET_KEY="hunter2")
    assert (done.exit_code, done.stderr) == (0, "")
    heading, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert heading == ["VARIABLE", "VALUE", "DEFAULT", "MEANING", "PROBLEM"]
    values = {row[0]: row[1] for row in rows}
    assert values["POS_GATEWAY_SECRET_KEY"] == "********"
    assert values["POS_GATEWAY_METRICS_PORT"] == "0"
    assert values["POS_GATEWAY_SLOTS"] == "200"


def test_invalid_settings_are_all_shown_and_the_exit_code_says_so(program: Program) -> None:
    wrong = {"POS_GATEWAY_SLOTS": "many", "POS_GATEWAY_SLOW_AFTE": "0.5"}
    done = program.invoke("settings", "--json", **wrong)
    assert done.exit_code == 78
    problems = {s["variable"]: s["problem"] for s in json.loads(done.stdout) if s["problem"]}
    assert "integer" in problems["POS_GATEWAY_SLOTS"]
    assert "did you mean POS_GATEWAY_SLOW_AFTER?" in problems["POS_GATEWAY_SLOW_AFTE"]
    for arguments in (("enqueue", "-"), ("merchants", "list"), ("events", "tail")):
        done = program.invoke(*arguments, **wrong)
        assert done.exit_code == 78
        assert len(done.stderr.splitlines()) == 2


def test_colours_are_for_terminals_that_want_them(program: Program) -> None:
    red = on_terminal(program, "settings", POS_GATEWAY_SLOTS="many")
    assert "\x1b[1;31m    input should be a valid integer" in red
    plain = on_terminal(program, "settings", POS_GATEWAY_SLOTS="many", NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert ";31m" not in plain
    assert "\x1b" not in program.invoke("settings", POS_GATEWAY_SLOTS="many").stdout


def test_a_progress_bar_is_drawn_on_a_terminal_only(connected: Program) -> None:
    (connected.folder / "orders.jsonl").write_text("?\n")
    shown = on_terminal(connected, "enqueue", "orders.jsonl")
    assert "\x1b[" in shown
    assert "line 1: (record): is not JSON" in shown
    assert "0 sent, 1 refused" in shown


def test_the_worker_is_celerys_with_green_threads_unless_another_pool_is_named() -> None:
    celery = [sys.executable, "-P", "-m", "celery", "-A", "pos_gateway.gcelery", "worker"]
    assert command(()) == [*celery, "--pool=gevent"]
    assert command(("-Q", "orders")) == [*celery, "--pool=gevent", "-Q", "orders"]
    for pool in (("-P", "prefork"), ("--pool=prefork",), ("-Pprefork",)):
        assert command(pool) == [*celery, *pool]


def test_the_worker_command_becomes_celery(program: Program) -> None:
    # Started in a folder with a celery.py of its own, which is not the one to become.
    (program.folder / "celery.py").write_text("raise SystemExit('the wrong one')\n")
    done = program.run("worker", "--", "--help", PYTHONSAFEPATH="1")
    assert done.returncode == 0
    assert "Start worker instance" in done.stdout


def test_generated_documents_are_up_to_date() -> None:
    assert invoke("schema", "--check", str(ROOT / "docs")) == (0, "")


def test_a_document_that_is_out_of_date_is_named(tmp_path: Path) -> None:
    assert invoke("schema", str(tmp_path))[0] == 0
    assert invoke("schema", "--check", str(tmp_path)) == (0, "")
    (tmp_path / "settings.md").write_text("old")
    code, shown = invoke("schema", "--check", str(tmp_path))
    assert code == 1
    assert f"{tmp_path / 'settings.md'}: out of date" in shown


def test_the_schema_of_an_order_is_one() -> None:
    schema = json.loads(documents()["order.schema.json"])
    Draft202012Validator.check_schema(schema)
    order = {
        "order_id": "o",
        "merchant_id": "m",
        "placed_at": "2026-01-01T12:00:00Z",
        "deliver_by": "2026-01-01T13:00:00Z",
        "currency": "EUR",
        "items": [{"sku": "s", "name": "n", "quantity": 1, "unit_price": 5}],
        "total": 5,
    }
    validator = Draft202012Validator(schema)
    assert validator.is_valid(order)
    assert not validator.is_valid({**order, "total": -1})
    assert not validator.is_valid({**order, "items": []})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://127.0.0.1:1/x?user=u&password=s3cr3t",
        "postgresql://u:s/s3cr3t@127.0.0.1:1/x",
        "postgresql://u:s@s3cr3t@127.0.0.1:1/x",
        "postgresql://u:s@s:s3cr3t@127.0.0.1:1/x",
        "postgresql://u:s@s3cr3t:7@127.0.0.1:1/x",
    ],
)
@pytest.mark.parametrize(
    "command", [("db", "upgrade"), ("merchants", "list"), ("settings",), ("settings", "--json")]
)
def test_no_command_shows_the_databases_password(
    program: Program, url: str, command: tuple[str, ...]
) -> None:
    done = program.invoke(*command, POS_GATEWAY_DATABASE_URL=url)
    assert "s3cr3t" not in done.output
    assert done.exit_code != 0 or command[0] == "settings"


LOAD = ("plan", "--orders-per-second", "300", "--peak", "2")


def test_plan_says_what_a_load_takes_and_what_gives_way_first(program: Program) -> None:
    shown = program.invoke(*LOAD, "--latency", "0.5").stdout
    lines = [line.split("\t") for line in shown.splitlines()]
    figures = {line[0]: line[1] for line in lines if len(line) == 3}
    assert figures["pods"] == "2"
    assert figures["in flight then"] == "306"
    rates = [line[1] for line in lines if len(line) == 4][1:]
    gives_way = [int(rate.replace(",", "")) for rate in rates]
    assert gives_way == sorted(gives_way)
    assert len(gives_way) == 4


def test_a_program_gets_the_same_plan_as_json(program: Program) -> None:
    told = json.loads(program.invoke(*LOAD, "--p50", "0.3", "--p99", "2", "--json").stdout)
    assert told["demand"]["latency"] == pytest.approx(0.419, abs=0.001)
    assert told["pods"] == 2
    assert {"slots", "prefetch", "merchant_limit", "memory_mib", "bottlenecks"} <= told.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--latency, or both --p50 and --p99"),
        (("--latency", "1", "--p50", "1"), "--latency, or both --p50 and --p99"),
        (("--latency", "0"), "--latency: must be a number from 0.000001"),
        (("--latency", "nan"), "--latency: must be a number from 0.000001"),
        (("--latency", "1", "--slow", "5"), "--slow: must be a share, 0 to 1 (got 5)"),
        (("--latency", "1", "--memory", "50"), "--memory: a worker takes"),
        (("--p50", "2", "--p99", "1"), "--p99: must be at least p50"),
    ],
)
def test_a_mistake_in_a_plan_is_named_with_what_would_do(
    program: Program, arguments: tuple[str, ...], said: str
) -> None:
    done = program.invoke(*LOAD, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
