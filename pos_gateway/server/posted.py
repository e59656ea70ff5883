"""A message that a request posts to the broker, and its result."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from pos_gateway.broker.message import Message
from pos_gateway.ledger.submissions import Submitting


class PostResult(StrEnum):
    """A message's result."""

    #: The broker has stored it in a queue.
    STORED = "stored"
    #: Its order has ended; nothing was published.
    ENDED = "ended"
    #: Its order is known with other content; nothing was published.
    DIFFERENT = "different"
    #: Its order's ``deliver_by`` has passed, and it was never submitted; nothing was published.
    LATE = "late"
    #: It may or may not be stored.
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Posted:
    """A message to publish, and its result."""

    message: Message
    #: The order to compare; None: a cancel request.
    order: Submitting | None = None
    is_compared: bool = False
    #: It was not known before.
    is_new: bool = False
    result: PostResult = PostResult.UNKNOWN
    #: The order's state, if it was known before.
    state: str | None = None
    #: The request that waits for it; None: no request does any more.
    request: "PendingRequest | None" = None
    writes: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether its request has ended without it."""
        return self.request is not None and self.request.done.done()


class PendingRequest:
    """The messages that one HTTP request waits for.

    Args:
        count: how many.
        done: what the request waits for.
    """

    __slots__ = ("done", "left")

    def __init__(self, count: int, done: "asyncio.Future[None]") -> None:
        self.left = count
        self.done = done

    def end(self) -> None:
        """Let the request go on, with the results that there are. Idempotent."""
        if not self.done.done():
            self.done.set_result(None)
