"""The commands and programs of docs/http.md do what the page says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from jsonschema import Draft202012Validator

from pos_gateway.database.engine import open_database
from pos_gateway.domain.credentials import NoAuth
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.server.openapi import OPERATIONS, document
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.patience import PATIENCE
from tests.server.lab import Server, order, serving
from tests.worker.lab import Lab

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()
#: Orders whose events the consumers read.
IDS = [f"e-{number}" for number in range(1, 6)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


CURLS = [block for block in blocks("sh") if "curl" in block]
SECRET = new_key()
KEY = f"whsec_{b64encode(b'a key of thirty-two bytes or so.').decode()}"


class Program(NamedTuple):
    """How a consumer of the page is run."""

    language: str
    file: str
    #: What has to be installed for it.
    needs: str
    command: tuple[str, ...]
    #: Makes the command's program first.
    build: tuple[str, ...] = ()
    #: What its failures are called.
    failure: str = ""


PROGRAMS = (
    Program("python", "consumer.py", sys.executable, (sys.executable, "consumer.py")),
    Program("js", "consumer.mjs", "node", ("node", "consumer.mjs")),
    Program(
        *("go", "consumer.go", "go", ("./consumer",)),
        # Unoptimized, with the whole of the standard library: a quarter less to compile.
        ("go", "build", "-gcflags=all=-N -l", "consumer.go"),
    ),
)


@pytest.fixture(scope="module")
def published(
    server: Server,
    module_url: str,
    module_database: str,
    simulated_merchants: SimulatedMerchants,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """The server, once a worker has delivered some orders."""
    simulated_merchants.reset()
    lab = Lab(module_url, module_database, simulated_merchants, tmp_path_factory.mktemp("worker"))
    try:
        lab.open_merchants("m-1")
        with lab.worker():
            for after, each in enumerate(IDS):
                assert server.post("/v1/orders", order(each, "m-1")).status_code == 202
                page = server.get(f"/v1/events?after={after}&wait=60", timeout=90).json()
                assert page["next"] == after + 1, page
    finally:
        lab.close()
    return server


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    (tmp_path / "order.json").write_text(json.dumps(order("o-1", "m-1")))
    lines = [json.dumps(order(f"line-{n}", "m-1")) for n in range(3)]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "token").write_text(server.token + "\n")
    return tmp_path


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_request_of_the_page_is_answered(published: Server, folder: Path) -> None:
    *others, _ = CURLS
    assert len(others) == 7
    shown = []
    for block in others:
        # --fail: a refusal is an error. A slow machine has more time for the stream.
        commands = re.sub(r"URL=http\S+\n", "", block).replace("curl -sS", "curl -sSf")
        commands = commands.replace("--max-time 2 ", "--max-time 10 ")
        script = f"TOKEN=$(cat token)\nURL={published.url}\n{commands}"
        done = subprocess.run(
            ["sh", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        shown.append(done.stdout)
    ready, submitted, batch, cancelled, seen, page, stream = shown
    assert json.loads(ready) == {"ready": True}
    assert json.loads(submitted) == json.loads(blocks("json")[0])
    assert [each["status"] for each in json.loads(batch)] == [202] * 3
    assert json.loads(cancelled)["order_id"] == "o-1"
    assert {"state", "attempts", "events", "cancellation"} <= json.loads(seen).keys()
    events = json.loads(page)["events"]
    assert [event["order_id"] for event in events] == IDS
    assert json.loads(page)["next"] == len(IDS)
    assert re.findall(r"^id: (\d+)\nevent: ", stream, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert re.findall(r"^event: (.*)$", stream, re.MULTILINE) == ["order.accepted"] * 5


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_pages_callback_is_answered(
    published: Server, module_url: str, module_database: str, tmp_path: Path
) -> None:
    (tmp_path / "webhook_signature_key").write_text(KEY + "\n")
    engine = open_database(module_database)
    store = MerchantStore(engine, vault=Vault(SECRET))
    auth = NoAuth.model_validate({"type": "none", "webhook_signature_key": KEY})
    store.put([store.get(["m-1"])["m-1"].model_copy(update={"auth": auth})])
    engine.dispose()
    settings = {"POS_GATEWAY_SECRET_KEY": SECRET}
    with serving(module_url, module_database, tmp_path / "log", settings) as server:
        commands = CURLS[-1].replace("curl -sS", "curl -sSf").replace('"o-1"', '"e-1"')
        done = subprocess.run(
            ["sh", "-euc", f"URL={server.url}\n{commands}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(blocks("json")[3])


@pytest.fixture
def reading(
    published: Server, tmp_path: Path
) -> Iterator[Callable[[Program, int], list[list[str]]]]:
    """Runs a consumer until it has printed ``count`` lines, and kills it.

    In a shell that has run the page's first commands, but for its request: nothing else says where the server is.
    """
    (tmp_path / "token").write_text(published.token + "\n")
    begin = CURLS[0].replace("http://127.0.0.1:8080", published.url).partition("curl")[0]
    outside = {name: value for name, value in os.environ.items() if name not in ("URL", "TOKEN")}

    def read(program: Program, count: int) -> list[list[str]]:
        process = subprocess.Popen(
            ["sh", "-euc", f"{begin}exec {shlex.join(program.command)}"],
            cwd=tmp_path,
            env=outside,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        too_late = threading.Timer(PATIENCE, process.kill)  # it reads nothing, and tries for ever
        too_late.start()
        try:
            return [process.stdout.readline().split() for _ in range(count)]
        finally:
            too_late.cancel()
            process.kill()
            process.wait()
            process.stdout.close()

    yield read


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.language)
def test_a_consumer_of_the_page_reads_events_and_goes_on_where_it_was(
    program: Program, reading: Callable[[Program, int], list[list[str]]], tmp_path: Path
) -> None:
    if shutil.which(program.needs) is None:
        pytest.skip(f"{program.needs} is not installed")
    [source] = blocks(program.language)
    (tmp_path / program.file).write_text(source)
    if program.build:
        subprocess.run(program.build, cwd=tmp_path, check=True, timeout=150)
    wanted = [[str(n), "order.accepted", each] for n, each in enumerate(IDS, 1)]
    assert reading(program, len(IDS)) == wanted
    kept = tmp_path / "position"
    assert kept.read_text() in {"4", "5"}, "the last one may not be kept yet"
    kept.write_text("3")
    assert reading(program, 2) == wanted[3:]


def test_the_programs_have_the_syntax_of_their_languages() -> None:
    """Also where they are not run."""
    [python] = blocks("python")
    compile(python, "docs/http.md", "exec")
    for source in (*blocks("js"), *blocks("go")):
        assert [source.count(each) for each in "({["] == [source.count(each) for each in ")}]"]


@pytest.mark.parametrize(
    ("block", "model"),
    [(0, "SubmittedView"), (2, "EventPage"), (3, "CallbackView"), (4, "ProblemView")],
)
def test_the_replies_of_the_page_have_the_documents_shapes(block: int, model: str) -> None:
    shown = json.loads(blocks("json")[block])
    if model == "EventPage":  # shortened
        assert set(shown["events"][0]) <= set(
            document()["components"]["schemas"]["EventView"]["properties"]
        )
        return
    schema = {"$ref": f"#/components/schemas/{model}", "components": document()["components"]}
    Draft202012Validator(schema).validate(shown)


def test_every_status_of_a_submission_is_on_the_page() -> None:
    [submission] = [each for each in OPERATIONS if each.name == "submitOrder"]
    table = PAGE.partition("| status | what it means")[2].partition("\n\n")[0]
    limits = PAGE.partition("## Limits")[2]
    listed = {int(each) for each in re.findall(r"\b[2-5]\d\d\b", table + limits)}
    assert {*submission.replies, *submission.codes()} <= listed
