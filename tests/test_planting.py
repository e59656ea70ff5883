"""Each fault can be planted; a planted fault is found by its own test, and by no other failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.planting import PACKAGES, ROOT, Fault, faults_of

PILOTS = "merchant_id in self.pins or "


def _fault(ends: str, right: str, wrong: str, by: str) -> Fault:
    return Fault(f"as it should be: {ends}", "domain/split", right, wrong, by)


FAULTS = [
    _fault("found", PILOTS, "", "split::a_pilot_is_in"),
    _fault("missed", PILOTS, "", "split::at_0_percent"),
    _fault("not tried", PILOTS, "no_such_name or ", "split::a_pilot_is_in"),
    _fault("not tried", "import hashlib", "import no_such_module", "split::a_pilot_is_in"),
    _fault("not tried", "this is not in it", "", "split::a_pilot_is_in"),
    _fault("not tried", PILOTS, "", "split::no_test_is_called_so"),
    Fault("as it should be: not tried", "no_such_file", PILOTS, "", "split::a_pilot_is_in"),
    _fault("not tried", PILOTS, "__import__('os')._exit(1) or ", "split::a_pilot_is_in"),
]
#: A test that always fails.
FAILING = """
def test_a_pilot_is_in_whatever_the_percentage_is():
    assert False
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_fault_can_still_be_planted_and_has_a_rule_of_its_own(package: str) -> None:
    faults = faults_of(package)
    assert not [fault.rule for fault in faults if not fault.fits]
    assert len({fault.rule for fault in faults}) == len(faults) >= 5


def test_a_fault_is_found_if_its_own_test_fails() -> None:
    found = played("FAULTS", "values")
    assert found == [f"{each.rule.rpartition(': ')[2]} {each.rule}" for each in FAULTS]


def test_a_test_that_fails_without_the_fault_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_split.py").write_text(FAILING)
    # Relative to the tests, as every folder is.
    folder = "/".join([*[".."] * len((ROOT / "tests").parts[1:]), *tmp_path.parts[1:]])
    assert played("FAULTS[:1]", folder) == [f"fails without {FAULTS[0].rule}"]


def played(faults: str, folder: str) -> list[str]:
    """The printed results, each fault standing for all of its file."""
    program = (
        "from tests.planting import try_all; from tests.test_planting import FAULTS; "
        f"try_all({faults}, {folder!r})"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=ROOT, env={"FAULTS": "all"}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()
