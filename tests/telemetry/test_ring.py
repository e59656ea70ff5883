"""The ring buffer of log lines: what it keeps, what it drops, and in which order it returns."""

import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.telemetry.writer import Ring

SEVERITIES = 3
severities = st.integers(0, SEVERITIES - 1)
#: A line of this severity is put in, or this many are taken out.
steps = st.lists(
    st.one_of(st.tuples(st.just("put"), severities), st.tuples(st.just("take"), st.integers(0, 5)))
)


@given(st.integers(1, 6), steps)
def test_the_ring_keeps_the_newest_of_the_most_severe_lines_and_counts_the_others(
    capacity: int, steps: list[tuple[str, int]]
) -> None:
    ring = Ring(capacity, SEVERITIES)
    kept: list[tuple[int, int]] = []  # severity and number, the oldest first
    dropped = [0] * SEVERITIES
    for number, (what, argument) in enumerate(steps):
        if what == "put":
            ring.put(argument, number)
            kept.append((argument, number))
            if len(kept) > capacity:
                least = min(severity for severity, _ in kept)
                kept.remove(next(each for each in kept if each[0] == least))
                dropped[least] += 1
        else:
            assert ring.take(argument) == (kept[:argument], dropped)
            del kept[:argument]
        assert len(ring) == len(kept) <= capacity
        assert ring.dropped == dropped
    assert ring.take(len(steps))[0] == kept


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_native_threads_lose_and_double_no_line() -> None:
    ring = Ring(50, SEVERITIES)
    each, writers = 5000, range(4)
    taken: list[tuple[int, int]] = []
    done = threading.Event()

    def put(writer: int) -> None:
        for number in range(each):
            ring.put(number % SEVERITIES, (writer, number))

    def take() -> None:
        while not done.is_set() or len(ring):
            taken.extend(item for _, item in ring.take(7)[0])

    threads = [threading.Thread(target=put, args=(writer,)) for writer in writers]
    taker = threading.Thread(target=take)
    for thread in (taker, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    taker.join()
    assert len(taken) + sum(ring.dropped) == each * len(writers)
    for writer in writers:
        numbers = [number for who, number in taken if who == writer]
        assert numbers == sorted(set(numbers))


def test_a_line_put_within_another_put_is_kept() -> None:
    """A garbage collection may start anywhere, and a finalizer may log."""
    ring = Ring(2, SEVERITIES)

    class Lane(deque[tuple[int, str]]):
        def append(self, item: tuple[int, str]) -> None:
            super().append(item)
            if item[1] == "second":
                ring.put(1, "meanwhile")

    ring._lanes = (Lane(), *ring._lanes[1:])
    ring.put(0, "first")
    ring.put(0, "second")
    assert [item for _, item in ring.take(9)[0]] == ["second", "meanwhile"]
    assert ring.dropped == [1, 0, 0]


def test_a_line_put_while_another_is_dropped_or_taken_is_kept() -> None:
    ring = Ring(1, SEVERITIES)

    class Lane(deque[tuple[int, str]]):
        def popleft(self) -> tuple[int, str]:
            ring.put(1, "meanwhile")
            return super().popleft()

    ring._lanes = (Lane(), *ring._lanes[1:])
    ring.put(0, "given back")
    assert [item for _, item in ring.take(9)[0]] == ["given back"]
    assert [item for _, item in ring.take(9)[0]] == ["meanwhile"]
    ring.put(0, "dropped")
    ring.put(2, "kept")
    assert [item for _, item in ring.take(9)[0]] == ["kept"]
    assert ring.dropped == [1, 1, 0]
