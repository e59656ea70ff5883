"""A promise that an adapter breaks, in words for the adapter's author."""

from collections.abc import Iterable
from itertools import islice

#: Maximum findings that a failure lists: the first ones show the cause.
_SHOWN = 6


class BrokenPromise(AssertionError):
    """An adapter breaks a promise of the protocol.

    Args:
        promise: what every adapter does.
        seen: the findings that contradict the promise.
        remedy: what to change in the adapter.
    """

    def __init__(self, promise: str, seen: str, remedy: str) -> None:
        super().__init__(f"{promise}\n  seen: {seen}\n  do:   {remedy}")


def demand(promise: str, findings: Iterable[str], remedy: str) -> None:
    """Raise BrokenPromise if there is any finding against the promise."""
    __tracebackhide__ = True  # pytest shows the message, not this function
    found = list(islice(findings, _SHOWN + 1))
    if found:
        more = "\n        and more" if len(found) > _SHOWN else ""
        raise BrokenPromise(promise, "\n        ".join(found[:_SHOWN]) + more, remedy)
