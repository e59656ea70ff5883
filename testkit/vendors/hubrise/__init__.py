"""HubRise, strict: orders of one location, with the shop's EPOS, active callbacks and rates.

Sources, on hubrise.com/developers: "General Concepts", "Orders", "Callbacks" and "Token Invalidity" of the API reference, "Integration
Guide". Each module says which rules a document has, and which are judgement.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from testkit.vendors.hubrise.api import HubRise, Knobs

__all__ = ["HubRise", "Knobs", "simulator"]


def simulator(clock: Callable[[], datetime], **location: Any) -> HubRise:
    """A location at HubRise; ``location`` has the arguments of ``HubRise``."""
    return HubRise(clock, **location)
