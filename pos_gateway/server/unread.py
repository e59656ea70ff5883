"""Replies that clients have not read yet: they are in memory, so their sum is bounded.

A token may use at most as much as remains free: one token alone half of the limit, each of two a third.
So the clients of one, however many, leave room for another's.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pos_gateway.server.body import Send
from pos_gateway.server.problems import Problem

#: Maximum bytes of replies that wait for their clients.
UNREAD = 32 * 1024 * 1024
#: Maximum bytes that are sent at once. A reply of no more does not count: connections are limited.
PART = 16 * 1024


class Unread:
    """Counts the bytes of replies until their clients have taken them. For the event loop."""

    def __init__(self) -> None:
        self._bytes = 0
        #: By token; None: requests without one.
        self._of: Counter[str | None] = Counter()

    def room(self, wanted: int, token: str | None) -> int:
        """How many of ``wanted`` bytes a reply to this token may have now; ``PART`` in any case."""
        return max(PART, min(wanted, self._left(token)))

    @contextmanager
    def holding(self, size: int, token: str | None) -> Iterator[None]:
        """A reply of ``size`` bytes waits for its client, while entered. Raises Problem 503."""
        counted = size if size > PART else 0
        if counted > self._left(token):
            raise Problem(
                503,
                "replies_unread",
                f"clients have not read {self._bytes} bytes of this server's replies, "
                f"{self._of[token]} of them with this token; "
                "send the same again, and ask for fewer events at once",
                retry_after=1,
            )
        self._count(counted, token)
        try:
            yield
        finally:
            self._count(-counted, token)

    def _left(self, token: str | None) -> int:
        """The bytes that a token may still use: then as much as it uses remains free."""
        return (UNREAD - self._bytes - self._of[token]) // 2

    def _count(self, size: int, token: str | None) -> None:
        self._bytes += size
        self._of[token] += size
        if not self._of[token]:
            del self._of[token]

    def sending(self, send: Send, token: Callable[[], str | None]) -> Send:
        """``send``, part by part: the next one waits until the client has taken the last one.

        A reply that comes whole is counted, or refused before it begins. Another one's parts are
        the caller's to count.

        Args:
            token: the request's, once there is a reply.
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
                with self.holding(0 if more or head is None else len(body), token()):
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
