"""The ledger on green threads: a commit blocks only its callers."""

import subprocess
import sys
from pathlib import Path

from testkit.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def test_the_checks_on_green_threads_pass(ledger_url: str) -> None:
    """In a separate process, which is patched from the start; it prints each check as it begins."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ledger.green", ledger_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert done.stdout.endswith("done\n"), f"{done.stdout}{done.stderr[-4000:]}"
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
