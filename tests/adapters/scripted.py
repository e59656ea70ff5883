"""A ``send`` that answers from a list, and replies to put into it."""

import json
from collections.abc import Callable
from typing import Any

from pos_gateway.transport.exchange import Reply, Request, Send


class Scripted(Send):
    """Answers from a list, and keeps the requests. A function makes its reply of the request."""

    def __init__(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        answer = self.replies.pop(0)
        return answer if isinstance(answer, Reply) else answer(request)


def reply(status: int, body: Any = None, **headers: str) -> Reply:
    """A reply with this JSON body, or these bytes; header names with ``_`` for ``-``."""
    text = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, text)
