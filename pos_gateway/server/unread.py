"""Replies whose clients have not taken them: in memory, so bounded all together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pos_gateway.server.body import Send
from pos_gateway.server.problems import Problem

#: Most bytes of replies that wait for their clients.
UNREAD = 32 * 1024 * 1024
#: Most bytes that are sent at once. A reply of no more does not count: connections are limited.
PART = 16 * 1024


class Unread:
    """Counts the bytes of replies until their clients have taken them. For the event loop."""

    def __init__(self) -> None:
        self._bytes = 0

    def room(self, wanted: int) -> int:
        """How many of ``wanted`` bytes a reply may have now; ``PART`` in any case."""
        return max(PART, min(wanted, UNREAD - self._bytes))

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """A reply of ``size`` bytes waits for its client, while entered. Raises Problem 503."""
        counted = size if size > PART else 0
        if self._bytes + counted > UNREAD:
            raise Problem(
                503,
                "replies_unread",
                f"clients have not read {self._bytes} bytes of this server's replies; "
                "send the same again, and ask for fewer events at once",
                retry_after=1,
            )
        self._bytes += counted
        try:
            yield
        finally:
            self._bytes -= counted

    def sending(self, send: Send) -> Send:
        """``send``, part by part: the next one waits until the client has taken the last one.

        A reply that comes whole is counted, or refused before it begins. Another one's parts are
        the caller's to count.
        """
        start: Any = None

        async def send_parts(message: Any) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message  # not yet: the body may be refused
                return
            head, start = start, None
            body, more = message.get("body", b""), message.get("more_body", False)
            try:
                with self.holding(0 if more or head is None else len(body)):
                    if head is not None:
                        await send(head)
                    last = max(0, len(body) - 1) // PART * PART
                    for at in range(0, last, PART):
                        part = body[at : at + PART]
                        await send({**message, "body": part, "more_body": True})
                    await send({**message, "body": body[last:]} if last else message)
            except Problem as problem:
                await refuse(problem, send)

        return send_parts


async def refuse(problem: Problem, send: Send) -> None:
    """Reply with this problem."""
    await reply(problem.status, problem.body(), problem.headers(), send)


async def reply(status: int, body: bytes, headers: list[tuple[bytes, bytes]], send: Send) -> None:
    """Reply with this body."""
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
