"""A server that answers nonsense on Redis's port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Liar:
    """Greets properly (CLIENT SETINFO), then answers the script with ``reply``; b"" is silence."""

    def __init__(self, reply: bytes, *, greets: bool = True) -> None:
        self.reply = reply
        self._greets = greets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """How many connections there were."""
        return len(self._open)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := connection.recv(1 << 20):
                if self._greets and b"SETINFO" in data:
                    connection.sendall(b"+OK\r\n" * data.count(b"SETINFO"))
                elif self.reply:
                    connection.sendall(self.reply)


@contextmanager
def lying(reply: bytes, *, greets: bool = True) -> Iterator[Liar]:
    liar = Liar(reply, greets=greets)
    try:
        yield liar
    finally:
        liar.close()
