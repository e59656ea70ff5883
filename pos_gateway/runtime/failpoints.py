"""Named places on an order's way, and its events', at which a test can stop, kill or pause a worker.

In production nothing is armed, and reaching one costs a look at an empty dictionary. What can be
done there: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP), ``raise``, each optionally with
the number of the visit that it happens at: ``outcome.before=kill:3``.
"""

import os
import signal
from collections.abc import Callable

#: The names that are reached on an order's way.
OF_ORDERS = frozenset(
    {
        "claim.before",
        "claim.after",
        "sending.committed",
        "byte.first",
        "byte.last",
        "reply",
        "outcome.before",
        "outcome.committed",
        "publish.before",
        "publish.confirmed",
        "acknowledge.before",
        "acknowledged",
    }
)
#: And those on an event's, by whoever leads; ``events.leased`` by whoever helps.
OF_EVENTS = frozenset(
    {
        "events.assigned",
        "events.hydrated",
        "events.sent",
        "events.confirmed",
        "events.leased",
    }
)
#: Every name that is reached somewhere.
NAMES = OF_ORDERS | OF_EVENTS

_armed: dict[str, Callable[[], None]] = {}


class Reached(Exception):
    """What ``raise`` raises."""


def reach(name: str) -> None:
    """A worker is at the place of this name."""
    if _armed:
        do = _armed.get(name)
        if do is not None:
            do()


def arm(name: str, do: Callable[[], None]) -> None:
    """Do something whenever the place is reached. Raises ValueError: there is none of this name."""
    if name not in NAMES:
        raise ValueError(f"there is no failpoint {name!r}; there are {', '.join(sorted(NAMES))}")
    _armed[name] = do


def disarm() -> None:
    """Nothing more happens anywhere."""
    _armed.clear()


def arm_all(text: str) -> None:
    """Arm what ``outcome.before=kill:3, reply=stop`` says. Raises ValueError."""
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, what = part.partition("=")
        kind, _, visit = what.partition(":")
        if kind not in _KINDS or not (visit or "1").isdecimal():
            raise ValueError(f"{part!r} is not NAME=kill|stop|raise[:VISIT]")
        arm(name, _at(int(visit or 1), _KINDS[kind]))


def check(text: str) -> str:
    """The text, if it can be armed. Raises ValueError."""
    before = dict(_armed)
    try:
        arm_all(text)
    finally:
        _armed.clear()
        _armed.update(before)
    return text


def _at(visit: int, do: Callable[[], None]) -> Callable[[], None]:
    visits = 0

    def count() -> None:
        nonlocal visits
        visits += 1
        if visits == visit:
            do()

    return count


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise Reached


_KINDS = {"kill": _kill, "stop": _stop, "raise": _raise}
