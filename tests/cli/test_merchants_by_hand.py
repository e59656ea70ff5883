"""``pos-gateway merchants set | edit | export | remove | pause``, by hand, and that no secret leaks."""

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from pos_gateway.cli import merchants_set
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit, merchants
from pos_gateway.domain.credentials import Bearer, OAuth2, OAuth2Grant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.states import State
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from tests.cli.books import Books
from tests.cli.conftest import PATIENCE, Program
from tests.cli.test_merchants_command import json_lines, merchant

KEY, OTHER_KEY = new_key(), new_key()
#: What may be nowhere.
SECRET, NEW_SECRET = "Xk9-first-hunter2", "Xk9-second-hunter3"


class Desk:
    """The program with a key, and what is in its database."""

    def __init__(self, program: Program) -> None:
        self.program = program
        program.settings["POS_GATEWAY_SECRET_KEY"] = KEY
        self.engine: Engine = open_database(program.settings["POS_GATEWAY_DATABASE_URL"])

    def do(self, *arguments: str, stdin: str = "", **settings: str) -> str:
        """A command that succeeds; returns its standard output."""
        done = self.program.invoke(*arguments, stdin=stdin, **settings)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def merchants(self, *arguments: str, stdin: str = "", **settings: str) -> str:
        return self.do("merchants", *arguments, stdin=stdin, **settings)

    def fails(self, *arguments: str, stdin: str = "", **settings: str) -> str:
        """A command that fails, and writes nothing; returns what it says."""
        before = self.rows(), self.lines()
        done = self.program.invoke("merchants", *arguments, stdin=stdin, **settings)
        assert (done.exit_code in (1, 2), done.stdout) == (True, "")
        assert (self.rows(), self.lines()) == before
        return done.stderr

    def record(self, merchant_id: str = "m-1") -> Merchant:
        """The merchant as a worker reads it."""
        return MerchantStore(self.engine, vault=Vault(KEY)).get([merchant_id])[merchant_id]

    def rows(self) -> dict[str, Any]:
        with self.engine.connect() as connection:
            return {
                row["id"]: dict(row) for row in connection.execute(select(merchants)).mappings()
            }

    def lines(self) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(audit).order_by(audit.c.id)).mappings()
            return [
                {**row, "changes": json.loads(row["changes"]) if row["changes"] else {}}
                for row in rows
            ]

    def close(self) -> None:
        self.engine.dispose()


@pytest.fixture
def desk(migrated: Program) -> Iterator[Desk]:
    """With the merchants ``m-1``, which has a token, and ``plain``, which has none."""
    desk = Desk(migrated)
    token = {"type": "bearer", "token": SECRET}
    records = json_lines(
        merchant("m-1", auth=token, max_concurrency=4, provider="acme"), merchant("plain")
    )
    desk.merchants("import", "-", stdin=records)
    yield desk
    desk.close()


# No secret is anywhere.


MISPLACED = [
    (f"auth.token={SECRET}",),
    (f"auth.client_secret={SECRET}",),
    (f"auth.tls.key={SECRET}",),
    (f"auth.webhook_signature_key={SECRET}",),
    (f"auth={SECRET}",),
    (f"auth.tokn={SECRET}",),
    (f"auth.type={SECRET}",),
    (f"auth.token=@{SECRET}",),
    ("auth.token", SECRET),
    (SECRET,),
    (f"{SECRET}=",),
    (f"{SECRET}==",),
    (f"id={SECRET}",),
    (f"max_concurrency={SECRET}",),
    (f"request_timeout={SECRET}",),
    (f"paused={SECRET}",),
    (f"adapter={SECRET}",),
    (f"base_url={SECRET}",),
    (f"base_url=https://kim:{SECRET}@pos.example.com",),
    (f"pos.location_id={SECRET} {SECRET}",),
    (f"provider={SECRET * 20}",),
    ("max_concurrency=5", f"auth.token={SECRET}"),
    (f"auth.token=@x\udcff{SECRET}",),
]


@pytest.mark.parametrize(
    "assignments", MISPLACED, ids=lambda each: each[-1].replace(SECRET, "*")[:40]
)
def test_a_misplaced_secret_is_refused_and_never_repeated(
    desk: Desk, assignments: tuple[str, ...]
) -> None:
    said = desk.fails("set", "m-1", *assignments)
    assert said
    assert "hunter2" not in said


