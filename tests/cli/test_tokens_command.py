"""``pos-gateway tokens``: created once, listed without a secret, revoked for good."""

import json
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import Engine, select

from pos_gateway.cli.root import root
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role, digest, is_well_formed, new_token
from testkit.patience import PATIENCE
from tests.cli.conftest import Program, on_terminal


@pytest.fixture
def engine(migrated: Program, database_url: str) -> Any:
    engine = open_database(database_url)
    yield engine
    engine.dispose()


def listed(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.invoke("tokens", "list", "--json").stdout.splitlines()]  # fmt: skip


def audited(engine: Engine) -> list[tuple[str, str, str]]:
    with engine.connect() as connection:
        rows = connection.execute(select(audit).order_by(audit.c.id))
        return [(row.operator, row.what, row.details) for row in rows]


def test_a_token_is_alone_on_standard_output(migrated: Program, engine: Engine) -> None:
    done = migrated.run("tokens", "create", "shop", "--role", "backend", "--rate", "50")
    assert done.returncode == 0
    token = done.stdout.removesuffix("\n")
    assert is_well_formed(token)
    assert "shown this once" in done.stderr
    assert 'curl -H "Authorization: Bearer TOKEN"' in done.stderr
    assert token not in done.stderr
    [found] = TokenStore(engine).all_valid().values()
    assert (found.name, found.role, found.rate) == ("shop", Role.BACKEND, 50)
    assert found.digest == digest(token)
    assert audited(engine) == [
        ("kim", "tokens.create", "shop, backend, 50 requests a second"),
    ]


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (">/dev/full", "No space left on device"),
        ("| exec 0<&-", "Broken pipe"),
        (">&-", "is closed"),
    ],
)
def test_a_token_that_cannot_be_written_is_not_created(
    migrated: Program, engine: Engine, output: str, why: str
) -> None:
    """Its name is not used up either."""
    command = f"{sys.executable} -m pos_gateway tokens create shop --role backend {output}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=migrated.folder, env=migrated.environment({}), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "no token was created" in done.stderr and why in done.stderr
    assert "Exception" not in done.stderr
    assert (TokenStore(engine).list(), audited(engine)) == ([], [])
    assert migrated.invoke("tokens", "create", "shop", "--role", "backend").exit_code == 0


def test_tokens_are_listed_without_their_digests(migrated: Program, engine: Engine) -> None:
    for name in ("shop", "desk"):
        done = migrated.invoke("tokens", "create", name, "--role", "operator", "--as", "lee")
        assert done.exit_code == 0
    store = TokenStore(engine)
    of_shop = store.list()[1].digest
    store.note_use({of_shop: 1_800_000_000.0})
    assert migrated.invoke("tokens", "revoke", "desk", "--as", "lee").exit_code == 0
    records = listed(migrated)
    assert [record["name"] for record in records] == ["desk", "shop"]
    assert set(records[0]) == {"name", "role", "rate", "created_at", "used_at", "revoked_at"}
    assert (records[0]["used_at"], records[1]["used_at"]) == (None, "2027-01-15T08:00:00Z")
    assert (records[0]["revoked_at"] is None, records[1]["revoked_at"]) == (False, None)
    shown = migrated.invoke("tokens", "list").stdout
    assert shown.splitlines()[0] == "NAME\tROLE\tRATE\tCREATED\tLAST_USED\tREVOKED"
    assert "2027-01-15T08:00:00Z" in shown
    everywhere = shown + json.dumps(records) + on_terminal(migrated, "tokens", "list")
    assert of_shop not in everywhere
    assert [operator for operator, _, _ in audited(engine)] == ["lee"] * 3


def test_a_name_is_used_once(migrated: Program) -> None:
    create = ("tokens", "create", "shop", "--role", "viewer")
    assert migrated.invoke(*create).exit_code == 0
    again = migrated.invoke(*create)
    assert (again.exit_code, again.stdout) == (1, "")
    assert "a token has, or had, the name 'shop': choose another" in again.stderr
    assert migrated.invoke("tokens", "revoke", "shop").exit_code == 0
    assert migrated.invoke(*create).exit_code == 1


def test_a_token_is_revoked_once_however_often_it_is_asked_for(
    migrated: Program, engine: Engine
) -> None:
    migrated.invoke("tokens", "create", "shop", "--role", "backend")
    first = migrated.invoke("tokens", "revoke", "shop")
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout.startswith("token 'shop' is revoked since 20")
    assert migrated.invoke("tokens", "revoke", "shop").stdout == first.stdout
    assert [what for _, what, _ in audited(engine)] == ["tokens.create", "tokens.revoke"]


def test_an_unknown_name_gets_those_that_are_close(migrated: Program) -> None:
    migrated.invoke("tokens", "create", "shop-eu", "--role", "backend")
    done = migrated.run("tokens", "revoke", "shop-eo")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pos-gateway: no token has the name 'shop-eo'; did you mean 'shop-eu'?\n"
    )
    assert "did you mean" not in migrated.invoke("tokens", "revoke", "zzz").stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("create", "shop"), "--role"),
        (("create", "shop", "--role", "admin"), "'backend', 'viewer', 'operator'"),
        (("create", "shop", "--role", "viewer", "--rate", "0"), "1<=x<=1000000"),
        (("create", "two words", "--role", "viewer"), "1 to 128 letters"),
        (("create", "", "--role", "viewer"), "1 to 128 letters"),
        (("revoke", "two words"), "1 to 128 letters"),
    ],
)
def test_a_wrong_command_line_creates_and_revokes_nothing(
    migrated: Program, engine: Engine, arguments: tuple[str, ...], problem: str
) -> None:
    done = migrated.invoke("tokens", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert problem in done.stderr
    assert audited(engine) == []


@pytest.mark.parametrize("command", [("revoke",), ("create", "--role", "viewer")])
def test_a_token_given_as_a_name_is_not_repeated(
    migrated: Program, command: tuple[str, ...]
) -> None:
    token = new_token()
    done = migrated.invoke("tokens", *command, token)
    assert done.exit_code == 2
    assert token[4:] not in done.stdout + done.stderr


def test_without_a_database_the_remedy_is_named(program: Program) -> None:
    done = program.run("tokens", "create", "shop", "--role", "backend")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pos-gateway db upgrade" in done.stderr


def test_a_database_that_is_away_is_said_without_its_password(program: Program) -> None:
    url = "postgresql://gateway:hunter2@127.0.0.1:1/pos"
    done = program.run("tokens", "list", POS_GATEWAY_DATABASE_URL=url)
    assert done.returncode == 1
    assert "the database at" in done.stderr
    assert "hunter2" not in done.stderr


def test_ctrl_c_ends_without_a_traceback(
    migrated: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenStore, "create", interrupted)
    done = migrated.invoke("tokens", "create", "shop", "--role", "backend")
    assert (done.exit_code, done.stdout) == (130, "")


def test_doctor_says_how_to_make_the_first_one(
    migrated: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pos_gateway.cli import doctor

    monkeypatch.setattr(
        doctor, "CHECKS", tuple(each for each in doctor.CHECKS if each[0] is doctor.check_database)
    )
    hint = "ok    tokens: none; for HTTP: pos-gateway tokens create NAME --role backend"
    assert hint in migrated.invoke("doctor").stdout.splitlines()
    migrated.invoke("tokens", "create", "shop", "--role", "backend")
    assert "tokens:" not in migrated.invoke("doctor").stdout


def test_the_group_stands_after_secrets() -> None:
    names = root.list_commands(None)  # type: ignore[arg-type]
    assert names[names.index("secrets") + 1] == "tokens"
