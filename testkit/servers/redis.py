"""A Redis server of our own."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from testkit.servers.process import Server, program


class Redis(Server):
    """One server that keeps nothing on disk: killed and started again, it has forgotten all."""

    package: ClassVar[str] = "redis-server"

    @property
    def url(self) -> str:
        """Database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def flush(self) -> None:
        """Forget everything."""
        self._ask("FLUSHALL")

    def _prepare(self) -> None:
        pass  # the command line says it all

    def _command(self) -> Sequence[str | Path]:
        return [
            program("redis-server", self.package),
            *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder),
            *("--save", "", "--appendonly", "no"),
        ]

    def _answers(self) -> bool:
        return self._ask("PING").startswith(b"+PONG")

    def _ask(self, command: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall(f"{command}\r\n".encode())
            return client.recv(64)
