"""Limits of this process: open files, memory kept by the allocator, and a pod's control groups.

Control groups are Linux's, version 1 or 2.
"""

import ctypes
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Descriptors besides peers' connections: broker, database, Redis, logs, the interpreter's.
OTHER_FILES = 128
#: glibc's names, from ``malloc.h``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes from which a block has pages of its own, and maximum free bytes kept at the heap's end.
OWN_PAGES, KEPT_FREE = 128 * 1024, 4 * 2**20
#: Bytes from which on a limit is none: version 1 writes the largest multiple of a page.
_UNLIMITED = 2**60


def allow_files(wanted: int) -> int:
    """Raise the soft limit to ``wanted``, as far as the hard limit allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def return_large_blocks() -> None:
    """Have glibc return large blocks to the system as they are freed; elsewhere nothing changes.

    By default glibc raises the threshold to the largest freed block, up to 32 MiB: a burst of large
    orders then lies on the heap among small objects, which keep the memory for ever.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, OWN_PAGES)
        mallopt(_TRIM_THRESHOLD, KEPT_FREE)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The groups' limit in bytes; None: unknown."""
    limits: list[int] = []
    for group, version in _groups("memory", root):
        name = "memory.max" if version == 2 else "memory.limit_in_bytes"
        limits += [int(text) for text in _words(group / name) if text.isdigit()]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED), default=None)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """The groups' limit in cores, by their quota in a period; None: unknown."""
    limits: list[float] = []
    for group, version in _groups("cpu", root):
        if version == 2:
            words = _words(group / "cpu.max")
        else:
            words = [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        # "max" and -1 are no limit.
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folders of the process's groups and of their parents, each with its version."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            top, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        # A container without a namespace of its own finds its group at the mount's top.
        group = Path(path.lstrip("/"))
        for each in {top / group, *(top / parent for parent in group.parents), top}:
            yield each, version


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
