"""Since when a POS has had time to create an order that is in doubt.

The moment is on one worker's clock, in the order's row. Each worker writes its clock with every
beat of its lease, so any other worker can tell how far that clock has advanced since, and no two
machines' clocks are compared.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settling:
    """The row's ``settling``: ``str`` writes it, ``parse`` reads it."""

    #: A lease of the worker whose clock this is.
    lease_id: str
    #: That clock's reading.
    since: float
    #: The row's ``doubt_since`` it belongs to. An earlier release changes the column alone, which
    #: invalidates this.
    doubt_since: float

    def __str__(self) -> str:
        return f"{self.lease_id} {self.since!r} {self.doubt_since!r}"

    @classmethod
    def parse(cls, text: str | None, doubt_since: float | None) -> "Settling | None":
        """Parse the column; None if it belongs to another ``doubt_since``."""
        if text is None or doubt_since is None:
            return None
        lease_id, since, of_doubt = text.split()
        found = cls(lease_id, float(since), float(of_doubt))
        return found if found.doubt_since == doubt_since else None
