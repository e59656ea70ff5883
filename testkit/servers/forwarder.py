"""The process behind `Proxy`: forwards TCP connections, and does to them what it is told.

It reads one command a line (JSON) from its standard input, answers each with the number of
connections once it is in force, and ends when its input does, that is with its parent.
"""

import asyncio
import json
import math
import random
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

#: The way data flows: to the server, or back to the client.
Stream = Literal["upstream", "downstream"]
#: One of the two that a connection joins.
Side = Literal["client", "server"]

#: What SO_LINGER takes to make `close` send RST.
_LINGER_NOT = struct.pack("ii", 1, 0)

#: What waits to be delivered: when, and what; None where the sender has said all.
_Arrivals = asyncio.Queue[tuple[float, bytes] | None]


@dataclass(frozen=True)
class Toxics:
    """What is done to one stream."""

    latency: float = 0.0
    jitter: float = 0.0
    bandwidth: float = math.inf
    slice_size: int = 0
    slice_delay: float = 0.0
    stalled: bool = False

    def pieces(self, data: bytes) -> Iterator[tuple[float, bytes]]:
        """What to write, each after the seconds that it takes."""
        # A slow line delivers a little at a time, not a lot and then nothing.
        tick = max(1, int(self.bandwidth * 0.02)) if self.bandwidth < math.inf else len(data)
        size = min(tick, self.slice_size or len(data))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield len(piece) / self.bandwidth + self.slice_delay, piece

    def delay(self) -> float:
        """How late to deliver what arrives now."""
        return max(0.0, self.latency + random.uniform(-self.jitter, self.jitter))


@dataclass(eq=False)
class Link:
    """One client's connection and the one to the server that belongs to it."""

    ends: dict[Side, tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    gone: Side | None = None

    async def drain(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the writer can take more; half-open, neither side learns that it cannot."""
        try:
            await writer.drain()
        except OSError:
            if self.gone is None:
                raise

    def lose(self, side: Side, *, reset: bool = False) -> None:
        """Close one side at once; bytes on their way to it are lost."""
        if side not in self.ends:
            return
        _, writer = self.ends[side]
        if writer.transport.is_closing():
            return
        if reset:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT
            )
        writer.transport.abort()

    def close(self, *, reset: bool = False) -> None:
        """Close both sides."""
        self.lose("client", reset=reset)
        self.lose("server", reset=reset)


class Forwarder:
    """Listens on one port and forwards to one server."""

    def __init__(self, port: int, host: str, server_port: int) -> None:
        self._port = port
        self._server = host, server_port
        self._listener: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._toxics: dict[Stream, Toxics] = {"upstream": Toxics(), "downstream": Toxics()}
        self._flowing: dict[Stream, asyncio.Event] = {
            "upstream": asyncio.Event(),
            "downstream": asyncio.Event(),
        }
        self._resetting = False

    async def do(self, command: str, arguments: dict[str, Any]) -> int:
        """Carry out one command, and return how many connections there are."""
        match command:
            case "toxic":
                for stream in arguments.pop("streams"):
                    self._set(stream, replace(self._toxics[stream], **arguments))
            case "heal":
                await self._heal()
            case "down":
                self._down()
            case "reset_peer":
                self._resetting = True
                self._cut(reset=True)
            case "cut":
                self._cut()
            case "half_open":
                self._half_open(arguments["gone"])
            case "count":
                pass
            case _:
                raise ValueError(f"unknown command {command!r}")
        return len(self._links)

    def _set(self, stream: Stream, toxics: Toxics) -> None:
        self._toxics[stream] = toxics
        if toxics.stalled:
            self._flowing[stream].clear()
        else:
            self._flowing[stream].set()

    async def _heal(self) -> None:
        self._set("upstream", Toxics())
        self._set("downstream", Toxics())
        self._resetting = False
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accept, "127.0.0.1", self._port, backlog=1024
            )

    def _down(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._cut()

    def _cut(self, *, reset: bool = False) -> None:
        for link in self._links:
            link.close(reset=reset)
        self._links.clear()

    def _half_open(self, gone: Side) -> None:
        for link in self._links:
            if link.gone is None:
                link.gone = gone
                link.lose(gone)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link({"client": (reader, writer)})
        if self._resetting:
            link.close(reset=True)
            return
        self._links.add(link)
        try:
            link.ends["server"] = await asyncio.open_connection(*self._server)
            # Nothing to join if the client's side was closed meanwhile.
            if link in self._links:
                await self._join(link)
        except* OSError:
            pass  # one side is gone; so is the other, in a moment
        finally:
            link.close()
            self._links.discard(link)

    async def _join(self, link: Link) -> None:
        """Forward both ways until both sides have said all."""
        async with asyncio.TaskGroup() as group:
            for stream in get_args(Stream):
                arrived = _Arrivals(maxsize=16)
                group.create_task(self._receive(link, stream, arrived))
                group.create_task(self._deliver(link, stream, arrived))

    async def _receive(self, link: Link, stream: Stream, arrived: _Arrivals) -> None:
        reader, _ = link.ends["client" if stream == "upstream" else "server"]
        clock = asyncio.get_running_loop()
        while data := await reader.read(64 * 1024):
            await arrived.put((clock.time() + self._toxics[stream].delay(), data))
        await arrived.put(None)

    async def _deliver(self, link: Link, stream: Stream, arrived: _Arrivals) -> None:
        _, writer = link.ends["server" if stream == "upstream" else "client"]
        clock = asyncio.get_running_loop()
        while arrival := await arrived.get():
            due, data = arrival
            await asyncio.sleep(due - clock.time())
            for pause, piece in self._toxics[stream].pieces(data):
                await asyncio.sleep(pause)
                await self._flowing[stream].wait()
                if link.gone is None:
                    writer.write(piece)
                    await link.drain(writer)
        if link.gone is None:
            writer.write_eof()


async def _main(port: int, host: str, server_port: int) -> None:
    forwarder = Forwarder(port, host, server_port)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        arguments = json.loads(line)
        count = await forwarder.do(arguments.pop("command"), arguments)
        print(count, flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
