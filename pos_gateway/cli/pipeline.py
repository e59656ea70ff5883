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
        under_way: deque[Future[Result]] = deque()
        for item in items:
            under_way.append(pool.submit(work, item))
            while under_way and (len(under_way) >= 2 * width or under_way[0].done()):
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
