"""Durations of an attempt's stages, for its log line.

They are measured in the order's green thread, through a context variable: no signature in between
knows of them. Each costs a reading of the clock.
"""

from contextvars import ContextVar
from time import perf_counter


class Stages:
    """One attempt's durations, in seconds; None: not reached, or not measured."""

    __slots__ = ("_began", "_called", "claim", "connect", "first_byte", "trace_id", "waited")

    def __init__(self, received: float | None = None) -> None:
        self._began = self._called = perf_counter()
        #: From the message's arrival (``perf_counter``) until the attempt's start.
        self.waited = None if received is None else self._began - received
        #: From then until the claim was durable and the call began.
        self.claim: float | None = None
        #: Connecting in this call, TLS included.
        self.connect = 0.0
        #: From the beginning of the call until the last reply began.
        self.first_byte: float | None = None
        #: The attempt's trace; None: it is not traced.
        self.trace_id: str | None = None

    def call(self) -> None:
        """The claim is durable: the call begins."""
        self._called = perf_counter()
        self.claim = self._called - self._began
        self.connect, self.first_byte = 0.0, None

    @property
    def total(self) -> float:
        """Seconds since the call began."""
        return perf_counter() - self._called


_present: ContextVar[Stages | None] = ContextVar("stages", default=None)


def begin(received: float | None = None) -> Stages:
    """Begin an attempt on this green thread.

    ``received``: the ``perf_counter`` at its message's arrival.
    """
    stages = Stages(received)
    _present.set(stages)
    return stages


def call() -> Stages:
    """The attempt's claim is durable: its call to the POS begins."""
    stages = _present.get()
    if stages is None:  # ``begin`` was not called
        stages = Stages()
        _present.set(stages)
    stages.call()
    return stages


def connecting(seconds: float) -> None:
    """Add the time spent on a connection."""
    stages = _present.get()
    if stages is not None:
        stages.connect += seconds


def replied() -> None:
    """The first line of a reply was read."""
    stages = _present.get()
    if stages is not None:
        stages.first_byte = stages.total
