"""The ledger on green threads: nobody waits for a commit but those whose it is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_stories_of_green_threads(ledger_url: str) -> None:
    """In a process of their own, which is patched from the start; it names each as it begins."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ledger.green", ledger_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.stdout.endswith("done\n"), f"{done.stdout}{done.stderr[-4000:]}"
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
