"""The moment since which a POS has had time to create an order in doubt.

The moment is in the order's row, on a worker's clock. Each worker writes its clock with every beat
of its lease, and any worker can tell how far the clock has advanced since, and no two
machines' clocks are compared.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settling:
    """The row's ``settling``: written by ``str``, read by ``parse``."""

    #: A lease of the worker whose clock counts.
    lease_id: str
    #: The reading of this clock.
    since: float
    #: The ``doubt_since`` of the same row. An earlier release changes the column alone, which
    #: invalidates the moment.
    doubt_since: float

    def __str__(self) -> str:
        return f"{self.lease_id} {self.since!r} {self.doubt_since!r}"

    @classmethod
    def parse(cls, text: str | None, doubt_since: float | None) -> "Settling | None":
        """Parse the column; None for a moment of another ``doubt_since``."""
        if text is None or doubt_since is None:
            return None
        lease_id, since, of_doubt = text.split()
        found = cls(lease_id, float(since), float(of_doubt))
        return found if found.doubt_since == doubt_since else None
