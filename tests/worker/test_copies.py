"""The same order twice."""

import subprocess
import sys


def test_a_copy_that_becomes_hopeless_shares_the_fate_of_the_one_at_its_merchant() -> None:
    """Else the backend would hear that the order expired, and then that it was accepted."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.worker.copies"], capture_output=True, text=True, timeout=60
    )
    assert "KeyError" not in run.stderr
    assert "[('accepted', 'first'), ('accepted', 'twice')] [1, 1, 1]" in run.stdout
