"""The memory of a known, healthy merchant: a worker knows ten thousand of them. And that of large blocks.

Bytes of Python objects, which are the same on every machine. ``python -m loadtests.bench --only
admission`` measures a whole real worker.
"""

import subprocess
import sys
from pathlib import Path

from pos_gateway.runtime.limits import OWN_PAGES
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]


def weight(what: str, *arguments: str) -> float:
    command = [sys.executable, "-m", "tests.weighing", what, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_merchants_record_takes_little() -> None:
    assert weight("record") < 750


def test_a_merchants_lane_takes_little() -> None:
    assert weight("lane") < 910  # 8.7 MiB of the 40 that 10,000 merchants may take


def test_a_merchants_idle_connection_takes_little(simulated_merchants: SimulatedMerchants) -> None:
    for place in range(110):
        simulated_merchants.profile(f"m-{place}", {"kind": "accept"})  # at once
    assert weight("connection", simulated_merchants.base_url("m") + "-{}") < 2900


def test_the_memory_of_large_orders_is_given_back_among_small_objects_that_stay() -> None:
    assert weight("blocks", str(OWN_PAGES)) < 0.5  # of their memory; without, all of it stays
