"""Events in memory, for every client at once: pages, what is kept, and who is woken."""

import asyncio
from collections.abc import Sequence

import pytest

from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server import following
from pos_gateway.server.following import CHUNK, PAGE_BYTES, Event, Following, page_of


def events(first: int, last: int, size: int = 10) -> list[Event]:
    return [Event(n, "order.accepted", b"x" * size) for n in range(first, last + 1)]


class Table:
    """Published events, and how often they were read."""

    def __init__(self, last: int = 0, size: int = 10) -> None:
        self.events = events(1, last, size)
        self.reads = 0

    def behind(self, after: int, most: int) -> Sequence[Event]:
        self.reads += 1
        return [each for each in self.events if each.position > after][:most]

    async def read(self, after: int, most: int) -> Sequence[Event]:
        return self.behind(after, most)

    async def last(self) -> int:
        return self.events[-1].position if self.events else 0


@pytest.mark.parametrize("most", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, PAGE])
def test_a_page_has_as_many_as_are_asked_for(most: int) -> None:
    table = Table(4 * CHUNK)
    assert page_of(table.behind, 7, most) == table.events[7 : 7 + most]


def test_a_page_of_large_events_is_short() -> None:
    table = Table(PAGE, size=PAGE_BYTES // CHUNK + 1)
    page = page_of(table.behind, 0, PAGE)
    assert page == table.events[: len(page)]
    assert len(page) == CHUNK


def test_clients_share_one_reader_and_each_gets_what_it_lacks() -> None:
    async def play() -> None:
        table = Table(10)
        follower = Following(table.read, table.last)
        waiting = [asyncio.create_task(follower.page(10, PAGE, 20.0)) for _ in range(50)]
        while not follower._seen:
            await asyncio.sleep(0)
        table.events += events(11, 13)
        assert await asyncio.gather(*waiting) == [events(11, 13)] * 50
        assert list(await follower.page(4, 3, 0.0)) == events(5, 7), "from the table"
        follower.stop()
        assert list(await follower.page(13, PAGE, 20.0)) == []

    asyncio.run(play())


def test_what_is_kept_is_bounded_and_older_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "KEPT", 5)

    async def play() -> None:
        table = Table(10)
        follower = Following(table.read, table.last)
        with follower.listening():
            while not follower._seen:
                await asyncio.sleep(0)
            table.events += events(11, 30)
            assert list(await follower.page(10, 100, 20.0)) == events(11, 30)
            while follower._seen < 30:
                await asyncio.sleep(0.01)
            assert len(follower._kept) == 5
            reads = table.reads
            assert list(await follower.behind(27, 100)) == events(28, 30)
            assert table.reads == reads, "it is kept"
            assert list(await follower.behind(20, 100)) == events(21, 30)
        follower.stop()

    asyncio.run(play())
