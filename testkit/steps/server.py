"""The listening server: the merchants' API under ``/m/{merchant}``, questions and knobs under ``/_/``."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from urllib.parse import parse_qs, unquote, urlsplit

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.connection import ClientConnection, ClientConnections, Exchange
from testkit.steps.pos import Act, Asked, Loses, Manner, StepPos


class _Call:
    """A request of a merchant's API on its way: arrival, fact, reply."""

    def __init__(
        self, exchange: Exchange, pos: StepPos, asked: Asked, on_change: Callable[[], None]
    ) -> None:
        self._exchange, self._pos, self._asked = exchange, pos, asked
        self._on_change = on_change
        self._manner = pos.arrived(asked)
        self._is_gone = False
        exchange.on_gone = self._gone
        on_change()
        if self._manner.loses is Loses.REQUEST:
            exchange.reset()
        else:
            _after(self._manner.late, self._do)

    def _do(self) -> None:
        said = replies.json_reply(*self._pos.do(self._asked, self._manner))
        self._on_change()
        _after(self._manner.slow, partial(self._reply, said))

    def _reply(self, said: replies.CountedReply) -> None:
        if self._is_gone:
            return
        if self._manner.loses is Loses.REPLY:
            self._exchange.reset()
        else:
            self._exchange.answer(said)

    def _gone(self) -> None:
        self._is_gone = True


class StepServer:
    """Plays every merchant, from the merchant's first request on."""

    def __init__(self) -> None:
        self._merchants: dict[str, StepPos] = defaultdict(partial(StepPos, time.monotonic))
        #: Questions without an answer yet.
        self._waiting: list[Callable[[], bool]] = []

    async def serve(self, port: int) -> None:
        """Listen on a port of the loopback until cancelled."""
        connections = ClientConnections()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ClientConnection(self._handle, connections), "127.0.0.1", port
        )
        async with server:
            await server.serve_forever()

    def _handle(self, exchange: Exchange) -> None:
        target = exchange.target.decode("latin-1")
        url = urlsplit(target)
        match [unquote(part) for part in url.path.split("/")[1:]]:
            case ["m", merchant, *_]:
                self._call(exchange, self._merchants[merchant], target.split("/", 3)[-1])
            case ["_", *rest]:
                query = {name: values[-1] for name, values in parse_qs(url.query).items()}
                try:
                    self._control(exchange, rest, query)
                except (KeyError, TypeError, ValueError) as wrong:
                    exchange.answer(replies.error_reply(400, "bad_request", str(wrong)))
            case _:
                exchange.answer(replies.NOT_FOUND)

    def _call(self, exchange: Exchange, pos: StepPos, target: str) -> None:
        key = exchange.key.decode("latin-1")
        asked = pos.asked(exchange.method.decode(), f"/{target}", key, exchange.body)
        if asked is None:
            exchange.answer(replies.NOT_FOUND)
        else:
            _Call(exchange, pos, asked, self._changed)

    def _control(self, exchange: Exchange, path: list[str], query: dict[str, str]) -> None:
        said = json.loads(exchange.body or b"null")
        match exchange.method, path:
            case b"GET", ["ready"]:
                pass
            case b"GET", [merchant, reference]:
                said = asdict(self._merchants[merchant].truth(reference))
            case b"PUT", [merchant, "acts", act]:
                manner = Manner(**{**said, "loses": Loses(said.get("loses", Loses.NOTHING))})
                self._merchants[merchant].treat(Act(act), manner)
            case b"PUT", [merchant]:
                pos = self._merchants[merchant]
                pos.adds, pos.keys_kept = said["adds"], said["keys_kept"]
                pos.undecided = frozenset(map(Act, said["undecided"]))
            case b"GET", [merchant, reference, "wait"]:
                self._wait(exchange, merchant, reference, query)
                return
            case _:
                exchange.answer(replies.NOT_FOUND)
                return
        exchange.answer(replies.json_reply(200, said))

    def _wait(
        self, exchange: Exchange, merchant: str, reference: str, query: dict[str, str]
    ) -> None:
        """Answer with the truth once each count of the query is reached."""
        wanted = {name: int(number) for name, number in query.items()}

        def is_answered() -> bool:
            truth = asdict(self._merchants[merchant].truth(reference))
            counts = {**truth["requests"], **truth}
            if any(counts.get(name, 0) < number for name, number in wanted.items()):
                return False
            exchange.answer(replies.json_reply(200, truth))
            return True

        if not is_answered():
            exchange.on_gone = lambda: self._waiting.remove(is_answered)
            self._waiting.append(is_answered)

    def _changed(self) -> None:
        self._waiting = [is_answered for is_answered in self._waiting if not is_answered()]


def _after(seconds: float, function: Callable[[], None]) -> None:
    if seconds:
        asyncio.get_running_loop().call_later(seconds, function)
    else:
        function()
