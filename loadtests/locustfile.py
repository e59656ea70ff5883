"""Order backends as locust users: they submit orders and receive their events.

    POS_GATEWAY_BROKER_URL=… locust -f loadtests/locustfile.py --scenario lunch-peak

Works against any running gateway that has the scenario's merchants (``docs/load-testing.md``).
Orders come when the scenario says, by chance, however long the broker's confirms or the events take:
diners do not wait for each other. Locust's statistics have, for each class of merchant, the time from
submitting an order to the broker's confirm, to its arrival at the POS (if ``--simulator`` says where
the simulated merchants are), and to its concluding event. At the end locust waits for the orders that
nothing was heard of yet.
"""

import gc
import itertools
import json
import logging
import os
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import gevent
from gevent.pool import Group
from kombu import Connection, Exchange, Queue
from locust import LoadTestShape, User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, MasterRunner

from loadtests.bench.orders import place
from loadtests.load.scenario import LoadScenario
from pos_gateway.broker import topology
from pos_gateway.client import OrderClient
from pos_gateway.demo.outcomes import Outcomes, class_of
from pos_gateway.demo.record import EVENTS, FEED
from pos_gateway.domain.errors import PosGatewayError
from pos_gateway.simulated_merchants.client import MerchantsClient
from pos_gateway.simulated_merchants.errors import ScenarioError

log = logging.getLogger(__name__)

#: Seconds from the start of a test to the first order: users exist by then.
_LEAD = 1.0
#: Seconds between two looks at what has come to the merchants.
_LOOK = 0.25
#: Seconds after the last order's deadline until everything must have been told: the longest time
#: that the gateway parks an order, one exchange, and some to spare.
_SETTLING = 60.0


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """Options of our own; each is an environment variable too, ``LOCUST_SCENARIO`` say."""
    group = parser.add_argument_group("Orders")

    def option(name: str, **settings: Any) -> None:
        group.add_argument(name, env_var="LOCUST_" + name[2:].replace("-", "_").upper(), **settings)

    option(
        "--scenario",
        type=_scenario,
        default="steady",
        help="a name of loadtests/scenarios, or a file",
    )
    option("--broker-url", default="", help="the broker of the gateway to load; never a real one's")
    option("--seconds", type=float, default=0.0, help="how long; 0: as the scenario says")
    option(
        "--simulator", type=_address, default="", help="where simulated merchants listen: host:port"
    )
    option(
        "--no-declare",
        action="store_true",
        help="declare no exchange nor queue of the gateway's: the broker's user may not",
    )
    option(
        "--take-events",
        action="store_true",
        help="take events out of the queue order-events, where no other consumer does",
    )
    option("--record", default="", help="write what the backends saw into this file, as JSON")


class Backend:
    """What the users of this process share: one client, one queue of events, one account."""

    def __init__(self, environment: Environment, scenario: LoadScenario) -> None:
        self._environment = environment
        self._scenario = scenario
        self._declares = not environment.parsed_options.no_declare
        url = environment.parsed_options.broker_url
        if not url:
            raise ValueError("--broker-url is missing: the broker of the gateway to load")
        self._client = OrderClient(url, declare=self._declares)
        self._prefix = f"load-{os.getpid()}-{int(time.time())}-"
        self._numbers, self._users = itertools.count(), itertools.count()
        self._connection = Connection(url)
        self._submitting = Group()
        self._following: list[gevent.Greenlet] = []
        host, _, port = environment.parsed_options.simulator.rpartition(":")
        self._simulator = MerchantsClient(host, int(port)) if port else None
        self._seen = 0
        self.outcomes = Outcomes(began=0.0, merchants_tell=self._simulator is not None)

    def start(self) -> None:
        """Bind a queue for events before the first order is sent, so that none is missed."""
        if self._simulator is not None:
            self._seen = _asked(self._simulator)
        self._client.connect()
        if self._declares:
            topology.declare(self._connection)
        self._listen()
        self._follow(EVENTS, self._hear)
        began = self.outcomes.began = time.time() + _LEAD
        if self._simulator is not None:
            for name, profile in self._scenario.profiles(began).items():
                self._simulator.profile(f"{name}-*", profile)
            self._follow(FEED, self._watch, self._simulator)
        gc.collect()
        gc.freeze()  # a collection would walk all that was imported, and an order would be late

    def orders(self) -> Iterator[tuple[float, str]]:
        """The orders of the next user: the wall-clock time at which each is due, and its merchant."""
        process = getattr(self._environment.runner, "worker_index", 0)
        for second, merchant_id in self._scenario.orders(f"{process}/{next(self._users)}"):
            yield self.outcomes.began + second, merchant_id

    def submit_soon(self, merchant_id: str, due: float) -> None:
        """Submit an order on a green thread of its own.

        Locust kills users at the end, also in the middle of a task; it would not be known then
        whether the order was taken.
        """
        self._submitting.spawn(self._submit, merchant_id, due)

    def settle(self, seconds: float) -> None:
        """Wait for what is still to be confirmed or heard, and for what merchants say of it."""
        with gevent.Timeout(seconds, False):
            self._submitting.join()
            while self.outcomes.open and EVENTS not in self.outcomes.lost:
                gevent.sleep(0.1)
        if self._simulator is not None:
            self._follow(FEED, self._look, self._simulator).join()

    def stop(self) -> None:
        """Close the connections. Idempotent."""
        gevent.killall(self._following)
        self._connection.release()
        self._client.close()

    def _submit(self, merchant_id: str, due: float) -> None:
        order_id = f"{self._prefix}{next(self._numbers)}"
        now = time.time()
        self.outcomes.placed(order_id, merchant_id, now, due)
        order = place(order_id, merchant_id, deliver_within=self._scenario.deliver_within)
        try:
            self._client.submit(order)
        except PosGatewayError as error:
            self._fire("enqueue", (class_of(merchant_id), time.time() - now), error)
        else:
            self._fire("enqueue", self.outcomes.confirmed(order_id, time.time()))

    def _follow(self, what: str, work: Callable[..., None], *given: Any) -> gevent.Greenlet:
        """Do it on a green thread; that it failed is kept, for then not everything is known."""
        greenlet = gevent.spawn(work, *given)
        greenlet.link_exception(
            lambda dead: self.outcomes.lost.setdefault(what, repr(dead.exception))
        )
        self._following.append(greenlet)
        return greenlet

    def _listen(self) -> None:
        queue = topology.events_queue
        if not self._environment.parsed_options.take_events:
            # Gone with its connection; other consumers still get every event.
            exchange = Exchange(topology.events_exchange.name, no_declare=True)
            queue = Queue("", exchange, "#", exclusive=True, durable=False)
        bound = queue.bind(self._connection.default_channel)
        if not bound.name:
            bound.declare()
        bound.consume(callback=self._heard, no_ack=True)

    def _hear(self) -> None:
        while True:
            self._connection.drain_events()

    def _heard(self, message: Any) -> None:
        seen = self.outcomes.take_event(json.loads(message.body), time.time())
        self._fire("order → event", seen)

    def _watch(self, simulator: MerchantsClient) -> None:
        while True:
            gevent.sleep(_LOOK)
            self._look(simulator)

    def _look(self, simulator: MerchantsClient) -> None:
        entries = None
        while entries != []:
            page = simulator.feed(self._seen)
            entries, self._seen = page["entries"], page["next"]
            self.outcomes.unseen += page["missed"]
            for _, order_id, creates, at in entries:
                if order_id.startswith(self._prefix):
                    self._fire("order → POS", self.outcomes.seen(order_id, creates, at))

    def _fire(
        self, name: str, timed: tuple[str, float] | None, failure: Exception | None = None
    ) -> None:
        if timed is not None:
            merchant_class, seconds = timed
            self._environment.events.request.fire(
                request_type=merchant_class,
                name=name,
                response_time=seconds * 1000,
                response_length=0,
                exception=failure,
                context={},
            )


