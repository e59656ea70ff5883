"""What the gateway uses of Celery beyond its documentation."""

import inspect
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import gevent
import kombu.utils.functional
import pytest
from celery import Celery, Task
from celery.bootsteps import CLOSE, Blueprint, StartStopStep
from celery.concurrency.gevent import TaskPool
from celery.exceptions import InvalidTaskError, WorkerShutdown
from celery.worker import control, state
from celery.worker.consumer.consumer import Evloop
from celery.worker.consumer.tasks import Tasks
from celery.worker.strategy import default as celerys_strategy
from kombu import Connection, Message

from pos_gateway.ledger.states import Action
from pos_gateway.worker import celery_internals as subject
from pos_gateway.worker.celery_internals import Consumer
from pos_gateway.worker.consumer import OrderConsumer
from pos_gateway.worker.declaring import Blueprint as OurBlueprint
from pos_gateway.worker.loop import green_loop
from pos_gateway.worker.request import OrderRequest, RequestState
from testkit.patience import PATIENCE

ROOT = Path(__file__).parents[2]

#: What ``OrderConsumer`` overrides, with the parameters that Celery's methods have.
OVERRIDDEN = {
    "start": [],
    "stop": [],
    "shutdown": [],
    "ensure_connected": ["conn"],
    "on_ready": [],
    "on_close": [],
    "on_connection_error_before_connected": ["exc"],
    "on_connection_error_after_connected": ["exc"],
    "on_decode_error": ["message", "exc"],
    "on_invalid_task": ["body", "message", "exc"],
    "create_task_handler": ["promise"],
}


class Recording(Consumer):
    """Records which of the overridden methods Celery calls, in order."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[str] = []
        app = Celery(broker="memory://", set_as_current=False)
        controller = SimpleNamespace(state=state, semaphore=None, use_eventloop=False)
        super().__init__(
            options.pop("on_task_request", Mock()),
            app=app,
            pool=TaskPool(2),
            timer=Mock(),
            controller=controller,
            **options,
        )


def _noting(name: str) -> Any:
    def method(self: Recording, *_: Any) -> None:
        self.calls.append(name)

    return method


NOTED = [name for name in OVERRIDDEN if name.startswith("on_") and name != "on_ready"]
for _name in NOTED:
    setattr(Recording, _name, _noting(_name))


def a_message(headers: dict[str, Any], body: bytes = b"[[],{},{}]") -> Any:
    delivery = {"routing_key": "k", "exchange": "e"}
    message: Any = Message(
        body,
        headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info=delivery,
    )
    message.ack_log_error, message.reject_log_error = Mock(), Mock()
    return message


def test_the_consumer_overrides_exactly_these_methods() -> None:
    of_celery = {name for name in dir(Consumer) if not name.startswith("__")}
    assert vars(OrderConsumer).keys() & of_celery == {*OVERRIDDEN, "Blueprint"}
    for name, parameters in OVERRIDDEN.items():
        assert list(inspect.signature(getattr(Consumer, name)).parameters)[1:] == parameters, name


def test_the_consumer_runs_a_loop_set_before_its_constructor() -> None:
    """With the consumer's parts, as ``green_loop`` names them."""

    class Looping(Recording):
        def __init__(self) -> None:
            self.loop = Mock()
            super().__init__()

    consumer = Looping()
    consumer.connection, consumer.task_consumer, consumer.qos = Mock(), Mock(), Mock()
    Evloop(consumer).start(consumer)
    given = inspect.signature(green_loop).bind(*consumer.loop.call_args.args).arguments
    assert given == {
        "consumer": consumer,
        "connection": consumer.connection,
        "task_consumer": consumer.task_consumer,
        "blueprint": consumer.blueprint,
        "hub": None,
        "qos": consumer.qos,
        "heartbeat": consumer.amqheartbeat,
        "clock": consumer.app.clock,
        "hbrate": consumer.amqheartbeat_rate,
    }


