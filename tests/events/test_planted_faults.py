"""Faults planted in the event pipeline one at a time: the tests beside this one must find them.

A test that cannot fail proves nothing. Each fault breaks one rule; add one when a rule is added.
"""

import subprocess
import sys
from pathlib import Path

from tests.events.faults import FAULTS
from tests.planting import chosen

ROOT = Path(__file__).resolve().parents[2]


def test_planted_faults_are_found() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.events.faults"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout.splitlines() == [f"found {fault.rule}" for fault in chosen(FAULTS)], (
        done.stderr
    )


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    folder = ROOT / "pos_gateway"
    gone = [f.rule for f in FAULTS if f.right not in (folder / f"{f.file}.py").read_text()]
    assert not gone, "\n".join(gone)


def test_there_is_a_fault_for_every_rule() -> None:
    assert len(FAULTS) >= 12
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS)
