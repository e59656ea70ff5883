"""How far an exchange has come."""

from collections.abc import Callable
from math import inf


class Progress:
    """One exchange's: whether it may have been received decides what its failure means.

    Args:
        fence: called before the first byte; raises to stop the request.
        until: when the exchange ends (``time.monotonic``).
    """

    __slots__ = ("begun", "connecting", "fence", "sent", "until")

    def __init__(self, fence: Callable[[], None] | None = None, until: float = inf) -> None:
        self.fence = fence
        self.until = until
        #: Whether it has begun to connect, or to send.
        self.begun = False
        #: Whether a byte of the request may have left this process.
        self.sent = False
        #: Whether it is connecting: DNS, TCP, TLS.
        self.connecting = False
