"""The consumer's loop: other green threads run, however many messages arrive in a row."""

from itertools import count
from math import inf
from time import thread_time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import gevent
import pytest
from celery.bootsteps import CLOSE, RUN
from gevent.socket import socketpair
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from pos_gateway.admission.cpu import INTERVAL, Cpu
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.runtime import green
from pos_gateway.worker import loop
from pos_gateway.worker.consumer import OrderConsumer
from pos_gateway.worker.dead_lettering import DeadLettering
from pos_gateway.worker.loop import BUSY, YIELD_EVERY, green_loop


@pytest.fixture(autouse=True)
def _on_green_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=gevent.sleep))


def a_dispatcher(cpu: Cpu | None = None) -> Any:
    return SimpleNamespace(admission=SimpleNamespace(cpu=cpu or Cpu(1.0)))


def messages_in_a_row(seconds: float, number: int) -> int:
    """Messages read at most before a green thread runs whose socket is ready.

    Args:
        seconds: CPU time that each of them takes.
        number: how many there are, all readable already.
    """
    here, there = socketpair()
    waiting = longest = 0

    def read_replies() -> None:
        nonlocal waiting
        while there.recv(4096):
            waiting = 0

    blueprint = SimpleNamespace(state=RUN)

    def read_message(**_: Any) -> None:
        nonlocal waiting, longest, number
        until = thread_time() + seconds
        while thread_time() < until:
            pass
        here.send(b"a reply")
        waiting += 1
        longest, number = max(longest, waiting), number - 1
        if not number:
            blueprint.state = CLOSE

    reader = gevent.spawn(read_replies)
    consumer = SimpleNamespace(
        timer=Mock(),
        event_dispatcher=None,
        dispatcher=a_dispatcher(),
        is_full=False,
        connection=True,
        create_task_handler=Mock(),
        on_ready=lambda: None,
        perform_pending_operations=lambda: None,
    )
    connection = SimpleNamespace(
        get_heartbeat_interval=lambda: 0,
        acknowledge_together=lambda _: None,
        drain_events=read_message,
    )
    qos = SimpleNamespace(prev=1, value=1)
    green_loop(consumer, connection, Mock(), blueprint, None, qos, None, None)
    here.close()
    reader.join()
    there.close()
    return longest


def test_the_loop_yields_after_each_large_message() -> None:
    assert messages_in_a_row(BUSY, 20) <= 2


def test_the_loop_reads_many_small_messages_in_a_row() -> None:
    """A turn costs as much as a small message, and orders that start together share a transaction."""
    assert YIELD_EVERY // 2 <= messages_in_a_row(0.0, 5 * YIELD_EVERY) <= 2 * YIELD_EVERY


