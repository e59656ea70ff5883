"""Database reads for requests: bounded in number and in time."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import OperationalError

from pos_gateway.server import reading as subject
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from tests.server.lab import SOON


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    """Takes three reads at once."""
    monkeypatch.setattr(subject, "WAITING", 3)
    reading = Reading()
    yield reading
    reading.close()


def fail() -> None:
    raise OperationalError("select", {}, Exception("away"))


async def code_of(reading: Reading, read: object) -> str:
    with pytest.raises(Problem) as problem:
        await reading(read)  # type: ignore[arg-type]
    assert problem.value.status == 503
    assert problem.value.retry_after == 1
    return problem.value.code


def test_a_read_that_is_done_makes_room_however_it_ended(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        for _ in range(5):
            assert await reading(lambda: 7) == 7
            assert await code_of(reading, fail) == "database_unavailable"
        monkeypatch.setattr(subject, "TIMEOUT", 0.01)
        goes_on = threading.Event()
        for _ in range(3):
            assert await code_of(reading, lambda: goes_on.wait(SOON)) == "database_unavailable"
        assert await code_of(reading, lambda: 7) == "database_busy", "they still read"
        goes_on.set()
        monkeypatch.setattr(subject, "TIMEOUT", SOON)
        while reading._count:
            await asyncio.sleep(0)
        assert await reading(lambda: 7) == 7

    asyncio.run(play())


def test_a_read_whose_request_has_given_up_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its request's time was over, or its client has gone, while another read had the thread."""
    reading, begun = Reading(1), list[str]()

    async def play() -> None:
        goes_on = threading.Event()
        busy = asyncio.create_task(reading(lambda: goes_on.wait(SOON)))
        await asyncio.sleep(0)
        gone = asyncio.create_task(reading(lambda: begun.append("gone")))
        await asyncio.sleep(0)
        gone.cancel()
        with monkeypatch.context() as patch:
            patch.setattr(subject, "TIMEOUT", 0.01)
            assert await code_of(reading, lambda: begun.append("late")) == "database_unavailable"
        last = asyncio.create_task(reading(lambda: begun.append("last")))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(busy, last)
        assert begun == ["last"]
        assert reading._count == 0

    try:
        asyncio.run(play())
    finally:
        reading.close()


def test_few_reads_wait_for_their_turn(reading: Reading) -> None:
    async def play() -> None:
        goes_on = threading.Event()
        waiting = [asyncio.create_task(reading(lambda: goes_on.wait(SOON))) for _ in range(3)]
        await asyncio.sleep(0)
        assert await code_of(reading, lambda: 7) == "database_busy"
        goes_on.set()
        assert await asyncio.gather(*waiting) == [True] * 3

    asyncio.run(play())
