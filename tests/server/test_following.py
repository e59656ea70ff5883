"""Events in memory, for every client at once: pages, what is kept, and who is woken."""

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server import following
from pos_gateway.server.following import PAGE_BYTES, Event, Feeds, Following, cut
from pos_gateway.server.problems import Problem
from testkit.patience import PATIENCE


def events(first: int, last: int, size: int = 10) -> list[Event]:
    return [Event(n, "order.accepted", b"x" * size) for n in range(first, last + 1)]


class Table:
    """Published events, and how often they were read."""

    def __init__(self, last: int = 0, size: int = 10) -> None:
        self.events = events(1, last, size)
        self.reads = 0

        #: How many of the coming reads fail, and of what.
        self.failing = 0
        self.error: Exception = Problem(503, "database_unavailable", "away")

    async def read(self, after: int, most: int, size: int) -> Sequence[Event]:
        self.reads += 1
        if self.failing:
            self.failing -= 1
            raise self.error
        return cut([each for each in self.events if each.position > after][:most], size)

    async def last(self) -> int:
        return self.events[-1].position if self.events else 0


async def followed(follower: Following) -> None:
    """Wait until it follows."""
    while follower._from is None:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size", "count"), [(0, 1), (9, 1), (10, 1), (19, 1), (20, 2), (39, 3), (40, 4), (1000, 4)]
)
def test_a_page_is_cut_by_bytes_and_has_one_event_in_any_case(size: int, count: int) -> None:
    assert cut(events(1, 4), size) == events(1, count)


def test_a_page_from_memory_is_cut_by_number_and_by_bytes() -> None:
    async def play() -> None:
        table = Table()
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            table.events += events(1, 9, size=1000)
            await follower.page(8, PAGE, PAGE_BYTES, 20.0)
            reads = table.reads
            for most, size, last in ((PAGE, 3500, 5), (2, PAGE_BYTES, 4), (PAGE, 1, 3)):
                page = await follower.events_after(2, most, size)
                assert list(page) == events(3, last, size=1000)
            assert table.reads == reads, "they are kept"
        follower.stop()

    asyncio.run(play())


def test_clients_share_one_reader_and_each_gets_what_it_lacks() -> None:
    async def play() -> None:
        table = Table(10)
        follower = Following(table.read, table.last)
        waiting = [
            asyncio.create_task(follower.page(10, PAGE, PAGE_BYTES, 20.0)) for _ in range(50)
        ]
        await followed(follower)
        table.events += events(11, 13)
        assert await asyncio.gather(*waiting) == [events(11, 13)] * 50
        assert list(await follower.page(4, 3, PAGE_BYTES, 0.0)) == events(5, 7), "from the table"
        follower.stop()
        assert list(await follower.page(13, PAGE, PAGE_BYTES, 20.0)) == []

    asyncio.run(play())


def test_what_is_kept_is_bounded_and_older_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "KEPT", 5)

    async def play() -> None:
        table = Table(10)
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            table.events += events(11, 30)
            assert list(await follower.page(10, 100, PAGE_BYTES, 20.0)) == events(11, 30)
            while follower._seen < 30:
                await asyncio.sleep(0.01)
            assert len(follower._kept) == 5
            reads = table.reads
            assert list(await follower.events_after(27, 100, PAGE_BYTES)) == events(28, 30)
            assert table.reads == reads, "it is kept"
            assert list(await follower.events_after(20, 100, PAGE_BYTES)) == events(21, 30)
        follower.stop()

    asyncio.run(play())


def test_a_client_that_comes_after_the_last_one_left_is_told_of_news() -> None:
    """Each time one task follows: never none, never a second one."""

    async def play() -> None:
        table = Table(3)
        follower = Following(table.read, table.last)
        for last in (4, 5, 6):
            waiting = [
                asyncio.create_task(follower.page(last - 1, PAGE, PAGE_BYTES, 20.0))
                for _ in range(3)
            ]
            await followed(follower)
            assert len(asyncio.all_tasks()) == 1 + len(waiting) + 1
            table.events += events(last, last)
            assert await asyncio.gather(*waiting) == [events(last, last)] * 3
            assert follower._task is not None
            await follower._task
        follower.stop()

    asyncio.run(play())


def test_a_read_that_fails_does_not_end_the_following(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_AFTER", 0.0)

    async def play() -> None:
        table = Table(3)
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            waiting = asyncio.create_task(follower.page(3, PAGE, PAGE_BYTES, 20.0))
            await asyncio.sleep(0)
            table.failing = 2
            while table.failing:
                await asyncio.sleep(0.01)
            table.events += events(4, 4)
            assert list(await waiting) == events(4, 4)
        follower.stop()

    asyncio.run(play())


def test_a_bug_in_a_read_does_not_end_the_following(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further client connects: those that wait get what comes later, and the log has the bug."""
    monkeypatch.setattr(following, "RETRY_AFTER", 0.0)

    async def play() -> None:
        table = Table(3)
        table.error = ValueError("a row that cannot be read")
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            waiting = asyncio.create_task(follower.page(3, PAGE, PAGE_BYTES, 20.0))
            await asyncio.sleep(0)
            table.failing = 1
            while table.failing:
                await asyncio.sleep(0.01)
            table.events += events(4, 4)
            assert list(await waiting) == events(4, 4)
        follower.stop()

    with capture_logs() as log:
        asyncio.run(play())
    assert [each["event"] for each in log] == ["events.not_followed"]


def test_a_client_that_waits_gets_the_error_of_a_row_that_cannot_be_read() -> None:
    """The error comes at once, in place of an empty page."""

    async def play() -> None:
        table = Table(3)
        table.error = ValueError("a row that cannot be read")
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            waiting = asyncio.create_task(follower.page(3, PAGE, PAGE_BYTES, 20.0))
            await asyncio.sleep(0)
            table.failing = 2
            with pytest.raises(ValueError, match="cannot be read"):
                await waiting
        follower.stop()

    with capture_logs():
        asyncio.run(play())


def test_all_who_wait_are_woken_for_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "HEARTBEAT", 0.0)

    async def play() -> None:
        table = Table()
        follower = Following(table.read, table.last)
        with follower.listening():
            await followed(follower)
            for _ in range(2):
                beats = follower.beats
                with follower.waiter() as waiter:
                    await asyncio.wait_for(waiter, PATIENCE)
                assert follower.beats > beats
        follower.stop()

    asyncio.run(play())


def test_what_is_masked_is_followed_apart_and_ends_with_the_rest() -> None:
    async def play() -> None:
        feeds = Feeds(*(Following(table.read, table.last) for table in (Table(), Table())))
        waiting = [asyncio.create_task(each.page(0, 1, 1, 20.0)) for each in feeds]
        await asyncio.sleep(0)
        feeds.stop()
        assert await asyncio.gather(*waiting) == [[], []]

    asyncio.run(play())