class OrderBackend(User):
    """Submits its share of the scenario's orders, each at its time."""

    @task
    def submit(self) -> None:
        """All of them."""
        backend: Backend | None = self.environment.backend
        if backend is None:  # nothing could be started
            raise StopUser
        for due, merchant_id in backend.orders():
            gevent.sleep(max(0.0, due - time.time()))
            backend.submit_soon(merchant_id, due)
        raise StopUser


class ScenarioShape(LoadTestShape):
    """As many users as the scenario has backends, until the last has submitted its last order.

    The scenario's curve is in their orders, not in their number. A slow broker or machine may take longer
    to begin than the scenario lasts.
    """

    def tick(self) -> tuple[int, int] | None:
        """Users, and how many are added a second."""
        scenario = _read(self.runner.environment)
        have_begun = self.runner.state == STATE_RUNNING and self.get_run_time() > scenario.seconds
        if have_begun and not self.get_current_user_count():
            return None
        return scenario.backends, scenario.backends


@events.init.add_listener
def wake_the_clock(**_: Any) -> None:
    """Importing all this may take a second or two, for which the event loop's clock stands still.

    Whatever is to last as long would be over at once.
    """
    gevent.get_hub().loop.update_now()


@events.test_start.add_listener
def start(environment: Environment, **_: Any) -> None:
    """Listen for events, then let users submit. What cannot be started ends here."""
    if isinstance(environment.runner, MasterRunner):
        return
    environment.backend = backend = None
    try:
        backend = Backend(environment, _read(environment))
        backend.start()
    except Exception as error:  # noqa: BLE001  (whatever it is, no order may be sent now)
        log.error("The load cannot be started: %s", error)
        if backend is not None:
            backend.stop()
        environment.process_exit_code = 1
        gevent.spawn(environment.runner.quit)
    else:
        environment.backend = backend


@events.test_stop.add_listener
def finish(environment: Environment, **_: Any) -> None:
    """Wait for the last outcomes, then write down every order's outcome."""
    backend: Backend | None = getattr(environment, "backend", None)
    if backend is None:
        return
    backend.settle(_read(environment).deliver_within + _SETTLING)
    backend.stop()
    record = backend.outcomes.record(time.time())
    log.info("%d orders sent: %s", record.sent, record.outcomes)
    for what, why in record.lost.items():
        log.error("This is no result: the %s could be followed no more: %s", what, why)
        environment.process_exit_code = 1
    if record.missing and EVENTS not in record.lost:
        log.error("%d orders missing: %s", len(record.missing), record.missing[:5])
        environment.process_exit_code = 1
    if path := environment.parsed_options.record:
        record.write(Path(path))


def _read(environment: Environment) -> LoadScenario:
    options = environment.parsed_options
    return LoadScenario.read(options.scenario, seconds=options.seconds or None)


def _scenario(name: str) -> str:
    try:
        LoadScenario.read(name)
    except ScenarioError as error:
        raise ArgumentTypeError(str(error)) from None
    return name


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text and not (host and port.isdecimal()):
        raise ArgumentTypeError(f"{text!r}: give host:port, 127.0.0.1:8080 say")
    return text


def _asked(simulator: MerchantsClient) -> int:
    """Where the simulated merchants' records end at present."""
    try:
        return int(simulator.feed()["next"])
    except (OSError, HTTPException, ValueError) as error:
        where = f"{simulator.host}:{simulator.port}"
        raise ConnectionError(f"no simulated merchants answer at {where}: {error}") from None