def test_a_secret_on_the_command_line_is_refused_with_the_remedy(desk: Desk) -> None:
    said = desk.fails("set", "m-1", f"auth.token={NEW_SECRET}")
    assert "auth.token: a secret is never taken from the command line" in said
    assert "auth.token=@FILE, auth.token=- for standard input, or auth.token alone" in said


@pytest.mark.parametrize("way", ["file", "stdin", "edit"])
def test_a_new_secret_is_in_no_output_and_in_no_audit(desk: Desk, way: str, tmp_path: Path) -> None:
    if way == "file":
        (tmp_path / "token").write_text(NEW_SECRET + "\n")
        said = desk.merchants("set", "m-1", f"auth.token=@{tmp_path / 'token'}")
    elif way == "stdin":
        said = desk.merchants("set", "m-1", "auth.token=-", stdin=NEW_SECRET + "\r\n")
    else:
        said = edit(desk, f"record['auth']['token'] = {NEW_SECRET!r}")
    assert said == "m-1: auth.token: changed\n"
    auth = desk.record().auth
    assert isinstance(auth, Bearer)
    assert auth.token.get_secret_value() == NEW_SECRET
    assert "hunter" not in repr(desk.lines()) + repr(desk.rows())
    assert "hunter" not in desk.do("audit", "--json") + desk.merchants("show", "m-1", "--json")
    assert desk.lines()[-1]["changes"] == {"auth.token": "changed"}


def test_a_secret_that_is_asked_for_is_not_echoed(desk: Desk) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pos_gateway", "merchants", "set", "m-1", "auth.token"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=desk.program.folder,
        env=desk.program.environment({"TERM": "xterm"}),
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"auth.token: " not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, NEW_SECRET.encode() + b"\n")
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(ours)
    assert process.wait(PATIENCE) == 0, shown
    assert b"hunter" not in shown
    auth = desk.record().auth
    assert isinstance(auth, Bearer)
    assert auth.token.get_secret_value() == NEW_SECRET


