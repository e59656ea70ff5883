"""The client for asyncio."""

import asyncio
import json
import threading
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from pos_gateway.client import OrderClient, SubmitResult
from pos_gateway.client.aio import AsyncOrderClient
from pos_gateway.domain.errors import BrokerUnavailable, InvalidOrder
from pos_gateway.http_client import HttpOrderClient
from testkit.patience import PATIENCE
from tests.broker.test_order_client import queued
from tests.orders import an_order
from tests.server.scripted import Scripted, silence

SOON = PATIENCE


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SOON):
            await coroutine

    asyncio.run(bounded())


def page(*positions: int) -> tuple[int, dict[str, str], bytes]:
    events = [{"position": each} for each in positions]
    return 200, {}, json.dumps({"events": events, "next": positions[-1]}).encode()


def test_orders_are_submitted_over_amqp(broker_url: str) -> None:
    async def go() -> None:
        async with AsyncOrderClient(OrderClient(broker_url)) as client:
            await asyncio.gather(*(client.submit(an_order(f"o{n}")) for n in range(50)))
            results = await client.submit_many([an_order("many"), an_order(total="a lot")])
            await client.cancel("o1", "fast-1")
            with pytest.raises(InvalidOrder, match="total"):
                await client.submit(an_order(total="a lot"))
            with pytest.raises(TypeError, match="OrderClient reads nothing"):
                await client.find("o1", "fast-1")
            assert [each.state for each in results] == ["submitted", None]

    run(go())
    assert sorted(queued(broker_url, "orders")) == sorted(
        [f"o{n}" for n in range(50)] + ["many", "o1"]
    )


def test_orders_are_submitted_and_events_read_over_http() -> None:
    state = b'{"order_id":"o1","merchant_id":"fast-1","state":"submitted"}'
    server = Scripted((202, {}, state), (200, {}, state), page(1, 2), page(3), (401, {}, b""))

    async def go() -> None:
        async with AsyncOrderClient(HttpOrderClient(server.url, "pgw_x")) as client:
            assert await client.submit(an_order("o1")) == "submitted"
            found = await client.find("o1", "fast-1")
            assert found is not None
            assert found["state"] == "submitted"
            seen = []
            async for event in client.events(wait=0):
                seen.append(event["position"])
                if event["position"] == 3:
                    break
            assert seen == [1, 2, 3]

    try:
        run(go())
    finally:
        server.close()


def test_a_close_ends_the_events() -> None:
    empty = 200, {}, b'{"events":[],"next":0}'
    server = Scripted(empty)

    async def go() -> None:
        client = AsyncOrderClient(HttpOrderClient(server.url, "pgw_x"))

        async def read() -> list[Any]:
            return [event async for event in client.events(wait=0.05)]

        reading = asyncio.create_task(read())
        while not server.asked:
            await asyncio.sleep(0.01)
        await client.close()
        await client.close()
        assert await reading == []

    try:
        run(go())
    finally:
        server.close()


def test_a_server_that_is_silent_holds_up_no_other_task() -> None:
    server = Scripted(silence)

    async def go() -> None:
        async with AsyncOrderClient(HttpOrderClient(server.url, "pgw_x", timeout=1)) as client:
            submitting = asyncio.create_task(client.submit(an_order("o1")))
            while not server.asked:
                await asyncio.sleep(0.01)  # this loop turns meanwhile
            assert not submitting.done()
            with pytest.raises(BrokerUnavailable):
                await submitting

    try:
        run(go())
    finally:
        server.close()


class Recording:
    """A client that notes where its calls run."""

    def __init__(self, span: "ContextVar[str]") -> None:
        self.span = span
        self.seen: list[tuple[str, str]] = []
        self.release = threading.Event()

    def submit(self, order: Any, *, again: bool = False) -> None:
        self.seen.append((self.span.get("none"), threading.current_thread().name))
        assert self.release.wait(SOON)

    def submit_many(self, orders: Any, *, again: bool = False) -> list[SubmitResult]:
        return []

    def cancel(self, order_id: str, merchant_id: str, *, deliver_by: Any = None) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_loop_turns_while_the_client_is_closed() -> None:
    released = threading.Event()

    class Slow(Recording):
        def close(self) -> None:
            assert released.wait(SOON)

    async def go() -> None:
        client = AsyncOrderClient(Slow(ContextVar("span")))
        asyncio.get_running_loop().call_later(0, released.set)
        await client.close()

    run(go())


def test_a_call_runs_in_its_task_s_context_and_a_cancelled_task_waits_no_longer() -> None:
    recording = Recording(ContextVar("span"))

    async def go() -> None:
        async with AsyncOrderClient(recording, threads=2) as client:
            recording.span.set("parent")
            submitting = asyncio.create_task(client.submit({}))
            while not recording.seen:
                await asyncio.sleep(0.01)
            submitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await submitting
            recording.release.set()
            await client.submit({})

    run(go())
    assert [span for span, _ in recording.seen] == ["parent", "parent"]
    assert all(name.startswith("order-client") for _, name in recording.seen)
