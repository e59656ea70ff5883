"""Which planted faults a run tries: one of each file, or, with ``FAULTS=all``, every one.

All of them take several minutes; ``make faults`` is for whoever changes a rule, or a test of one.
"""

import os
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Planted(Protocol):
    """A fault, and the file that it is in."""

    @property
    def file(self) -> str: ...


Kind = TypeVar("Kind", bound=Planted)


def chosen(faults: Sequence[Kind]) -> list[Kind]:
    """Those that this run tries, in their order."""
    if os.environ.get("FAULTS") == "all":
        return list(faults)
    first: dict[str, Kind] = {}
    for fault in faults:
        first.setdefault(fault.file, fault)
    return list(first.values())
