"""Since when a POS has had time to make an order of what it may have been sent.

That is a moment of one worker's clock, kept in the order's row. Every worker leaves its clock in the
database with each beat of its lease; so any other can tell how far that clock has come since, and
no two machines' clocks are compared.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settling:
    """As it is in the row: ``str`` writes it, ``parse`` reads it."""

    #: A lease of the worker whose clock it is.
    lease_id: str
    #: What that clock showed.
    since: float
    #: The row's ``doubt_since``. An earlier release changes that alone, and this is then of no doubt
    #: that there is any more.
    doubt_since: float

    def __str__(self) -> str:
        return f"{self.lease_id} {self.since!r} {self.doubt_since!r}"

    @classmethod
    def parse(cls, text: str | None, doubt_since: float | None) -> "Settling | None":
        """What is there of this doubt."""
        if text is None or doubt_since is None:
            return None
        lease_id, since, of_doubt = text.split()
        found = cls(lease_id, float(since), float(of_doubt))
        return found if found.doubt_since == doubt_since else None
