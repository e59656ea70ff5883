"""The limits of the control groups that a process is in."""

from pathlib import Path

import pytest

from pos_gateway.runtime.limits import cpu_limit, memory_limit

MEMORY = {
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


CPU = {
    "version 2": ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, "0::/a", 0.5),
    "version 2, the inner one": (
        {"a/b/cpu.max": "25000 100000", "a/cpu.max": "200000 100000"},
        "0::/a/b",
        0.25,
    ),
    "version 2, none": ({"cpu.max": "max 100000"}, "0::/", None),
    "version 1": (
        {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "100000"},
        "4:cpu:/a",
        1.5,
    ),
    "version 1, none": (
        {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
        "4:cpuacct,cpu:/a",
        None,
    ),
    "no period": ({"cpu/cpu.cfs_quota_us": "50000"}, "4:cpu:/", None),
    "no group": ({}, "", None),
}


def _made(root: Path, files: dict[str, str], groups: str) -> Path:
    for path, text in {
        **{f"sys/fs/cgroup/{each}": text for each, text in files.items()},
        "proc/self/cgroup": groups,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n" if text else "")
    return root


@pytest.mark.parametrize("name", CPU)
def test_the_cpu_limit_is_the_least_of_the_groups_that_the_process_is_in(
    name: str, tmp_path: Path
) -> None:
    files, groups, limit = CPU[name]
    assert cpu_limit(_made(tmp_path, files, groups)) == limit


@pytest.mark.parametrize("name", MEMORY)
def test_the_memory_limit_is_the_least_of_the_groups_that_the_process_is_in(
    name: str, tmp_path: Path
) -> None:
    files, groups, limit = MEMORY[name]
    assert memory_limit(_made(tmp_path, files, groups)) == limit