@pytest.mark.parametrize("waits", [False, True])
def test_the_loop_tells_of_messages_that_lie_unread(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Messages are ready in each turn until the loop yields, or it waits for one of them."""
    cpu, read = Cpu(1.0), count(1)
    blueprint = SimpleNamespace(state=RUN)
    monkeypatch.setattr(loop, "BUSY", inf)
    monkeypatch.setattr(loop, "yield_control", lambda: cpu.turned(INTERVAL / 5, INTERVAL / 5))

    def read_message(**_: Any) -> None:
        number = next(read)
        if waits and number % YIELD_EVERY == 1:
            cpu.turned(0.0, 0.001)
        if number == 10 * YIELD_EVERY:
            blueprint.state = CLOSE

    consumer = SimpleNamespace(
        timer=Mock(),
        event_dispatcher=None,
        dispatcher=a_dispatcher(cpu),
        is_full=False,
        connection=True,
        create_task_handler=Mock(),
        on_ready=lambda: None,
        perform_pending_operations=lambda: None,
    )
    connection = SimpleNamespace(
        get_heartbeat_interval=lambda: 0,
        acknowledge_together=lambda _: None,
        drain_events=read_message,
    )
    qos = SimpleNamespace(prev=1, value=1)
    green_loop(consumer, connection, Mock(), blueprint, None, qos, None, None)
    assert cpu.is_behind is not waits


@pytest.mark.parametrize("monitored", [False, True])
def test_a_missed_heartbeat_ends_the_loop_with_its_error(monitored: bool) -> None:
    """The connection that consumes, or the one for monitoring."""
    ticks: list[Any] = []
    timer = SimpleNamespace(call_repeatedly=lambda seconds, check: ticks.append((seconds, check)))

    def miss(rate: float) -> None:
        raise ConnectionError(f"missed at {rate}")

    def a_connection(is_lost: bool) -> Any:
        return SimpleNamespace(
            get_heartbeat_interval=lambda: 15,
            supports_heartbeats=True,
            heartbeat_check=miss if is_lost else lambda rate: None,
            acknowledge_together=lambda _: None,
            drain_events=lambda timeout: [check() for _, check in ticks],
            connection_errors=(OSError,),
        )

    consumer = SimpleNamespace(
        timer=timer,
        event_dispatcher=SimpleNamespace(connection=a_connection(monitored)),
        dispatcher=a_dispatcher(),
        connection=True,
        create_task_handler=Mock(),
        on_ready=lambda: None,
        perform_pending_operations=lambda: None,
    )
    qos = SimpleNamespace(prev=1, value=1)
    arguments = a_connection(not monitored), Mock(), SimpleNamespace(state=RUN), None, qos
    with pytest.raises(ConnectionError, match=r"missed at 2\.0"):
        green_loop(consumer, *arguments, None, None)
    assert [seconds for seconds, _ in ticks] == [7.5, 7.5]


def test_a_stop_by_remote_control_is_noticed_within_a_second_while_no_message_arrives() -> None:
    """The waits of the idle loop together, up to the one during which the stop comes."""
    blueprint, waits = SimpleNamespace(state=RUN), list[float]()

    def wait(timeout: float) -> None:
        waits.append(timeout)
        blueprint.state = CLOSE
        raise TimeoutError

    consumer = SimpleNamespace(
        timer=Mock(),
        event_dispatcher=None,
        dispatcher=a_dispatcher(),
        is_full=False,
        connection=True,
        create_task_handler=Mock(),
        on_ready=lambda: None,
        perform_pending_operations=lambda: None,
    )
    connection = SimpleNamespace(
        get_heartbeat_interval=lambda: 0,
        acknowledge_together=lambda _: None,
        drain_events=wait,
    )
    qos = SimpleNamespace(prev=1, value=1)
    green_loop(consumer, connection, Mock(), blueprint, None, qos, None, None)
    assert sum(waits) <= 1.0


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_a_signal_ends_the_wait_for_a_message_or_for_the_connection(
    reads: bool, waits: bool
) -> None:
    consumer = OrderConsumer.__new__(OrderConsumer)
    consumer._reads, consumer._drain = reads, Mock()
    consumer.connection = SimpleNamespace(waits=waits)
    consumer._begin_to_stop()
    assert consumer._drain.interrupt.called is not reads
    assert [call.args[0]() for call in consumer._drain.end_wait.call_args_list] == [waits] * reads


def test_an_idle_synchronous_worker_looks_for_a_stop_twice_a_second() -> None:
    """Also after a reconnect. Celery's loop looks whenever a timer ends its wait for a message."""
    consumer = OrderConsumer.__new__(OrderConsumer)
    consumer._wakes_up, consumer.timer = False, Timer()
    consumer._wake_up_for_stops()
    consumer._wake_up_for_stops()
    assert len(consumer.timer.queue) == 1
    assert Hub(consumer.timer).fire_timers(max_delay=60.0) <= 0.5


def test_a_synchronous_worker_waits_for_a_malformed_message_for_a_bounded_time() -> None:
    """Its parent waits there itself: meanwhile it sends no heartbeat, and sees no stop."""
    gateway, message = Mock(), MagicMock(body=b"x")
    message.headers = message.properties = message.delivery_info = {}
    gateway.spine.attempt.side_effect = LedgerUnavailable("it is away")
    DeadLettering(gateway, (), is_green=False)(message, "undecodable", "it is no JSON")
    assert gateway.spine.attempt.call_args.kwargs["timeout"] < inf
    assert message.reject_log_error.call_args.kwargs == {"requeue": True}
    message.ack_log_error.assert_not_called()


def test_no_message_is_read_while_there_is_no_room_for_it_and_the_connection_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "BUSY", inf)  # looks are counted by messages alone
    read: list[bool] = []
    full = iter([True] * 5 + [False] * 1000)
    blueprint, excused = SimpleNamespace(state=RUN), Mock()

    class Full:
        timer, event_dispatcher, connection = Mock(), None, True
        dispatcher = a_dispatcher()
        create_task_handler, perform_pending_operations = Mock(), Mock()
        on_ready = Mock()
        is_full_now = True

        @property
        def is_full(self) -> bool:
            self.is_full_now = next(full)
            return self.is_full_now

    consumer = Full()

    def read_message(**_: Any) -> None:
        read.append(consumer.is_full_now)
        if not consumer.is_full_now:
            blueprint.state = CLOSE

    connection = SimpleNamespace(
        get_heartbeat_interval=lambda: 0,
        acknowledge_together=lambda _: None,
        drain_events=read_message,
        excuse_silence=excused,
    )
    qos = SimpleNamespace(prev=1, value=1)
    green_loop(consumer, connection, Mock(), blueprint, None, qos, None, None)
    assert len(read) == YIELD_EVERY  # the first ones, until the first look
    assert excused.call_count == 5
