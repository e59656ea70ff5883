"""Green threads: whether this process runs on them, and how one lets the others go on."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def green() -> bool:
    """Whether gevent has patched what waits for a socket."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def native(module: str, name: str) -> Any:
    """What the standard library has under this name, whether or not gevent has patched it."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None:
        return monkey.get_original(module, name)
    return getattr(import_module(module), name)


#: Seconds that a turn of others' takes at least. Without any only those have one that are ready: gevent
#: looks at sockets and at the time after fifty such turns.
_TURN = 1e-6


def give_turn() -> None:
    """Let others go on: who is ready, and who waits for a socket or a time that has come."""
    time.sleep(_TURN)


def in_turns(
    items: Iterable[T], few: int, weigh: Callable[[T], float] | None = None
) -> Iterator[T]:
    """The items; after every few of them other threads have their turns, green ones above all.

    Args:
        items: what to go through.
        few: how many go by in a row.
        weigh: for how many each of them counts, where they differ.
    """
    gone_by = 0.0
    for item in items:
        if gone_by >= few:
            give_turn()
            gone_by = 0.0
        yield item
        gone_by += 1 if weigh is None else weigh(item)
