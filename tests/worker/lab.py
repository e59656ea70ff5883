"""A gateway in a lab: a real worker, a real broker, and simulated merchants that keep records."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amqp.exceptions import NotFound
from kombu import Connection
from kombu.transport.native_delayed_delivery import MAX_NUMBER_OF_BITS_TO_USE, level_name
from sqlalchemy import select

from pos_gateway.broker import topology
from pos_gateway.broker.bundle import Bundle, ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.wire import submit_message
from pos_gateway.client import OrderClient, home_of
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders as ledger
from pos_gateway.domain.errors import PublishError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.patience import PATIENCE
from tests.orders import an_order
from tests.schema import make_tables
from tests.worker import preloaded

ROOT = Path(__file__).parents[2]
GREEN = "pos_gateway.gcelery"
#: What ``celery -A pos_gateway.gcelery worker`` becomes within its first second; most tests save that.
GREEN_COMMAND = (
    *(sys.executable, "-P", "-m", "gevent.monkey", "--module", "pos_gateway.worker.slim_celery"),
    *("-A", GREEN, "worker", "--pool=gevent"),
)
#: Delay queues for up to a minute, in which what a test waits for is: to look at all takes four times
#: as long.
QUICK_LEVELS = 6


class Lab:
    """One test's gateway, with the verbs of a backend, a merchant and an operator."""

    def __init__(
        self, broker_url: str, database_url: str, merchants: SimulatedMerchants, folder: Path
    ) -> None:
        self.broker_url = broker_url
        self.database_url = database_url
        self.merchants = merchants
        self.client = OrderClient(broker_url)
        self._folder = folder
        self._workers = 0
        self._engine = open_database(database_url)
        make_tables(self._engine)
        self._store = MerchantStore(self._engine)
        self._catalogs = CatalogStore(self._engine)

    def open_merchants(self, *ids: str, **fields: Any) -> None:
        """Import records of these merchants."""
        self._store.put(
            Merchant.parse(
                {"id": i, "base_url": self.merchants.base_url(i), "paused": False, **fields}
            )
            for i in ids
        )

    def import_catalog(self, merchant_id: str, **skus: str) -> None:
        """Import a catalog: the merchant's POS has the orders' items under these ids."""
        self._catalogs.put({merchant_id: skus})

    def submit(self, merchant_id: str, *order_ids: str, **fields: Any) -> None:
        """Publish orders of a merchant, all before the first publisher confirm."""
        if len(order_ids) == 1:
            self.client.submit(an_order(order_ids[0], merchant_id, **fields))
            return
        queue = home_of(merchant_id, self.client.split)
        orders = [Order.parse(an_order(each, merchant_id, **fields)) for each in order_ids]
        self._publish([submit_message(o.order_id, o.to_json(), routing_key=queue) for o in orders])

    def submit_to_canary(self, merchant_id: str, *order_ids: str) -> None:
        """Publish orders as a client whose merchants are all in the canary."""
        with OrderClient(self.broker_url, canary_percent=100) as client:
            for order_id in order_ids:
                client.submit(an_order(order_id, merchant_id))

    def _publish(self, messages: list[Message]) -> None:
        publisher, trouble = Publisher(self.broker_url), list[PublishError]()
        stored = publisher.publish_batch(messages, on_trouble=trouble.append)
        publisher.close()
        assert stored == len(messages), trouble

    def ledger(self, merchant_id: str, order_id: str, action: str = "submit") -> Any:
        """An order's state and reason in the ledger; None without a row."""
        query = select(ledger.c.state, ledger.c.reason_code).where(
            ledger.c.merchant_id == merchant_id,
            ledger.c.order_id == order_id,
            ledger.c.action == action,
        )
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else tuple(row)

    def wait_until_queued(self, queue: str, count: int) -> None:
        """Poll the broker until the queue has this many ready messages."""
        until = time.monotonic() + PATIENCE
        with Connection(self.broker_url) as connection:
            while (ready := _ready(connection, queue)) != count:
                assert time.monotonic() < until, f"{queue} has {ready} messages, not {count}"
                time.sleep(0.05)  # without a pause the broker would have no time for the worker

    def wait_for_workers(self, number: int, queue: str = topology.ORDERS_KEY) -> None:
        """Wait until this many workers consume, so that each gets its share of the orders."""
        self.client.connect()
        until = time.monotonic() + PATIENCE
        with Connection(self.broker_url) as connection:
            channel = connection.default_channel
            while channel.queue_declare(queue, passive=True).consumer_count < number:
                assert time.monotonic() < until, "too few workers take orders"
                time.sleep(0.02)

    def wait_for_worker(self) -> None:
        """Wait until a worker consumes: for orders with a short deadline."""
        self.wait_for_workers(1)

    def wait_until_parked(self, least: int, most: int) -> None:
        """Wait until ``orders`` is empty and this many messages are delayed in the broker."""
        until = time.monotonic() + PATIENCE
        with Connection(self.broker_url) as connection:
            while (ready := _ready(connection, topology.ORDERS_KEY)) or not (
                least <= _delayed(connection, QUICK_LEVELS) <= most
            ):
                said = f"{ready} messages are ready, or not {least} to {most} delayed"
                assert time.monotonic() < until, said
                time.sleep(0.05)

    def wait_until_some_are_parked(self) -> None:
        """Wait until a message is delayed in the broker."""
        until = time.monotonic() + PATIENCE
        with Connection(self.broker_url) as connection:
            while not _delayed(connection, QUICK_LEVELS):
                assert time.monotonic() < until, "no message is delayed"
                time.sleep(0.02)

    def delayed(self) -> int:
        """How many messages the broker delays."""
        with Connection(self.broker_url) as connection:
            return _delayed(connection, MAX_NUMBER_OF_BITS_TO_USE)

    def publish_bundle(
        self, merchant_id: str, orders: Iterable[dict[str, Any]], **options: Any
    ) -> None:
        """Publish a bundle message, as if its delay were over."""
        publisher = Publisher(self.broker_url)
        publisher.publish(a_bundle(merchant_id, orders, **options))
        publisher.close()

    def publish_raw(self, body: bytes, headers: Mapping[str, Any], **properties: Any) -> None:
        """Publish bytes that no client of ours would publish."""
        self.client.connect()
        with Connection(self.broker_url) as connection:
            connection.Producer().publish(
                body,
                exchange="orders",
                routing_key="orders",
                headers=dict(headers),
                content_type=properties.pop("content_type", "application/json"),
                content_encoding=properties.pop("content_encoding", "utf-8"),
                **properties,
            )

    @contextmanager
    def worker(
        self,
        *flags: str,
        app: str = GREEN,
        environment: Mapping[str, str] | None = None,
        stderr: int = subprocess.STDOUT,
        as_typed: bool = False,
        python_path: str = "",
        **settings: object,
    ) -> Iterator["WorkerProcess"]:
        """Run ``celery -A APP worker FLAGS``; stopped by SIGTERM at the end if it still runs.

        The green one as what that becomes, unless it is to be run ``as_typed``; and, like one with
        processes, forked from one that has the modules, unless Python is set up differently for it. The folders
        of ``python_path`` are imported from first.

        Standard error goes to the worker's log, too, unless a pipe is passed for it.
        """
        self._workers += 1
        name = f"worker-{self._workers}"
        variables = {
            **os.environ,
            "PGAPPNAME": name,  # PostgreSQL lists its sessions so
            **({"PYTHONPATH": python_path} if python_path else {}),
            **(environment or {}),
            "POS_GATEWAY_BROKER_URL": self.broker_url,
            "POS_GATEWAY_DATABASE_URL": self.database_url,
            "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
            "POS_GATEWAY_METRICS_PORT": "0",
            "POS_GATEWAY_PARK_DELAY_MAX": "3",  # seconds that a test would otherwise wait
            **{f"POS_GATEWAY_{name.upper()}": str(value) for name, value in settings.items()},
        }
        log = self._folder / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", *flags]
        is_plain = stderr == subprocess.STDOUT and not any(
            name.startswith("PYTHON") for name in environment or ()
        )
        process: subprocess.Popen[bytes]
        if is_plain and app == "pos_gateway" and "prefork" in flags and not as_typed:
            process = preloaded.start_synchronous(flags, variables, log, python_path)
        elif app != GREEN or as_typed or {"-P", "--pool=gevent"} & set(flags):
            process = self._started(command, variables, log, stderr)
        elif is_plain:
            process = preloaded.start(flags, variables, log, python_path)
        else:
            process = self._started([*GREEN_COMMAND, *flags], variables, log, stderr)
        worker = WorkerProcess(process, log)
        try:
            yield worker
        finally:
            worker.stop()

    def _started(
        self, command: list[str], variables: dict[str, str], log: Path, stderr: int
    ) -> "subprocess.Popen[bytes]":
        with log.open("wb") as output:
            return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=stderr)

    def events(self, count: int) -> list[dict[str, Any]]:
        """Consume this many events from the queue ``order-events``, in order."""
        return self._take("order-events", lambda taken: len(taken) >= count, _event)

    def events_until_all_ended(self, order_ids: Iterable[str]) -> list[dict[str, Any]]:
        """Consume events until each of these orders has one."""
        wanted = set(order_ids)
        return self._take(
            "order-events", lambda taken: wanted <= {event["order_id"] for event in taken}, _event
        )

    def event_messages(self, count: int) -> list[dict[str, Any]]:
        """The same with their headers: each has ``headers`` and ``event``."""
        return self._take("order-events", lambda taken: len(taken) >= count, _with_headers)

    def dead_letters(self, count: int) -> list[dict[str, Any]]:
        """Consume this many messages from ``orders.dead``: headers and body."""
        return self._take(topology.DEAD_KEY, lambda taken: len(taken) >= count, _letter)

    def outcomes(
        self,
        events: list[dict[str, Any]],
        dead: list[dict[str, Any]],
        enough: Callable[[], bool],
    ) -> None:
        """Consume events and dead letters into these lists, until ``enough`` says so."""

        def receive(message: Any) -> None:
            if enough():
                message.requeue()
                return
            if message.delivery_info["exchange"] == topology.events_exchange.name:
                events.append(_event(message))
            else:
                dead.append(_letter(message))
            message.ack()

        with Connection(self.broker_url) as connection:
            consumer = connection.Consumer(
                [topology.events_queue, topology.dead_queue],
                accept=None,
                on_message=receive,
                auto_declare=False,
                prefetch_count=100,
            )
            with consumer:
                while not enough():
                    connection.drain_events(timeout=PATIENCE)

    def queued(self, queue: str = "orders") -> int:
        """How many messages are ready in the queue."""
        with Connection(self.broker_url) as connection:
            return _ready(connection, queue)

    def close(self) -> None:
        self.client.close()

    def _take(
        self,
        queue: str,
        enough: Callable[[list[dict[str, Any]]], bool],
        read: Callable[[Any], dict[str, Any]],
    ) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = []
        self.client.connect()

        def receive(message: Any) -> None:
            if enough(taken):
                message.requeue()
                return
            taken.append(read(message))
            message.ack()

        with Connection(self.broker_url) as connection:
            consumer = connection.Consumer(
                [q for q in topology.QUEUES if q.name == queue],
                accept=None,
                on_message=receive,
                auto_declare=False,
                prefetch_count=100,
            )
            with consumer:
                while not enough(taken):
                    connection.drain_events(timeout=PATIENCE)
        return taken


