"""Green threads: whether this process runs on them, and yielding."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def green() -> bool:
    """Whether gevent has patched sockets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def native(module: str, name: str) -> Any:
    """The standard library's original, whether or not patched by gevent."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(import_module(module), name)


#: Minimum sleep of a yield, in seconds. A sleep of 0 runs only ready threads: gevent polls sockets
#: and timers only after fifty such sleeps.
_TURN = 1e-6


def yield_control(seconds: float = 0.0) -> None:
    """Yield for at least ``seconds``: run ready threads, and threads with a due socket or timer."""
    time.sleep(max(_TURN, seconds))


def cooperatively(
    items: Iterable[T],
    every: int,
    weight_of: Callable[[T], float] | None = None,
    pause: Callable[[], float] = float,
) -> Iterator[T]:
    """The items, yielding to other threads after every ``every`` items.

    Args:
        items: the items.
        every: weight that passes before a yield.
        weight_of: an item's weight; default: 1.
        pause: returns the minimum seconds of a yield.
    """
    gone_by = 0.0
    for item in items:
        if gone_by >= every:
            yield_control(pause())
            gone_by = 0.0
        yield item
        gone_by += 1 if weight_of is None else weight_of(item)
