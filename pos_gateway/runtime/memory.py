"""The memory that this process may take, and what the allocator keeps of it."""

import ctypes
from contextlib import suppress
from pathlib import Path

#: Limits from here on are none: cgroup v1 writes the largest multiple of a page.
_UNLIMITED = 2**60
#: glibc's names, from ``malloc.h``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes from which a block has pages of its own, and free bytes at the heap's end that are kept.
OWN_PAGES, KEPT_FREE = 128 * 1024, 4 * 2**20


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the process's control groups allow (version 1 or 2); None: no limit is known."""
    limits: list[int] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A container without a namespace of its own finds its group at the mount's top.
        group = Path(path.lstrip("/"))
        for each in {top / group, *(top / parent for parent in group.parents), top}:
            limits += [int(text) for text in _lines(each / name) if text.isdigit()]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED), default=None)


def return_large_blocks() -> None:
    """Have glibc return large blocks to the system as they are freed; elsewhere nothing changes.

    By itself it raises the threshold to the largest block that was freed, up to 32 MiB: a burst of large
    orders then lies on the heap among small objects, which keep its memory for ever.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, OWN_PAGES)
        mallopt(_TRIM_THRESHOLD, KEPT_FREE)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