def test_what_is_typed_is_hidden(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process."""
    monkeypatch.setattr(
        merchants_set, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    done = desk.program.invoke("merchants", "set", "m-1", "auth.token", stdin=NEW_SECRET + "\n")
    assert done.exit_code == 0
    assert "auth.token: changed" in done.output
    assert "hunter" not in done.output


def test_without_a_terminal_no_secret_is_asked_for(desk: Desk) -> None:
    assert "there is no terminal to ask on; give auth.token=@FILE" in desk.fails(
        "set", "m-1", "auth.token"
    )


def test_a_wrong_secret_from_a_file_is_not_repeated(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\nsecond line\n")
    said = desk.fails("set", "m-1", f"auth.token=@{tmp_path / 'token'}")
    assert "token: must be one line of printable ASCII" in said
    assert "hunter2" not in said
    (tmp_path / "key").write_text(f"-----BEGIN {SECRET}")
    (tmp_path / "chain").write_text(f"-----BEGIN {SECRET}")
    tls = f"auth.tls.key=@{tmp_path / 'key'}", f"auth.tls.certificate=@{tmp_path / 'chain'}"
    said = desk.fails("set", "m-1", *tls)
    assert "auth.bearer.tls: cannot be used" in said
    assert "hunter2" not in said


# One field, without the secret.


@pytest.mark.parametrize("key", [KEY, OTHER_KEY, None], ids=["its", "another", "none"])
def test_a_limit_is_raised_without_the_secret_or_its_key(desk: Desk, key: str | None) -> None:
    """The one at night has neither."""
    before = desk.rows()["m-1"]
    if key is None:
        del desk.program.settings["POS_GATEWAY_SECRET_KEY"]
    else:
        desk.program.settings["POS_GATEWAY_SECRET_KEY"] = key
    said = desk.merchants(
        "set", "m-1", "max_concurrency=8", "request_timeout=5", "--reason", "slow at noon"
    )
    assert said == "m-1: max_concurrency: 4 -> 8, request_timeout: (none) -> 5.0\n"
    after = desk.rows()["m-1"]
    assert after["auth"] == before["auth"]
    assert (after["max_concurrency"], after["request_timeout"]) == (8, 5.0)
    assert after["updated_at"] > before["updated_at"]
    line = desk.lines()[-1]
    assert (line["operator"], line["what"], line["merchant_id"], line["reason"]) == (
        *("kim", "merchants.set", "m-1"),
        "slow at noon",
    )
    assert line["changes"] == {"max_concurrency": [4, 8], "request_timeout": [None, 5.0]}


def test_fields_are_set_and_removed(desk: Desk) -> None:
    desk.merchants("set", "plain", "adapter=square", "pos.location_id=L1", "provider=square")
    desk.merchants("set", "plain", "pos.location_id=L2", "provider=", "paused=yes")
    record = desk.record("plain")
    assert (record.pos, record.provider, record.paused) == ({"location_id": "L2"}, None, True)
    assert desk.lines()[-1]["changes"] == {
        "provider": ["square", None],
        "paused": [False, True],
        "pos.location_id": ["L1", "L2"],
    }
    desk.merchants("set", "plain", "pos=", "adapter=rest", "paused=no")
    assert (desk.record("plain").pos, desk.record("plain").paused) == ({}, False)


def test_another_type_of_credentials_keeps_the_fields_that_it_has(desk: Desk) -> None:
    desk.merchants("set", "m-1", "auth.webhook_signature_key=-", stdin="whsec_MfKQ9r8GKYqrTwjU")
    said = desk.merchants(
        *("set", "m-1", "auth.type=oauth2", "auth.client_id=us", "auth.client_secret=-"),
        "auth.token_url=https://pos.example.com/token",
        stdin=NEW_SECRET,
    )
    auth = desk.record().auth
    assert isinstance(auth, OAuth2)
    assert auth.webhook_signature_keys == ("whsec_MfKQ9r8GKYqrTwjU",)
    assert "auth.type: bearer -> oauth2" in said
    assert "auth.token: removed" in said
    assert "auth.client_secret: set" in said
    desk.merchants("set", "m-1", "auth=")
    assert desk.rows()["m-1"]["auth"] == {}


def test_a_grant_is_brought_in_and_another_one_later(desk: Desk, tmp_path: Path) -> None:
    def pair(number: int) -> list[str]:
        given = []
        for name in ("access_token", "refresh_token"):
            file = tmp_path / f"{name}-{number}"
            file.write_text(f"{name}-{number}\n")
            given.append(f"auth.{name}=@{file}")
        return given

    url = "auth.token_url=https://pos.example.com/oauth2/token"
    first = ("auth=", "auth.type=oauth2_grant", url, "auth.client_id=us", *pair(1))
    desk.merchants("set", "m-1", *first, "auth.expires_at=2026-12-31T12:00:00Z")
    one = desk.record().auth
    said = desk.merchants("set", "m-1", *pair(2), "auth.expires_at=1798718400")
    two = desk.record().auth
    assert isinstance(one, OAuth2Grant)
    assert isinstance(two, OAuth2Grant)
    assert (one.expires_at, two.expires_at) == (1798718400.0, 1798718400.0)
    assert one.grant_id != two.grant_id
    assert said == "m-1: auth.refresh_token: changed, auth.access_token: changed\n"
    assert "should be a time" in desk.fails("set", "m-1", "auth.expires_at=tomorrow")


def test_a_secret_to_one_with_two_leaves_the_other(desk: Desk) -> None:
    desk.merchants("set", "m-1", "auth.webhook_signature_key=-", stdin="whsec_MfKQ9r8GKYqrTwjU")
    auth = desk.record().auth
    assert isinstance(auth, Bearer)
    assert auth.token.get_secret_value() == SECRET
    assert auth.webhook_signature_keys == ("whsec_MfKQ9r8GKYqrTwjU",)
    assert edit(desk, "record['auth']['token'] = 'Xk9-third'") == "m-1: auth.token: changed\n"
    assert desk.record().auth.webhook_signature_keys == ("whsec_MfKQ9r8GKYqrTwjU",)


def test_credentials_that_no_key_opens_can_only_be_given_anew(desk: Desk) -> None:
    desk.program.settings["POS_GATEWAY_SECRET_KEY"] = OTHER_KEY
    said = desk.fails("set", "m-1", "auth.webhook_signature_key=-", stdin="whsec_MfKQ9r8GKYqrTwjU")
    assert "auth.webhook_signature_key: its secrets cannot be opened" in said
    assert "after auth=" in said
    said = desk.merchants(
        "set", "m-1", "auth=", "auth.type=bearer", "auth.token=-", stdin=NEW_SECRET
    )
    assert said == "m-1: auth: changed\n"


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["max_concurrency=0"], "max_concurrency: input should be greater than or equal to 1"),
        (["max_concurrency=8.5"], "max_concurrency: should be a whole number"),
        (["request_timeout=soon"], "request_timeout: should be a number"),
        (["request_timeout=nan"], "request_timeout: "),
        (["paused=perhaps"], "paused: should be yes or no"),
        (["base_url="], "base_url: is required"),
        (["adapter=square", "pos.shop=7"], "pos.shop: is no field of this adapter"),
        (["adapter=sqare"], "adapter: is not one of the adapters here"),
        (["max_concurency=8"], "max_concurency: is no field of a merchant's record; did you mean"),
        (["pos=L1"], "pos: is set a field at a time: pos.NAME=VALUE"),
        (["id=m-2"], "id: cannot be changed: import a record with the new id"),
        (["max_concurrency"], "max_concurrency: give max_concurrency=VALUE"),
        (["provider=a", "provider=b"], "provider: is given twice"),
        (
            ["auth.token=-", "auth.webhook_signature_key=-"],
            "standard input is another field's value",
        ),
        (["auth.key=-"], "auth.bearer.key: is not a field of this record"),
        (
            ["auth.token=@no-such-file"],
            "auth.token: the file after @ cannot be read: No such file",
        ),
        (["auth.type=berer"], "auth.type: should be one of none, api_key, basic, bearer"),
        (["auth.token=-"], "auth.token: what was read is empty; auth.token= removes it"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_written(
    desk: Desk, assignments: list[str], said: str
) -> None:
    stdin = "K" if assignments == ["auth.key=-"] else ""
    assert said in desk.fails("set", "m-1", *assignments, stdin=stdin)


def test_a_masked_secret_is_refused(desk: Desk) -> None:
    """It was copied from a terminal."""
    assert "is masked; give the secret itself" in desk.fails(
        "set", "plain", "auth.type=bearer", "auth.token=-", stdin="********"
    )


def test_a_text_may_begin_with_an_at_sign_or_come_from_a_file(desk: Desk, tmp_path: Path) -> None:
    desk.merchants("set", "plain", "provider=@@home")
    assert desk.record("plain").provider == "@home"
    (tmp_path / "url").write_text("https://new.example.com/api\n")
    desk.merchants("set", "plain", f"base_url=@{tmp_path / 'url'}")
    assert desk.record("plain").base_url == "https://new.example.com/api"


def test_what_is_the_same_is_not_written(desk: Desk) -> None:
    before = desk.rows(), desk.lines()
    done = desk.program.invoke("merchants", "set", "m-1", "max_concurrency=4")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing is different" in done.stderr
    desk.merchants("set", "m-1", "auth.token=-", stdin=SECRET)
    assert (desk.rows(), desk.lines()) == before


def test_an_unknown_merchant_gets_the_nearest_ids_before_a_secret_is_read(desk: Desk) -> None:
    for command in (("set", "m1", "auth.token=@no-such-file"), ("edit", "m1"), ("remove", "m1")):
        assert "no merchant has the id 'm1'; did you mean 'm-1'?" in desk.fails(*command)


def test_a_change_without_a_user_has_the_machine_s_name(desk: Desk) -> None:
    """As in a container, where there is no $USER."""
    del desk.program.settings["USER"]
    assert desk.merchants("set", "m-1", "provider=a", USER="")
    assert desk.lines()[-1]["operator"] == os.uname().nodename
    assert desk.merchants("set", "m-1", "provider=b", "--as", "robin", USER="")
    assert desk.lines()[-1]["operator"] == "robin"


# The editor.


def edit(desk: Desk, change: str, *arguments: str, merchant_id: str = "m-1") -> str:
    """Edit with a program that changes ``record``; returns standard output."""
    return desk.merchants("edit", merchant_id, *arguments, VISUAL=editor(desk, change))


def editor(desk: Desk, change: str) -> str:
    """A command that changes the ``record`` in a file, or its ``text``, or acts otherwise."""
    script = desk.program.folder / "editor.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "text = path.read_text()\n"
        "record = json.loads(text)\n"
        f"{change}\n"
        "path.write_text(json.dumps(record) if text == path.read_text() else text)\n"
    )
    return f"{sys.executable} {script}"


def test_an_edit_shows_no_secret_and_leaves_it_sealed_as_it_was(desk: Desk) -> None:
    before = desk.rows()["m-1"]["auth"]
    seen = desk.program.folder / "seen"
    said = edit(
        desk,
        f"record['max_concurrency'] = 9; pathlib.Path({str(seen)!r}).write_text(text + oct(path.stat().st_mode)"
        " + oct(path.parent.stat().st_mode) + ' ' + str(path))",
        *("--reason", "new terminal"),
    )
    assert said == "m-1: max_concurrency: 4 -> 9\n"
    shown = seen.read_text()
    assert '"token": "********"' in shown
    assert "hunter" not in shown
    assert desk.rows()["m-1"]["auth"] == before
    assert desk.lines()[-1]["what"] == "merchants.edit"
    assert desk.lines()[-1]["reason"] == "new terminal"
    path = Path(shown.rsplit(" ", 1)[1])
    assert oct(stat.S_IFDIR | 0o700) in shown
    assert not path.exists()
    assert not path.parent.exists()


def test_an_edit_without_the_key_changes_another_field(desk: Desk) -> None:
    before = desk.rows()["m-1"]["auth"]
    desk.program.settings["POS_GATEWAY_SECRET_KEY"] = OTHER_KEY
    assert edit(desk, "assert record['auth'] == '********'; record['paused'] = True")
    assert desk.rows()["m-1"]["auth"] == before
    assert desk.rows()["m-1"]["paused"]


def test_an_edit_that_came_second_is_refused(desk: Desk) -> None:
    change = "record['max_concurrency'] = 9; os.system('{} -m pos_gateway merchants set m-1 provider=other')"
    visual = editor(desk, change.format(sys.executable))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in desk.program.environment({}).items():
            patch.setenv(name, value)
        done = desk.program.invoke("merchants", "edit", "m-1", VISUAL=visual)
    assert done.exit_code == 1
    assert "merchant 'm-1' was edited meanwhile; nothing was written" in done.stderr
    assert desk.rows()["m-1"]["max_concurrency"] == 4
    assert desk.record().provider == "other"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("record['max_concurrency'] = 0", "max_concurrency: input should be greater"),
        ("record['id'] = 'm-2'", "id: cannot be changed"),
        ("record['auth']['token'] = 'a\\nb'", "token: must be one line of printable ASCII"),
        ("record['auth']['tokn'] = 'Xk9-hunter4'", "tokn: is not a field of this record"),
        (
            "record['auth'] = {'type': 'basic', 'username': 'us', 'password': '********'}",
            "password: is masked",
        ),
        ("record = []", "the record is no JSON object any more"),
        ("text = '{'; record = None", "is not JSON"),
        ("sys.exit(1)", "Editing failed"),
        ("path.write_bytes(b'\\xff'); sys.exit(0)", "is not UTF-8"),
    ],
)
def test_a_wrong_edit_is_named_and_nothing_is_written(desk: Desk, change: str, said: str) -> None:
    if "text = " in change:
        change = "path.write_text('{'); sys.exit(0)"
    stderr = desk.fails("edit", "m-1", VISUAL=editor(desk, change))
    assert said in stderr
    assert "hunter" not in stderr


def test_a_field_that_the_edit_leaves_out_is_removed_but_paused_stays(desk: Desk) -> None:
    desk.merchants("pause", "m-1")
    assert edit(desk, "del record['max_concurrency'], record['paused'], record['auth']") == (
        "m-1: max_concurrency: 4 -> (none), auth.type: bearer -> none, auth.token: removed\n"
    )
    assert desk.record().paused


# Export and import.


def test_an_export_is_what_import_takes_with_its_secrets_sealed(desk: Desk) -> None:
    desk.merchants("set", "plain", "adapter=square", "pos.location_id=L1", "paused=yes")
    exported = desk.merchants("export")
    assert "hunter" not in exported
    before = desk.rows(), desk.lines()
    assert desk.merchants("import", "-", stdin=exported) == "2 merchants imported\n"
    assert (desk.rows(), desk.lines()) == before  # nothing is different
    assert desk.merchants("export", "m-1") == exported.splitlines(keepends=True)[0]

    desk.merchants("remove", "m-1")
    desk.merchants("remove", "plain")
    assert desk.merchants("import", "-", stdin=exported) == "2 merchants imported\n"
    auth = desk.record().auth
    assert isinstance(auth, Bearer)
    assert auth.token.get_secret_value() == SECRET
    assert (desk.record("plain").pos, desk.record("plain").paused) == ({"location_id": "L1"}, True)


def test_an_export_needs_no_key(desk: Desk) -> None:
    exported = desk.merchants("export")
    del desk.program.settings["POS_GATEWAY_SECRET_KEY"]
    assert desk.merchants("export") == exported


def test_sealed_secrets_open_for_their_merchant_and_key_alone(desk: Desk) -> None:
    [record] = map(json.loads, desk.merchants("export", "m-1").splitlines())
    other = json_lines({**record, "id": "m-2"})
    assert "record 1: auth: is changed since it was sealed, or sealed for another" in desk.fails(
        "import", "-", stdin=other
    )
    sealed = json_lines(record)
    said = desk.fails("import", "-", stdin=sealed, POS_GATEWAY_SECRET_KEY=OTHER_KEY)
    assert "auth: is sealed with the key" in said
    broken = json_lines({**record, "auth": {"key": 7, "sealed": []}})
    assert "auth: is neither sealed nor has a type" in desk.fails("import", "-", stdin=broken)
    without_id = json_lines({**record, "id": 7})
    assert "record 1: id: " in desk.fails("import", "-", stdin=without_id)


def test_revealed_secrets_are_audited_before_they_are_shown(desk: Desk) -> None:
    shown = desk.merchants("export", "--reveal", "--reason", "moves")
    assert SECRET in shown
    line = desk.lines()[-1]
    assert [each["what"] for each in desk.lines()].count("merchants.reveal") == 1  # not of plain
    assert (line["operator"], line["merchant_id"], line["reason"]) == ("kim", "m-1", "moves")
    assert "hunter" not in repr(desk.lines())
    assert desk.merchants("import", "-", stdin=shown) == "2 merchants imported\n"


def test_secrets_are_not_revealed_without_an_operator_or_the_key(desk: Desk) -> None:
    del desk.program.settings["USER"]
    assert "--reveal needs --as NAME" in desk.fails("export", "--reveal", USER="")
    said = desk.fails(
        "export", "--reveal", "--as", "kim", POS_GATEWAY_SECRET_KEY=OTHER_KEY, USER=""
    )
    assert "POS_GATEWAY_SECRET_KEY does not open the secrets of 'm-1'" in said


def test_an_export_of_an_unknown_merchant_is_a_sentence(desk: Desk) -> None:
    assert "no merchant has the id 'm-2'" in desk.fails("export", "m-1", "m-2")


def test_an_import_has_a_line_for_each_merchant_that_is_new_or_different(desk: Desk) -> None:
    before = len(desk.lines())
    token = {"type": "bearer", "token": NEW_SECRET}
    records = json_lines(
        merchant("m-1", auth=token, max_concurrency=5, provider="acme"),
        merchant("plain"),
        merchant("new", paused=True),
    )
    desk.merchants("import", "-", "--reason", "release 7", stdin=records)
    found = {each["merchant_id"]: each for each in desk.lines()[before:]}
    assert found.keys() == {"m-1", "new"}
    assert found["m-1"]["changes"] == {"max_concurrency": [4, 5], "auth.token": "changed"}
    assert (found["new"]["details"], found["new"]["changes"]) == ("new", {"paused": [None, True]})
    assert {each["reason"] for each in found.values()} == {"release 7"}
    assert {each["what"] for each in found.values()} == {"merchants.import"}


def test_an_import_without_a_user_has_the_machine_s_name(desk: Desk) -> None:
    """``kubectl exec`` has no $USER, and scripts depend on it."""
    del desk.program.settings["USER"]
    desk.merchants("import", "-", stdin=json_lines(merchant("new")), USER="")
    assert desk.lines()[-1]["operator"] == os.uname().nodename


# Pausing.


@pytest.fixture
def acme(desk: Desk) -> Desk:
    """A provider with three merchants, of which ``by-itself`` was paused before."""
    records = (merchant(name, provider="acme") for name in ("by-itself", "c", "d"))
    desk.merchants("import", "-", stdin=json_lines(*records))
    desk.merchants("pause", "by-itself", "--reason", "no lunch on Mondays")
    return desk


def paused(desk: Desk) -> set[str]:
    return {name for name, row in desk.rows().items() if row["paused"]}


def test_a_provider_is_paused_and_resumed_but_for_what_was_paused_by_itself(acme: Desk) -> None:
    done = acme.program.invoke("merchants", "pause", "--provider", "acme", "--reason", "outage")
    assert done.stdout == "3 merchants paused\n"
    assert "1 was paused already" in done.stderr
    assert paused(acme) == {"m-1", "by-itself", "c", "d"}
    line = acme.lines()[-1]
    assert (line["details"], line["reason"], line["changes"]) == (
        "provider acme",
        "outage",
        {"paused": [False, True]},
    )
    done = acme.program.invoke("merchants", "resume", "--provider", "acme")
    assert done.stdout == "3 merchants resumed\n"
    assert "by-itself: not paused with the provider, and stays paused" in done.stderr
    assert paused(acme) == {"by-itself"}
    assert acme.merchants("resume", "--provider", "acme", "--all") == "1 merchant resumed\n"
    assert paused(acme) == set()


def test_a_merchant_that_is_paused_again_by_itself_stays_paused(acme: Desk) -> None:
    acme.merchants("pause", "--provider", "acme")
    acme.merchants("resume", "c")
    acme.merchants("set", "c", "paused=yes")
    acme.merchants("resume", "--provider", "acme")
    assert paused(acme) == {"by-itself", "c"}


def test_a_wrong_choice_of_merchants_is_a_sentence(acme: Desk) -> None:
    for command in ("pause", "resume"):
        assert "give the IDs of merchants, or --provider" in acme.fails(command)
        assert "give the IDs" in acme.fails(command, "c", "--provider", "acme")
        said = acme.fails(command, "--provider", "acne")
        assert "no merchant has the provider 'acne'; did you mean 'acme'?" in said
    assert "--all goes with --provider" in acme.fails("resume", "c", "--all")


# Removing.


def test_a_merchant_is_removed_with_its_catalog(desk: Desk) -> None:
    CatalogStore(desk.engine).put({"m-1": {"burger": "V1"}})
    assert desk.merchants("remove", "m-1", "--reason", "closed") == "1 merchant removed\n"
    assert desk.rows().keys() == {"plain"}
    assert CatalogStore(desk.engine).get("m-1") == {}
    line = desk.lines()[-1]
    assert (line["what"], line["merchant_id"], line["reason"]) == (
        "merchants.remove",
        "m-1",
        "closed",
    )
    assert "no merchant has the id 'm-1'" in desk.fails("remove", "m-1")


def test_a_merchant_with_open_orders_is_removed_by_force_alone(desk: Desk, books: Books) -> None:
    books.order("o-1", State.NEW)
    books.order("o-2", State.NEW)
    books.order("o-3", State.IN_DOUBT)
    books.order("o-4", State.ACCEPTED, reason=None)
    said = desk.fails("remove", "m-1")
    assert "merchant 'm-1' has open orders: 1 in doubt, 2 new; wait until they have ended" in said
    assert "end as order.failed (unknown_merchant)" in said
    assert "stay in doubt: ask the merchant, then pos-gateway orders resolve" in said
    said = desk.merchants("remove", "m-1", "--force")
    assert (
        "orders that have not ended: 1 in doubt, 2 new; those that its POS cannot have end" in said
    )
    assert desk.lines()[-1]["details"] == "open orders: 1 in doubt, 2 new"
