"""Runs work on many threads, with results in the order of the items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, width: int
) -> Iterator[Result]:
    """``map`` in ``width`` threads: results in the items' order, with few items read ahead."""
    with ThreadPoolExecutor(width, thread_name_prefix="pipeline") as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            while pending and (len(pending) >= 2 * width or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
