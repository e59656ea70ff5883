"""The memory of a known, healthy merchant: a worker knows ten thousand of them. And that of large blocks.

Bytes of Python objects, which are the same on every machine. ``python -m loadtests.bench --only
admission`` measures a whole real worker.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from pos_gateway.runtime.memory import OWN_PAGES, memory_limit
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
    assert weight("lane") < 838  # 8 MiB of the 40 that 10,000 merchants may take


def test_a_merchants_idle_connection_takes_little(simulated_merchants: SimulatedMerchants) -> None:
    for place in range(110):
        simulated_merchants.profile(f"m-{place}", {"kind": "accept"})  # at once
    assert weight("connection", simulated_merchants.base_url("m") + "-{}") < 2900


def test_the_memory_of_large_orders_is_given_back_among_small_objects_that_stay() -> None:
    assert weight("blocks", str(OWN_PAGES)) < 0.5  # of their memory; without, all of it stays


GROUPS = {
    "version 2": ({"a/memory.max": "max", "memory.max": "536870912"}, "0::/a", 2**29),
    "version 2, the inner one": (
        {"a/b/memory.max": "100000", "a/memory.max": "200000"},
        "0::/a/b",
        100_000,
    ),
    "version 2, none": ({"memory.max": "max"}, "0::/", None),
    "version 1": ({"memory/a/memory.limit_in_bytes": "1048576"}, "7:memory:/a", 2**20),
    "version 1, without a namespace": (
        {"memory/memory.limit_in_bytes": "1048576"},
        "9:cpu:/x\n7:cpuset,memory:/docker/0f",
        2**20,
    ),
    "version 1, none": (
        {"memory/memory.limit_in_bytes": "9223372036854771712"},
        "7:memory:/",
        None,
    ),
    "no group": ({}, "", None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_limit_is_the_least_of_the_groups_that_the_process_is_in(
    name: str, tmp_path: Path
) -> None:
    files, groups, limit = GROUPS[name]
    for path, text in {
        **{f"sys/fs/cgroup/{each}": text for each, text in files.items()},
        "proc/self/cgroup": groups,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n" if text else "")
    assert memory_limit(tmp_path) == limit
