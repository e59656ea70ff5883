"""How long an attempt's stages take, for the line that tells of it.

Moments are noted where an order passes anyway and belong to its green thread, through a context
variable: no signature in between knows of them. Each costs a look at the clock.
"""

from contextvars import ContextVar
from time import perf_counter


class Stages:
    """One attempt's. Seconds; None: it did not come so far, or nobody noted it."""

    __slots__ = ("_began", "_called", "claim", "connect", "first_byte", "trace_id", "waited")

    def __init__(self, received: float | None = None) -> None:
        self._began = self._called = perf_counter()
        #: From when the message came (``perf_counter``) until now.
        self.waited = None if received is None else self._began - received
        #: From then until the claim was durable and the call began.
        self.claim: float | None = None
        #: For connecting, in this call, TLS included.
        self.connect = 0.0
        #: From the beginning of the call until the last reply began.
        self.first_byte: float | None = None
        #: The trace that the attempt is in; None: it is not traced.
        self.trace_id: str | None = None

    def call(self) -> None:
        """The claim is durable, and its call begins."""
        self._called = perf_counter()
        self.claim = self._called - self._began
        self.connect, self.first_byte = 0.0, None

    @property
    def total(self) -> float:
        """Seconds since the call began."""
        return perf_counter() - self._called


_present: ContextVar[Stages | None] = ContextVar("stages", default=None)


def begin(received: float | None = None) -> Stages:
    """An attempt begins on this green thread; its message came at that moment (``perf_counter``)."""
    stages = Stages(received)
    _present.set(stages)
    return stages


def call() -> Stages:
    """The attempt's claim is durable, and its call on the POS begins."""
    stages = _present.get()
    if stages is None:  # nobody said that it began
        stages = Stages()
        _present.set(stages)
    stages.call()
    return stages


def connecting(seconds: float) -> None:
    """So long was spent on a connection."""
    stages = _present.get()
    if stages is not None:
        stages.connect += seconds


def replied() -> None:
    """The first line of a reply is there."""
    stages = _present.get()
    if stages is not None:
        stages.first_byte = stages.total
