"""Freed memory kept by the allocator."""

import ctypes
from contextlib import suppress

#: glibc's names, from ``malloc.h``.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Bytes from which a block has pages of its own, and maximum free bytes kept at the heap's end.
OWN_PAGES, KEPT_FREE = 128 * 1024, 4 * 2**20


def return_large_blocks() -> None:
    """Have glibc return large blocks to the system as they are freed; elsewhere nothing changes.

    By default glibc raises the threshold to the largest freed block, up to 32 MiB: a burst of large
    orders then lies on the heap among small objects, which keep the memory for ever.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, OWN_PAGES)
        mallopt(_TRIM_THRESHOLD, KEPT_FREE)
