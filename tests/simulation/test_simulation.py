"""Runs of the simulation, and the faults that they must show."""

import os
import subprocess
import sys

import pytest

from tests.simulation.faults import FAULTS, Fault, planted
from tests.simulation.world import run

#: Runs of one test, and the runs after a fault's own in which it must show itself.
RUNS, WINDOW = 8, 40
#: Seeds after which a fault counts as not shown by any run.
MOST = 800


@pytest.mark.parametrize("first", range(0, 32, RUNS))
def test_a_run_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + RUNS):
        violations = run(seed).violations
        assert not violations, f"{violations}; replay: python -m tests.simulation --seed {seed}"


def _chosen() -> list[Fault]:
    """The one that shows soonest; ``make faults`` plants all of them."""
    if os.environ.get("FAULTS") == "all":
        return FAULTS
    return [min(FAULTS, key=lambda fault: fault.seed)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", _chosen(), ids=lambda fault: fault.rule)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    # A change of the product moves faults to other seeds: try those near the fault's first, then
    # the others.
    seeds = (*range(fault.seed, fault.seed + WINDOW), *range(MOST))
    with planted(fault):
        shown = next((seed for seed in seeds if run(seed).violations), None)
    assert shown is not None, "no seed shows it; python -m tests.simulation --faults"
    assert not run(shown).violations, f"seed {shown} shows more than the fault"


def test_a_planted_fault_is_removed_afterwards() -> None:
    for fault in FAULTS:
        with planted(fault):
            pass
    assert not run(0).violations


def test_every_rule_has_one_fault() -> None:
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS) >= 20


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """With other hashes, and whatever has run in the process before."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run(4)
    assert done.stdout == run(3).text() + "\n"
    assert "acknowledged" in done.stdout
