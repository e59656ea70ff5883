"""The intake, between requests and a broker and a database that do as the test says."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    LedgerUnavailable,
    PublishError,
    Unroutable,
)
from pos_gateway.ledger.states import State
from pos_gateway.ledger.submissions import Known, Submitting
from pos_gateway.server import comparing, intake
from pos_gateway.server.intake import Intake
from pos_gateway.server.posted import Posted, PostResult
from pos_gateway.telemetry import metrics
from tests.server.lab import SOON

UNTIL = datetime(2026, 11, 20, tzinfo=UTC)
NEW = Known(is_known=False, is_different=False, state=None)
ENDED = Known(is_known=True, is_different=False, state=State.ACCEPTED)

OnConfirm = Callable[[Message, PublishError | None], None]
#: What the broker does with a group.
Does = Callable[[Sequence[Message], OnConfirm], None]


def stores(messages: Sequence[Message], on_confirm: OnConfirm) -> None:
    for message in messages:
        on_confirm(message, None)


def settles(error: PublishError) -> Does:
    def does(messages: Sequence[Message], on_confirm: OnConfirm) -> None:
        for message in messages:
            on_confirm(message, error)

    return does


def fails(error: Exception) -> Does:
    def does(_: Sequence[Message], __: OnConfirm) -> None:
        raise error

    return does


LOST = settles(BrokerUnavailable("the connection was lost"))
AWAY = fails(BrokerUnavailable("there is no connection"))


class Broker:
    """A publisher that does these, one a group, and then stores."""

    def __init__(self, *does: Does) -> None:
        self._does = list(does)
        self.calls: list[str] = []
        self.written: list[list[str]] = []

    def connect(self) -> None:
        self.calls.append("connect")

    def renew(self) -> None:
        self.calls.append("renew")

    def close(self) -> None:
        self.calls.append("close")

    def start(self, messages: Sequence[Message], on_confirm: OnConfirm) -> None:
        self.calls.append("start")
        self.written.append([message.message_id for message in messages])
        does = self._does.pop(0) if self._does else stores
        does(messages, on_confirm)


class Hold:
    """Holds the intake's thread while it writes a group."""

    def __init__(self) -> None:
        self._is_reached, self._is_over = threading.Event(), threading.Event()

    def then(self, does: Does) -> Does:
        def held(messages: Sequence[Message], on_confirm: OnConfirm) -> None:
            self._is_reached.set()
            assert self._is_over.wait(SOON)
            does(messages, on_confirm)

        return held

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self._is_reached.wait, SOON)

    def end(self) -> None:
        self._is_over.set()


def give_up(order: Posted) -> None:
    """As the request's timer would."""
    assert order.request is not None
    order.request.end()


class Table:
    """Submissions that know these orders, and no other."""

    def __init__(self, **known: Known) -> None:
        self._known = known
        self.writes = self.connects = 0
        self.forgotten: list[str] = []
        self.may_write, self.may_forget = threading.Event(), threading.Event()
        self.may_connect, self.is_connecting = threading.Event(), threading.Event()
        self.may_write.set()
        self.may_forget.set()
        self.is_forgetting = threading.Event()
        #: Whether a call ends soon, and the threads that have called.
        self.is_prompt = False
        self.threads: list[str] = []
        self.errors: list[Exception] = []

    def connect(self) -> None:
        self.connects += 1
        self.is_connecting.set()
        assert self.may_connect.wait(SOON)
        self.is_prompt = True

    def write(self, orders: Sequence[Submitting], _: float) -> list[Known]:
        self.writes += 1
        self.threads.append(threading.current_thread().name)
        assert self.may_write.wait(SOON)
        if self.errors:
            raise self.errors.pop(0)
        return [self._known.get(each.order_id, NEW) for each in orders]

    def forget(self, orders: Sequence[Submitting]) -> None:
        self.is_forgetting.set()
        assert self.may_forget.wait(SOON)
        self.forgotten += [each.order_id for each in orders]

    def close(self) -> None:
        pass


def posted(order_id: str) -> Posted:
    message = wire.submit_message(order_id, b"{}", routing_key="orders")
    return Posted(message, Submitting("m1", order_id, "digest", UNTIL))