@pytest.mark.parametrize(
    ("connection", "errors", "told"),
    [
        (None, "connection_errors", "on_connection_error_before_connected"),
        (Mock(), "connection_errors", "on_connection_error_after_connected"),
        (Mock(), "channel_errors", "on_connection_error_after_connected"),
    ],
)
def test_a_lost_connection_is_reported_then_closed_then_reopened(
    connection: Any, errors: str, told: str
) -> None:
    consumer = Recording()
    consumer.app.conf.broker_channel_error_retry = True
    blueprint: Any = SimpleNamespace(state=None)
    consumer.blueprint, consumer.connection = blueprint, connection

    def start(_: Any) -> None:
        consumer.calls.append("start")
        if consumer.calls.count("start") == 1:
            raise getattr(consumer, errors)[0]
        blueprint.state = CLOSE

    blueprint.start = start
    blueprint.restart = lambda _: consumer.calls.append("restart")
    consumer.start()
    assert consumer.calls == ["start", told, "on_close", "restart", "start"]
    assert consumer.first_connection_attempt is False


def test_the_consumers_connection_comes_from_ensure_connected() -> None:
    consumer = Recording()
    made: list[Any] = []

    def ensure_connected(connection: Any) -> str:
        made.append(connection)
        return "connected"

    consumer.ensure_connected = ensure_connected
    assert consumer.connect() == "connected"
    assert isinstance(made[0], Connection)


def test_a_consumer_starts_and_stops_through_its_blueprint() -> None:
    ready = Mock()
    consumer = Recording(init_callback=ready)
    consumer.blueprint = Mock()
    consumer.on_ready()
    consumer.on_ready()
    ready.assert_called_once_with(consumer)
    consumer.stop()
    consumer.blueprint.stop.assert_called_once_with(consumer)
    asked = Mock()
    consumer.call_soon(asked, 1)
    asked.assert_not_called()
    consumer.perform_pending_operations()
    asked.assert_called_once_with(1)
    consumer.shutdown()
    consumer.blueprint.shutdown.assert_called_once_with(consumer)


def names_of(consumer: Consumer) -> list[str]:
    return [type(step).__name__ for step in consumer.blueprint.order]


def test_steps_can_be_left_out() -> None:
    quiet = {f"without_{each}": True for each in ("gossip", "mingle", "heartbeat")}
    off = {"Gossip", "Mingle", "Heart"}
    assert off <= set(names_of(Recording()))
    enabled = {type(step).__name__ for step in Recording(worker_options=quiet).steps}
    assert not off & enabled
    assert {"Connection", "Tasks", "Evloop"} <= enabled


def test_celerys_step_for_the_delay_queues_is_left_out() -> None:
    class Ours(Recording):
        Blueprint = OurBlueprint

    assert set(names_of(Recording())) - set(names_of(Ours())) == {"DelayedDelivery"}


def test_the_tasks_step_has_the_app_make_its_consumer_from_its_connection() -> None:
    consumer = Recording()
    consumer.connection, consumer.app.amqp.TaskConsumer = MagicMock(), Mock()
    Tasks(consumer).start(consumer)
    [connection] = consumer.app.amqp.TaskConsumer.call_args.args
    assert connection is consumer.connection


def test_a_task_consumer_that_is_told_so_declares_nothing() -> None:
    app, channel = Celery(set_as_current=False), MagicMock()
    made = subject.AMQP(app).TaskConsumer(channel, auto_declare=False)
    assert [each.name for each in made.queues] == ["celery"]
    channel.queue_declare.assert_not_called()
    subject.AMQP(app).TaskConsumer(channel)
    channel.queue_declare.assert_called_once()


def test_a_started_blueprint_is_in_state_run() -> None:
    class Step(StartStopStep):
        """A step that is not Celery's."""

    blueprint = Blueprint([Step], name="any")
    parent = SimpleNamespace(steps=[])
    blueprint.apply(parent)
    blueprint.start(parent)
    assert blueprint.state == subject.RUN
    blueprint.stop(parent)
    assert blueprint.state != subject.RUN


seen: list[Any] = []


def a_strategy(task: Any, app: Any, consumer: Any) -> Any:
    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        seen.append((task.name, app, consumer, message, body, callbacks))
        if "invalid" in message.headers:
            raise InvalidTaskError("invalid")
        ack("log", (OSError,))
        reject("log", (OSError,), True)

    return handle


