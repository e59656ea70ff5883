"""A strict simulator of Square, from Square's public documents; never compared with Square's systems.

*Document*, *reported by integrators* and *judgement* are marked in each module's text.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from testkit.vendors.square.simulator import Square


def simulator(clock: Callable[[], datetime], **options: Any) -> Square:
    """Square with one seller; ``options``: see ``Square``."""
    return Square(clock, **options)
