"""Database reads for requests: on a few threads, with a time limit, and a limit on those that wait.

A read whose request has given up does not begin: on a slow machine the threads would else have only such
reads of clients that ask again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.server.problems import Problem

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Reads at once, maximum reads that wait for a thread, and seconds for each, waiting included.
THREADS, WAITING, TIMEOUT = 8, 256, 5.0


class Reading:
    """Runs reads. For the event loop.

    Args:
        threads: how many at once.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "reads")
        self._count = 0

    async def __call__(self, read: Callable[[], T]) -> T:
        """The result of ``read``.

        Raises:
            Problem: 503: the database is away or slow, or too many read at once.
        """
        if self._count >= WAITING:
            detail = f"{self._count} requests wait for the database"
            raise Problem(503, "database_busy", detail, retry_after=1)
        self._count += 1
        job = self._threads.submit(read)
        reading = asyncio.wrap_future(job)
        reading.add_done_callback(self._done)
        try:
            async with asyncio.timeout(TIMEOUT):
                return await asyncio.shield(reading)
        except TimeoutError:
            detail = f"the database did not answer within {TIMEOUT:g} s"
            raise Problem(503, "database_unavailable", detail, retry_after=1) from None
        except (SQLAlchemyError, LedgerUnavailable) as error:
            log.warning("database.unavailable", error=str(error))
            detail = "the database does not answer"
            raise Problem(503, "database_unavailable", detail, retry_after=1) from None
        finally:
            job.cancel()  # one that has begun goes on

    def close(self) -> None:
        """End. Reads that have begun go on."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, reading: "asyncio.Future[T]") -> None:
        self._count -= 1
        if not reading.cancelled():
            reading.exception()  # its request may have given up
