"""How callbacks share a transaction, and what a request is told of one that fails."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.callback_rules import Applied, CallbackResult, Received
from pos_gateway.ledger.callbacks import WaitingCallback
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.server import callback_intake as intake_module
from pos_gateway.server import callback_writer as module
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_writer import CallbackWriter
from pos_gateway.server.callbacks import CallbackRoute
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading
from pos_gateway.server.waiting_callbacks import WaitingCallbacks
from testkit.patience import PATIENCE
from testkit.steps.adapters import PaidAdapter, PrintedAdapter
from tests.adapters.callers import REST, rest_body, rest_signed
from tests.server.lab import SOON


class Ledger:
    """Takes its time for the first group, and fails with some."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.go_on = threading.Event()
        self.fails: dict[str, Exception] = {}
        self.result = CallbackResult.APPLIED
        self.received: list[Received] = []
        self.waiting: list[WaitingCallback] = []

    def due(self, _limit: int) -> list[WaitingCallback]:
        if "due" in self.fails:
            raise self.fails["due"]
        return self.waiting

    def apply(self, received: Sequence[Received]) -> list[Applied]:
        self.go_on.wait(PATIENCE)
        self.received += received
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
        monkeypatch.setattr(module, "TIMEOUT", SOON)
        assert await writer.apply([a_callback("3")]) == [Applied(CallbackResult.APPLIED)]
        writer.close()

    asyncio.run(late())


def test_an_order_that_is_being_written_has_the_pos_call_again() -> None:
    ledger = Ledger()
    ledger.result = CallbackResult.BUSY
    ledger.go_on.set()
    body = rest_body(Kind.ACCEPTED) or b""
    headers = rest_signed(REST.key, "", body, time.time())

    async def called() -> None:
        writer = CallbackWriter(ledger)  # type: ignore[arg-type]
        route = CallbackRoute(
            {"rest": RestAdapter()},
            Merchants(REST.merchant),  # type: ignore[arg-type]
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


class Merchants:
    """One merchant, or none."""

    def __init__(self, *merchants: Merchant) -> None:
        self._merchants = {each.id: each for each in merchants}

    async def get(self, adapter: Adapter, merchant_id: str) -> Merchant | None:
        found = self._merchants.get(merchant_id)
        return found if found is not None and found.adapter == adapter.name else None

    async def owners(self, *_: Any) -> Any:
        return {"fast-1": ("the POS",)}

    def provider(self, _merchant_id: str) -> None:
        pass


async def tried_again(ledger: Ledger, merchants: Merchants, adapter: Any = None) -> None:
    ledger.go_on.set()
    writer, reading = CallbackWriter(ledger), Reading()  # type: ignore[arg-type]
    intake = CallbackIntake(merchants, writer)  # type: ignore[arg-type]
    adapters: Any = {"rest": adapter or RestAdapter()}
    waiting = WaitingCallbacks(adapters, ledger, merchants, intake, reading)  # type: ignore[arg-type]
    try:
        await waiting.retry()
    finally:
        writer.close()
        reading.close()


def a_waiting(adapter: str = "rest", event_id: str = "1") -> WaitingCallback:
    return WaitingCallback(
        adapter, "fast-1", Callback(event_id, Kind.ACCEPTED, external_id="7"), 5.0
    )


def test_what_is_due_is_tried_with_the_owners_of_today() -> None:
    ledger = Ledger()
    ledger.waiting = [a_waiting()]
    asyncio.run(tried_again(ledger, Merchants(REST.merchant)))
    [received] = ledger.received
    assert (received.owners, received.waiting_since) == ({"fast-1": ("the POS",)}, 5.0)


@pytest.mark.parametrize(
    ("adapter", "steps"),
    [
        (RestAdapter(), {}),
        (PaidAdapter(), {"create": True, "pay": True}),
        (PrintedAdapter(), {"create": True, "pay": True, "print": False}),
    ],
)
def test_a_callback_accepts_no_order_at_a_pos_that_takes_several_steps(
    adapter: Any, steps: dict[str, bool]
) -> None:
    """Neither at once, nor one that has waited."""
    ledger = Ledger()
    ledger.waiting = [a_waiting()]
    merchants: Any = Merchants(REST.merchant)

    async def at_once() -> None:
        writer = CallbackWriter(ledger)  # type: ignore[arg-type]
        callback = Callback("1", Kind.ACCEPTED, external_id="7")
        await CallbackIntake(merchants, writer).apply(adapter, REST.merchant, [callback])
        writer.close()

    asyncio.run(tried_again(ledger, merchants, adapter))
    asyncio.run(at_once())
    assert [each.steps for each in ledger.received] == [steps] * 2


@pytest.mark.parametrize("adapter", ["rest", "square", "gone"])
def test_one_whose_merchant_or_adapter_is_gone_is_tried_and_dropped(adapter: str) -> None:
    """Else it would be due for ever."""
    ledger = Ledger()
    ledger.waiting = [a_waiting(adapter)]
    merchants = Merchants() if adapter == "rest" else Merchants(REST.merchant)
    asyncio.run(tried_again(ledger, merchants))
    [received] = ledger.received
    assert received.owners == {}


def test_one_that_waits_on_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    class Counter:
        def inc(self) -> None:
            pass

    def count(_adapter: str, result: str) -> Counter:
        counted.append(result)
        return Counter()

    monkeypatch.setattr(intake_module.metrics, "callbacks", count)
    ledger = Ledger()
    ledger.waiting, ledger.result = [a_waiting()], CallbackResult.WAITING
    asyncio.run(tried_again(ledger, Merchants(REST.merchant)))
    assert counted == []
    ledger.result = CallbackResult.APPLIED
    asyncio.run(tried_again(ledger, Merchants(REST.merchant)))
    assert counted == ["applied"]


def test_one_that_waits_and_cannot_be_written_holds_up_no_other() -> None:
    ledger = Ledger()
    ledger.waiting = [a_waiting(event_id=str(number)) for number in range(5)]
    ledger.fails["2"] = ValueError("a bug")
    with capture_logs() as lines:
        asyncio.run(tried_again(ledger, Merchants(REST.merchant)))
    assert ledger.groups[0] == ["0", "1", "2", "3", "4"], "in their order"
    assert ledger.groups[1:] == [["0"], ["1"], ["2"], ["3"], ["4"]]
    [line] = [each for each in lines if each["event"] == "callback.not_tried"]
    assert line["exc_info"] is ledger.fails["2"]


def test_one_whose_owner_cannot_be_read_holds_up_no_other() -> None:
    ledger = Ledger()
    ledger.waiting = [a_waiting(event_id=str(number)) for number in range(3)]

    class Unreadable(Merchants):
        async def owners(self, *asked: Any) -> Any:
            if asked[-1].event_id == "1":
                raise Problem(503, "secrets_unreadable", "")
            return await super().owners()

    asyncio.run(tried_again(ledger, Unreadable(REST.merchant)))
    assert ledger.groups == [["0", "2"]]


def test_a_database_that_is_away_ends_a_try() -> None:
    ledger = Ledger()
    ledger.fails["due"] = LedgerUnavailable("away")
    with pytest.raises(Problem):
        asyncio.run(tried_again(ledger, Merchants(REST.merchant)))
