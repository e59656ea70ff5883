"""How callbacks share a transaction, and what a request is told of one that fails."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.callback_rules import Applied, CallbackResult, Received
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.server import callback_writer as module
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_writer import CallbackWriter
from pos_gateway.server.callbacks import CallbackRoute
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.problems import Problem
from tests.adapters.callers import REST, rest_body, rest_signed


class Ledger:
    """Takes its time for the first group, and fails with some."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.go_on = threading.Event()
        self.fails: dict[str, Exception] = {}
        self.result = CallbackResult.APPLIED

    def apply(self, received: Sequence[Received]) -> list[Applied]:
        self.go_on.wait(10)
        self.groups.append([each.callback.event_id for each in received])
        for each in received:
            if each.callback.event_id in self.fails:
                raise self.fails[each.callback.event_id]
        return [Applied(self.result) for _ in received]

    def close(self) -> None:
        pass


def a_callback(event_id: str) -> Received:
    return Received("rest", "m", Callback(event_id, Kind.ACCEPTED, "o1"), {"m": ()})


async def applied(ledger: Any, *ids: str) -> list[Any]:
    """Apply the first, then the others, which come meanwhile."""
    writer = CallbackWriter(ledger)
    calls = [asyncio.ensure_future(writer.apply([a_callback(each)])) for each in ids[:1]]
    await asyncio.sleep(0.01)
    calls += [asyncio.ensure_future(writer.apply([a_callback(each)])) for each in ids[1:]]
    await asyncio.sleep(0.01)
    ledger.go_on.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    writer.close()
    return results


def test_what_comes_during_a_transaction_shares_the_next() -> None:
    ledger = Ledger()
    results = asyncio.run(applied(ledger, "1", "2", "3", "4"))
    assert ledger.groups == [["1"], ["2", "3", "4"]]
    assert results == [[Applied(CallbackResult.APPLIED)]] * 4


def test_one_that_cannot_be_written_keeps_no_other_from_it() -> None:
    ledger = Ledger()
    ledger.fails["3"] = ValueError("a bug")
    *others, last = asyncio.run(applied(ledger, "1", "2", "4", "3"))
    assert others == [[Applied(CallbackResult.APPLIED)]] * 3
    assert isinstance(last, ValueError)


def test_a_database_that_is_away_is_asked_once_for_all() -> None:
    ledger = Ledger()
    ledger.fails["2"] = LedgerUnavailable("away")
    _, *others = asyncio.run(applied(ledger, "1", "2", "3"))
    assert [(each.status, each.code) for each in others] == [(503, "database_unavailable")] * 2
    assert len(ledger.groups) == 2


def test_a_request_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    ledger = Ledger()

    async def late() -> None:
        writer = CallbackWriter(ledger)  # type: ignore[arg-type]
        for event_id in ("1", "2"):
            with pytest.raises(Problem) as error:
                await writer.apply([a_callback(event_id)])
            assert (error.value.status, error.value.retry_after) == (503, 1)
        ledger.go_on.set()
        while writer._writing is not None:
            await asyncio.sleep(0.01)
        assert ledger.groups == [["1"]], "nothing waits for the second any more"
        assert await writer.apply([a_callback("3")]) == [Applied(CallbackResult.APPLIED)]
        writer.close()

    asyncio.run(late())


def test_an_order_that_is_being_written_has_the_pos_call_again() -> None:
    ledger = Ledger()
    ledger.result = CallbackResult.BUSY
    ledger.go_on.set()
    body = rest_body(Kind.ACCEPTED) or b""
    headers = rest_signed(REST.key, "", body, time.time())

    class Merchants:
        async def get(self, _merchant_id: str) -> Any:
            return REST.merchant

        async def owners(self, *_: Any) -> Any:
            return {"fast-1": ("the POS",)}

    async def called() -> None:
        writer = CallbackWriter(ledger)  # type: ignore[arg-type]
        route = CallbackRoute(
            {"rest": RestAdapter()},
            Merchants(),  # type: ignore[arg-type]
            CallbackIntake(Merchants(), writer),  # type: ignore[arg-type]
            InFlight(10),
            public_url=None,
            clock=SYSTEM_CLOCK,
        )
        scope = {
            "path": "/v1/callbacks/rest/fast-1",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        with pytest.raises(Problem) as error:
            await route(scope, receive)
        assert (error.value.status, error.value.code) == (503, "order_busy")
        writer.close()

    asyncio.run(called())