def test_a_message_is_passed_to_its_tasks_strategy() -> None:
    """Rebuilt on each connection; acknowledging and rejecting reach the message at once."""
    consumer, message = Recording(), a_message({"task": "ours", "id": "1"})

    class Ours(Task):
        name, Strategy = "ours", f"{__name__}:a_strategy"

    consumer.app.register_task(Ours())
    consumer.update_strategies()
    seen.clear()
    consumer.create_task_handler()(message)
    assert seen == [("ours", consumer.app, consumer, message, None, set())]
    message.ack_log_error.assert_called_once_with("log", (OSError,))
    message.reject_log_error.assert_called_once_with("log", (OSError,), True)


#: A text that Celery reads as a number of its own, and cannot.
ODD = b'[[{"__type__":"uuid","__value__":7}],{},{}]'


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (a_message({}, b"{no json"), "on_decode_error"),
        (a_message({"task": "celerys", "id": "1"}, ODD), "on_decode_error"),
        (a_message({"task": "ours", "id": "1", "invalid": 1}), "on_invalid_task"),
    ],
)
def test_a_message_that_celery_cannot_read_is_reported(message: Any, told: str) -> None:
    consumer = Recording()
    consumer.event_dispatcher = None
    consumer.strategies["ours"] = a_strategy(Mock(), None, consumer)

    class Celerys(Task):
        name = "celerys"

    consumer.app.register_task(Celerys())
    consumer.strategies["celerys"] = celerys_strategy(
        consumer.app.tasks["celerys"], consumer.app, consumer
    )
    consumer.create_task_handler()(message)
    assert consumer.calls == [told]


def test_celerys_strategy_runs_the_task_with_the_messages_headers() -> None:
    headers = {"task": "ours", "id": "1", "lang": "py", "x-attempts": 3}
    consumer = Recording(on_task_request=lambda request: request.execute())
    consumer.event_dispatcher = None
    got: list[Any] = []

    class Ours(Task):
        name, ignore_result = "ours", True

        def run(self, *arguments: Any) -> None:
            got.append((arguments, subject.headers_of(self.request)))

    task = consumer.app.register_task(Ours())
    handle = celerys_strategy(task, consumer.app, consumer)
    handle(a_message(headers, b'[["o1"],{},{}]'), None, Mock(), Mock(), ())
    [(arguments, of_request)] = got
    assert arguments == ("o1",)
    assert headers.items() <= of_request.items()
    assert of_request["delivery_info"]["routing_key"] == "k"


class Asked:
    """What Celery reads of a request."""

    def __init__(self) -> None:
        self.id = self.name = "o1"


def test_inspect_reads_the_requests_in_the_state() -> None:
    state.reset_state()
    request = Asked()
    subject.task_reserved(request)
    assert (set(state.reserved_requests), set(state.active_requests)) == ({request}, set())
    subject.task_accepted(request)
    assert set(state.active_requests) == {request}
    subject.task_ready(request)
    assert (set(state.reserved_requests), set(state.active_requests)) == (set(), set())
    assert state.requests == {}


def an_order(number: str) -> OrderRequest:
    message = SimpleNamespace(
        headers={"id": number},
        body=b"",
        delivery_info={"routing_key": "orders"},
        ack_log_error=Mock(),
    )
    task = SimpleNamespace(action=Action.SUBMIT, name="ours", acks_late=True)
    consumer = SimpleNamespace(event_dispatcher=None, hostname="here", connection_errors=())
    return OrderRequest(message, [[{}], {}, {}], task, consumer, 0.0)


def test_celery_accepts_our_requests_in_place_of_its_own() -> None:
    """``celery inspect``, a lost connection, and a shutdown, which leaves them to us."""
    state.reset_state()
    waiting, in_flight = an_order("waiting"), an_order("in flight")
    waiting.enter(RequestState.WAITING)
    in_flight.enter(RequestState.IN_FLIGHT)
    panel = SimpleNamespace(tset=set)
    assert [each["id"] for each in control.reserved(panel)] == ["waiting"]
    assert [each["id"] for each in control.active(panel)] == ["in flight"]
    found = control.query_task(panel, ["waiting", "in flight"])
    assert {each: where for each, (where, _) in found.items()} == {
        "waiting": "reserved",
        "in flight": "active",
    }
    consumer = Recording()
    consumer.cancel_active_requests()
    Consumer.on_close(consumer)
    assert list(state.requests) == ["in flight"]
    assert set(state.reserved_requests) == {in_flight}  # Celery counts it among these, too
    in_flight.enter(RequestState.COMMITTED)
    in_flight.acknowledge()
    assert not state.requests
    assert not set(state.reserved_requests) | set(state.active_requests)
    state.reset_state()


