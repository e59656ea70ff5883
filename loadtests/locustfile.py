"""Order backends as locust users: they submit orders and hear what became of them.

    POS_GATEWAY_BROKER_URL=… locust -f loadtests/locustfile.py --headless -u 10 -t 20s

Works against any running gateway; ``--merchants`` says which merchants it has. Each user submits
at a steady rate, however long the broker's confirms or the events take (diners do not wait for
each other), and the time from submitting an order to its concluding event is a request of
locust's, by class of merchant. At the end locust waits for the orders that nothing was heard of
yet.
"""

import itertools
import json
import logging
import os
import time
from argparse import ArgumentTypeError
from pathlib import Path
from random import Random
from typing import Any

import gevent
from gevent.pool import Group
from kombu import Connection, Queue
from locust import User, constant_throughput, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner

from loadtests.bench.orders import place
from loadtests.load.outcomes import Outcomes
from loadtests.load.scenario import Mix
from pos_gateway.broker import topology
from pos_gateway.client import OrderClient
from pos_gateway.errors import PosGatewayError
from pos_gateway.settings import setting

log = logging.getLogger(__name__)


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """Options of our own; each is an environment variable too, ``LOCUST_ORDER_RATE`` say."""
    group = parser.add_argument_group("Orders")

    def option(name: str, **settings: Any) -> None:
        variable = "LOCUST_" + name.removeprefix("--").replace("-", "_").upper()
        group.add_argument(name, env_var=variable, **settings)

    option("--order-rate", type=float, default=10.0, help="orders a second of each user")
    option(
        "--merchants",
        type=_mix,
        default="healthy:50:90,hang:1:10",
        help="class:merchants:weight, ...: healthy:50:90 is healthy-0 to healthy-49",
    )
    option("--deliver-within", type=float, default=60.0, help="seconds an order has")
    option("--settle", type=float, default=120.0, help="seconds to wait for outcomes at the end")
    option("--outcomes", type=Path, default=None, help="write what became of the orders, as JSON")


class Backend:
    """What the users of this process share: one client, one queue of events, one account."""

    def __init__(self, environment: Environment) -> None:
        self.outcomes = Outcomes()
        options = environment.parsed_options
        self.deliver_within: float = options.deliver_within
        self.merchants = options.merchants.picks(Random())
        self._environment = environment
        self._client = OrderClient()
        self._prefix = f"load-{os.getpid()}-{int(time.time())}"
        self._numbers = itertools.count()
        self._connection = Connection(setting("broker_url"))
        self._submitting = Group()
        self._reader: gevent.Greenlet | None = None

    def start(self) -> None:
        """Bind a queue for events before the first order is sent, so that none is missed."""
        self._client.connect()
        topology.declare(self._connection)
        # Its own queue, gone with its connection: whoever else listens still hears everything.
        queue = Queue("", topology.events_exchange, "#", exclusive=True, durable=False)
        bound = queue.bind(self._connection.default_channel)
        bound.declare()
        bound.consume(callback=self._heard, no_ack=True)
        self._reader = gevent.spawn(self._read)

    def settle(self, seconds: float) -> None:
        """Wait for what is still to be confirmed or heard."""
        with gevent.Timeout(seconds, False):
            self._submitting.join()
            while self.outcomes.missing:
                gevent.sleep(0.1)

    def stop(self) -> None:
        """Close the connections. Idempotent."""
        if self._reader is not None:
            self._reader.kill()
        self._connection.release()
        self._client.close()

    def submit_soon(self) -> None:
        """Submit an order on a green thread of its own.

        Locust kills users at the end, also in the middle of a task; nobody would know then
        whether the order was taken.
        """
        self._submitting.spawn(self._submit)

    def _submit(self) -> None:
        order = place(
            f"{self._prefix}-{next(self._numbers)}",
            next(self.merchants),
            deliver_within=self.deliver_within,
        )
        began = time.perf_counter()
        self.outcomes.placed(order["order_id"], order["merchant_id"], began)
        failure: PosGatewayError | None = None
        try:
            self._client.submit(order)
        except PosGatewayError as error:
            failure = error
        else:
            self.outcomes.confirmed(order["order_id"])
        self._fire("backend", "enqueue", time.perf_counter() - began, failure)

    def _read(self) -> None:
        while True:
            self._connection.drain_events()

    def _heard(self, message: Any) -> None:
        event = json.loads(message.body)
        concluded = self.outcomes.told(event, time.perf_counter())
        if concluded is not None:
            name, seconds = concluded
            self._fire("gateway", f"order → event ({name})", seconds)

    def _fire(self, kind: str, name: str, seconds: float, failure: Exception | None = None) -> None:
        self._environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=seconds * 1000,
            response_length=0,
            exception=failure,
            context={},
        )


class OrderBackend(User):
    """Submits orders at a steady rate."""

    @task
    def submit(self) -> None:
        """One order."""
        self.environment.backend.submit_soon()


@events.init.add_listener
def set_rate(environment: Environment, **_: Any) -> None:
    """The rate is an option, and a user's wait is its class's."""
    # Importing all this may take a second or two, for which the event loop's clock stands still: a run
    # time of two seconds would be over at once.
    gevent.get_hub().loop.update_now()
    OrderBackend.wait_time = constant_throughput(environment.parsed_options.order_rate)


@events.test_start.add_listener
def start(environment: Environment, **_: Any) -> None:
    """Listen for events, then let users submit."""
    if not isinstance(environment.runner, MasterRunner):
        environment.backend = Backend(environment)
        environment.backend.start()


@events.test_stop.add_listener
def finish(environment: Environment, **_: Any) -> None:
    """Wait for the last outcomes, then write down what became of everything."""
    backend: Backend | None = getattr(environment, "backend", None)
    if backend is None:
        return
    options = environment.parsed_options
    backend.settle(options.settle)
    backend.stop()
    became = backend.outcomes.as_json()
    log.info("%d orders sent: %s", became["sent"], became["outcomes"])
    if became["missing"]:
        log.error("%d orders missing: %s", len(became["missing"]), became["missing"][:5])
        environment.process_exit_code = 1
    if options.outcomes:
        options.outcomes.write_text(json.dumps(became))


def _mix(text: str) -> Mix:
    try:
        return Mix.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