def _ready(connection: Connection, queue: str) -> int:
    return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def _delayed(connection: Connection, levels: int) -> int:
    channel = connection.channel()
    try:
        names = [level_name(level) for level in range(levels)]
        found = [channel.queue_declare(name, passive=True).message_count for name in names]
    except NotFound:
        return 0  # no worker has declared the delay queues yet, and the channel is closed
    channel.close()
    return int(sum(found))


def _event(message: Any) -> Any:
    """Parsed strictly, as another language would: NaN and Infinity are no JSON."""
    return json.loads(message.body, parse_constant=_refuse)


def _with_headers(message: Any) -> dict[str, Any]:
    return {"headers": message.headers, "event": _event(message)}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def _letter(message: Any) -> dict[str, Any]:
    body = message.body
    return {
        "message_id": message.properties.get("message_id"),
        "headers": message.headers,
        "body": body if isinstance(body, str) else bytes(body).decode("latin-1"),
    }


class WorkerProcess:
    """A running worker."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.name = log.stem
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_log(self, text: str) -> None:
        """Wait until the worker has logged this text."""
        self.wait_until(lambda: text in self.log, f"{text!r}")

    def wait_for_more(self, text: str, times: int) -> None:
        """Wait until the worker has logged this text this many times more."""
        before = self.log.count(text)
        self.wait_until(lambda: self.log.count(text) >= before + times, f"{text!r}")

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Poll the worker's log until the predicate holds."""
        until = time.monotonic() + PATIENCE
        while True:
            has_ended = self.process.poll() is not None
            if happened():
                return
            if has_ended or time.monotonic() >= until:
                raise AssertionError(f"{what} is not in\n{self.log[-2000:]}")
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_until_paused(self) -> None:
        """Wait until the process is stopped (SIGSTOP), or has ended."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert self.process.poll() is None, self.log[-2000:]

    def wait(self) -> int:
        """The exit code, once the worker has ended by itself."""
        return self.process.wait(PATIENCE)

    def stop(self) -> int:
        """Send SIGTERM as Kubernetes does, and wait; a worker that stays fails the test."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the worker did not stop:\n{self.log[-2000:]}") from None


def a_bundle(
    merchant_id: str,
    orders: Iterable[dict[str, Any]],
    *,
    routing_key: str = topology.ORDERS_KEY,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """A bundle message with these orders parked; each has these headers."""
    parked = [
        ParkedOrder(
            submit_message(
                order["order_id"],
                json.dumps(order).encode(),
                routing_key=routing_key,
                headers=headers,
            ),
            datetime.fromisoformat(order["deliver_by"]).timestamp(),
        )
        for order in orders
    ]
    return Bundle.of(merchant_id, routing_key, parked).message()


def in_background(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def by_type(events: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Order ids by the type of their event."""
    sorted_out: dict[str, list[str]] = {}
    for event in events:
        sorted_out.setdefault(event["type"], []).append(event["order_id"])
    return sorted_out