def play(
    broker: Broker, table: Table, script: Callable[[Intake], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        taking = Intake(broker, table)  # type: ignore[arg-type]
        taking.start(asyncio.get_running_loop())
        try:
            await script(taking)
        finally:
            table.may_write.set()
            table.may_forget.set()
            table.may_connect.set()
            await asyncio.to_thread(taking.stop)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine changes no result."""
    monkeypatch.setattr(intake, "TIMEOUT", SOON)
    monkeypatch.setattr(comparing, "LOOK_UP_TIMEOUT", SOON)


def test_a_message_whose_connection_was_lost_is_written_once_more() -> None:
    broker, table, order = Broker(LOST), Table(), posted("o1")
    play(broker, table, lambda taking: taking.post([order]))
    assert (order.result, broker.written) == (PostResult.STORED, [["o1"], ["o1"]])
    assert table.writes == 1, "its own row would pass for an earlier submission"


def test_a_message_is_written_twice_at_most() -> None:
    broker, table, order = Broker(LOST, LOST), Table(), posted("o1")
    play(broker, table, lambda taking: taking.post([order]))
    assert (order.result, broker.written) == (PostResult.UNKNOWN, [["o1"], ["o1"]])


def test_the_id_of_an_order_that_may_be_stored_stays_taken() -> None:
    broker, table, order = Broker(LOST, AWAY), Table(), posted("o1")
    play(broker, table, lambda taking: taking.post([order]))
    assert (order.result, table.forgotten) == (PostResult.UNKNOWN, [])


def test_ids_are_free_before_the_client_hears_that_nothing_was_published() -> None:
    """Its retry may come to another server, whose row for it must stay."""
    broker, table = Broker(AWAY), Table()
    order, another = posted("o1"), posted("o2")

    async def script(taking: Intake) -> None:
        table.may_forget.clear()
        request = asyncio.create_task(taking.post([order, another]))
        assert await asyncio.to_thread(table.is_forgetting.wait, SOON)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not request.done()
        table.may_forget.set()
        await request

    play(broker, table, script)
    assert table.forgotten == ["o1", "o2"]
    assert order.result is another.result is PostResult.UNKNOWN


def test_an_id_stays_taken_once_the_client_has_a_reply() -> None:
    """It may have submitted again since, to another server."""
    hold, order = Hold(), posted("o1")
    broker, table = Broker(hold.then(AWAY)), Table()

    async def script(taking: Intake) -> None:
        request = asyncio.create_task(taking.post([order]))
        await hold.is_reached()
        give_up(order)
        await request
        hold.end()
        await taking.post([posted("o2")])

    play(broker, table, script)
    assert broker.written[0] == ["o1"]
    assert "o1" not in table.forgotten


def test_an_error_of_the_thread_settles_each_message_once() -> None:
    broker, table = Broker(fails(RuntimeError("a bug"))), Table(ended=ENDED)
    ended, order, later = posted("ended"), posted("o1"), posted("o2")

    async def script(taking: Intake) -> None:
        await taking.post([ended, order])
        assert taking._written == {}
        await taking.post([later])

    play(broker, table, script)
    assert (ended.result, ended.state) == (PostResult.ENDED, "accepted")
    assert order.result is PostResult.UNKNOWN
    assert later.result is PostResult.STORED, "the thread goes on"


def test_a_database_that_does_not_answer_holds_up_one_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "LOOK_UP_TIMEOUT", 0.01)
    broker, table = Broker(), Table()
    before = metrics.http_uncompared._value.get()

    async def script(taking: Intake) -> None:
        table.may_write.clear()
        for order in orders:
            await taking.post([order])

    orders = [posted("o1"), posted("o2")]
    play(broker, table, script)
    assert [each.result for each in orders] == [PostResult.STORED] * 2
    assert table.writes == 1, "the second does not queue behind the first"
    assert metrics.http_uncompared._value.get() == before + 2


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_database_that_answers_promptly_is_asked_without_another_thread(is_prompt: bool) -> None:
    broker, table = Broker(), Table(ended=ENDED)
    table.is_prompt = is_prompt
    ended = posted("ended")
    play(broker, table, lambda taking: taking.post([ended]))
    assert (ended.result, table.threads) == (
        PostResult.ENDED,
        ["intake" if is_prompt else "submissions_0"],
    )


def test_while_a_silent_database_is_connected_again_no_group_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparing, "LOOK_UP_TIMEOUT", 0.0)  # the error came late
    broker, table = Broker(), Table(ended=ENDED)
    table.is_prompt, table.errors = True, [LedgerUnavailable("no answer")]
    orders = [posted("o1"), posted("ended"), posted("ended")]

    async def script(taking: Intake) -> None:
        await taking.post([orders[0]])
        await taking.post([orders[1]])
        assert await asyncio.to_thread(table.is_connecting.wait, SOON)
        assert (table.writes, table.connects) == (1, 1)
        table.may_connect.set()
        late = taking._comparing._late
        assert late is not None
        late.result(SOON)
        await taking.post([orders[2]])

    play(broker, table, script)
    stored = PostResult.STORED
    assert [each.result for each in orders] == [stored, stored, PostResult.ENDED]


def test_after_an_error_that_came_at_once_the_next_group_is_compared() -> None:
    """The database was restarted: only the connection was lost."""
    broker, table = Broker(), Table(ended=ENDED)
    table.errors = [LedgerUnavailable("the connection is lost")]
    orders = [posted("ended"), posted("ended")]

    async def script(taking: Intake) -> None:
        for order in orders:
            await taking.post([order])

    play(broker, table, script)
    assert [each.result for each in orders] == [PostResult.STORED, PostResult.ENDED]
    assert table.connects == 0


def test_submissions_are_not_asked_while_ids_are_being_freed() -> None:
    """They are for one caller at a time."""
    broker, table = Broker(AWAY), Table()
    table.is_prompt = True
    freed, order = posted("o1"), posted("o2")

    async def script(taking: Intake) -> None:
        table.may_forget.clear()
        first = asyncio.create_task(taking.post([freed]))
        assert await asyncio.to_thread(table.is_forgetting.wait, SOON)
        second = asyncio.create_task(taking.post([order]))
        await asyncio.to_thread(until_taken, taking)
        assert table.writes == 1
        table.may_forget.set()
        await asyncio.gather(first, second)

    play(broker, table, script)
    assert table.threads == ["intake", "submissions_0"]


def until_taken(taking: Intake) -> None:
    """Return once the intake waits for the database with what was posted last."""
    until = time.monotonic() + SOON
    while taking._comparing._thread._work_queue.empty():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_after_a_refusal_the_topology_is_declared_again() -> None:
    broker, table = Broker(settles(Unroutable("no queue takes it"))), Table()
    order, another = posted("o1"), posted("o2")

    async def script(taking: Intake) -> None:
        await taking.post([order])
        await taking.post([another])

    play(broker, table, script)
    assert (order.result, another.result) == (PostResult.UNKNOWN, PostResult.STORED)
    assert broker.calls == ["connect", "start", "renew", "start", "close"]


def test_what_no_request_waits_for_any_more_is_not_published() -> None:
    hold, order = Hold(), posted("o2")
    broker, table = Broker(hold.then(stores)), Table()

    async def script(taking: Intake) -> None:
        first = asyncio.create_task(taking.post([posted("o1")]))
        await hold.is_reached()
        second = asyncio.create_task(taking.post([order]))
        await asyncio.sleep(0)
        give_up(order)
        await second
        hold.end()
        await first
        await taking.post([posted("o3")])

    play(broker, table, script)
    assert broker.written == [["o1"], ["o3"]]


def test_a_broker_that_confirms_nothing_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "UNCONFIRMED", 1)
    confirms: list[tuple[Message, OnConfirm]] = []

    def keeps(messages: Sequence[Message], on_confirm: OnConfirm) -> None:
        confirms.extend((message, on_confirm) for message in messages)

    broker, table = Broker(keeps), Table()
    order, refused, later = posted("o1"), posted("o2"), posted("o3")

    async def script(taking: Intake) -> None:
        request = asyncio.create_task(taking.post([order]))
        while not confirms:
            await asyncio.sleep(0.001)
        give_up(order)
        await request
        assert taking.problem == "the broker confirms nothing"
        await taking.post([refused])
        [(message, on_confirm)] = confirms
        on_confirm(message, None)
        assert taking.problem is None
        await taking.post([later])

    play(broker, table, script)
    assert (refused.result, later.result) == (PostResult.UNKNOWN, PostResult.STORED)
    assert broker.written == [["o1"], ["o3"]]
    assert table.forgotten == ["o2"]
