"""What a cache loads from: three seconds for one, and longer the more there are at once."""

import asyncio
import resource
import threading
import time
from types import TracebackType
from typing import Self

#: Seconds of a load that is alone, and how many at once take another so many: six thousand take 15 s.
ALONE, CROWD = 3.0, 1500


class SlowSource:
    """A server on loopback that answers a line with a line, on a thread of its own."""

    def __init__(self) -> None:
        #: When each load began and ended, by the wall clock.
        self.loads: list[tuple[float, float]] = []
        self.port = 0
        self._active = 0
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=8192)
        server = self._loop.run_until_complete(starting)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        began = time.time()
        self._active += 1
        await asyncio.sleep(ALONE * (1 + self._active / CROWD))
        self._active -= 1
        self.loads.append((began, time.time()))
        writer.write(b"value\n")
        writer.close()