def test_a_stop_is_raised_where_the_worker_checks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", None)
    subject.maybe_shutdown()
    assert not subject.is_stopping()
    subject.request_stop(0)
    assert subject.is_stopping()
    with pytest.raises(WorkerShutdown) as raised:
        subject.maybe_shutdown()
    assert raised.value.code == 0
    with pytest.raises(WorkerShutdown):  # Celery's own loop looks for it, too
        Recording().start()


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    made = TaskPool(1)
    made.start()
    yield made
    subject.green_threads(made).kill()


def an_end(pool: TaskPool, thread: Any) -> list[Any]:
    """The pool's threads, and the thread's result, when its raw link runs."""
    ends: list[Any] = []
    thread.rawlink(lambda ended: ends.append((len(subject.green_threads(pool)), ended is thread)))
    return ends


def test_the_pool_runs_a_call_on_a_green_thread_and_releases_it_before_its_link(
    pool: TaskPool,
) -> None:
    assert (pool.is_green, pool.limit) == (True, 1)
    called = Mock()
    thread = subject.green_threads(pool).spawn(called, (1, "two"))
    ends = an_end(pool, thread)
    assert len(subject.green_threads(pool)) == 1
    called.assert_not_called()
    pool.stop()  # it joins the pool
    called.assert_called_once_with((1, "two"))
    gevent.sleep(0)
    assert ends == [(0, True)]


def test_the_pool_grows_and_its_threads_can_be_killed(pool: TaskPool) -> None:
    pool.grow(2)
    assert pool.limit == 3
    threads = [subject.green_threads(pool).spawn(gevent.sleep, 1000) for _ in range(3)]
    ends = [an_end(pool, thread) for thread in threads]
    gevent.sleep(0)
    subject.green_threads(pool).kill(block=False)
    gevent.wait(threads)
    gevent.sleep(0)
    assert [end[0][1] for end in ends] == [True] * 3
    assert len(subject.green_threads(pool)) == 0


def test_the_app_makes_connections_of_its_amqps_class() -> None:
    class Ours(Connection):
        """No other."""

    class Broker(subject.AMQP):
        Connection = Ours

    app = Celery(broker="memory://", amqp=Broker, set_as_current=False)
    assert isinstance(app.connection_for_read(), Ours)
    assert isinstance(app.connection_for_write(), Ours)


#: A worker up to the point where it would connect.
WORKER = """
from celery import Celery, signals
from pos_gateway.worker.celery_internals import log_level, pool_module

@signals.worker_init.connect
def show(sender, **_):
    print(pool_module(sender), log_level(sender))
    raise SystemExit(0)

app = Celery(broker="memory://")
if "{pool}" == "gevent":
    app.conf.worker_pool = "celery.concurrency.gevent:TaskPool"
app.worker_main(["worker", "--loglevel", "warning", "--pool", "{pool}"])
"""


@pytest.mark.parametrize("pool", ["solo", "prefork", "gevent"])
def test_a_workers_pool_and_log_level_come_from_its_command_line(pool: str) -> None:
    """With ``--pool=gevent`` the setting may name the class: without a warning of late patching."""
    command = [sys.executable, "-c", WORKER.replace("{pool}", pool)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    expected = [f"celery.concurrency.{pool}", str(logging.WARNING)]
    assert done.stdout.split() == expected, done.stderr
    assert "patch" not in done.stderr


def test_the_prefork_logger_is_a_python_logger_that_does_not_propagate() -> None:
    logger = subject.get_multiprocessing_logger()
    assert logger is logging.getLogger("multiprocessing")
    assert not logger.propagate


def test_kombu_keeps_the_sleep_that_it_imported() -> None:
    """``gcelery.py`` uses it to detect modules imported before patching."""
    assert kombu.utils.functional.sleep is time.sleep
