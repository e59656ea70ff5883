"""The demo: the whole of it once."""

import subprocess
import sys
from pathlib import Path

from loadtests.demo.cast import PARTS

ROOT = Path(__file__).parents[2]


def test_the_demo_ends_by_itself_and_accounts_for_every_order() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pos_gateway", "demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders are accounted for, none was made twice" in done.stdout
    assert done.stdout.rstrip().endswith("operations page, live: pos-gateway demo --serve")
    assert "Traceback" not in done.stderr
    for part in PARTS:
        assert f"{part.merchants} {part.name}" in done.stdout
