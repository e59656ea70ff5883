"""The commands of docs/http.md do what the page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.lab import Server, order

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
CURLS = [block for block in SHELL if block.startswith("curl")]
[PYTHON] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(server: Server, tmp_path: Path) -> Path:
    (tmp_path / "order.json").write_text(json.dumps(order("o-1", "m-1")))
    lines = [json.dumps(order(f"line-{n}", "m-1")) for n in range(3)]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "token").write_text(server.token + "\n")
    return tmp_path


def test_every_request_of_the_page_is_answered(server: Server, folder: Path) -> None:
    assert len(CURLS) == 6
    assert shutil.which("curl") is not None
    shown = []
    for block in CURLS:
        # --fail: a refusal is an error.
        script = f"TOKEN=$(cat token)\nURL={server.url}\n{block.replace('curl -sS', 'curl -sSf')}"
        done = subprocess.run(
            ["sh", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        shown.append(done.stdout)
    submitted, batch, cancelled, seen, page, _stream = shown
    assert json.loads(submitted) == {"order_id": "o-1", "merchant_id": "m-1", "state": "submitted"}
    assert [each["status"] for each in json.loads(batch)] == [202] * 3
    assert json.loads(cancelled)["order_id"] == "o-1"
    assert {"state", "attempts", "events", "cancellation"} <= json.loads(seen).keys()
    assert json.loads(page) == {"events": [], "next": 0}


def test_the_consumer_of_the_page_runs(server: Server, tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(PYTHON.replace('"wait": 30', '"wait": 0.1'))
    environment = {**os.environ, "URL": server.url, "TOKEN": server.token}
    with pytest.raises(subprocess.TimeoutExpired):  # it goes on for ever
        subprocess.run(
            [sys.executable, "consumer.py"], cwd=tmp_path, env=environment, check=True, timeout=3
        )
