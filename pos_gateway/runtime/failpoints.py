"""Named points in the way of an order or event, where a test can stop or kill a worker.

In production no point is armed, and reaching a point costs a look-up in an empty dictionary.
Actions: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP), ``raise``, each optionally with the
number of the visit at which it happens: ``outcome.before=kill:3``.
"""

import os
import signal
from collections.abc import Callable, Iterator

#: The failpoints of an order.
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
#: Failpoints between two steps of an order at its POS.
OF_STEPS = frozenset({"step.done", "undo.recorded"})
#: Failpoints of an event, in the leader; ``events.leased`` in a helper.
OF_EVENTS = frozenset(
    {
        "events.assigned",
        "events.hydrated",
        "events.sent",
        "events.confirmed",
        "events.leased",
    }
)
#: Failpoints of a backend's outbox: ``outbox.added`` in the backend's transaction, the rest in a
#: relay.
OF_OUTBOX = frozenset({"outbox.added", "outbox.taken", "outbox.confirmed", "outbox.removed"})
#: A failpoint of grants: the endpoint has answered, and the new pair is not stored.
OF_GRANTS = frozenset({"grant.answered"})
#: Every failpoint.
NAMES = OF_ORDERS | OF_STEPS | OF_EVENTS | OF_OUTBOX | OF_GRANTS

_armed: dict[str, Callable[[], None]] = {}
#: Runs the action armed at the failpoint of this name, if any. Call ``failpoints.reach``: arming
#: puts another function here.
reach: Callable[[str], object] = _armed.get


class Reached(Exception):
    """Raised by the action ``raise``."""


def arm(name: str, do: Callable[[], None]) -> None:
    """Run ``do`` whenever the failpoint is reached. Raises ValueError for an unknown name."""
    global reach  # noqa: PLW0603  (points are reached by name, in every order)
    _armed[_known(name)] = do
    reach = _run


def disarm() -> None:
    """Disarm every failpoint."""
    global reach  # noqa: PLW0603
    _armed.clear()
    reach = _armed.get


def _run(name: str) -> None:
    do = _armed.get(name)
    if do is not None:
        do()


def arm_all(text: str) -> None:
    """Arm failpoints from ``outcome.before=kill:3, reply=stop``. Raises ValueError."""
    for name, do in _parsed(text):
        arm(name, do)


def check(text: str) -> str:
    """The text, if valid for ``arm_all``. Raises ValueError."""
    for name, _ in _parsed(text):
        _known(name)
    return text


def _parsed(text: str) -> Iterator[tuple[str, Callable[[], None]]]:
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, what = part.partition("=")
        kind, _, visit = what.partition(":")
        if kind not in _KINDS or not (visit or "1").isdecimal():
            raise ValueError(f"{part!r} is not NAME=kill|stop|raise[:VISIT]")
        yield name, _at(int(visit or 1), _KINDS[kind])


def _known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no failpoint {name!r}; there are {', '.join(sorted(NAMES))}")
    return name


def _at(visit: int, do: Callable[[], None]) -> Callable[[], None]:
    visits = 0

    def count() -> None:
        nonlocal visits
        visits += 1
        if visits == visit:
            do()

    return count


def _raise() -> None:
    raise Reached


_KINDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
}
