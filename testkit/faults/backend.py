"""The order backend: places orders until they are confirmed, and receives their events."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

from kombu import Connection
from kombu.exceptions import OperationalError

from pos_gateway.broker import topology
from pos_gateway.client import OrderClient
from pos_gateway.domain.errors import BrokerUnavailable, PublishRefused, Unroutable
from pos_gateway.domain.split import Split
from pos_gateway.http_client import HttpOrderClient
from testkit.patience import PATIENCE

#: Merchant and order.
Name = tuple[str, str]

#: Types of events after which nothing more comes of an order by itself; one that is in doubt waits
#: for an operator, or until its POS has had the time.
TERMINAL = frozenset(
    f"order.{word}" for word in ("accepted", "rejected", "cancelled", "expired", "failed")
)
IN_DOUBT = "order.in_doubt"
#: Seconds between two tries while the broker is away.
AGAIN = 0.2


class Backend:
    """A backend that outlives its broker. Safe from threads.

    It submits by AMQP, or by another client that has ``OrderClient``'s methods.

    Every event is kept as it came, repeats included, in its order; not the order in it, of which a
    hundred thousand fill a gigabyte.
    """

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._client = OrderClient(broker_url)
        self._over: OrderClient | HttpOrderClient = self._client
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="backend", daemon=True)
        #: The orders that the broker has confirmed.
        self.placed: list[Name] = []
        #: What was told of each order.
        self.told: dict[Name, list[dict[str, Any]]] = defaultdict(list)
        #: The positions of all events, each where it came first.
        self.positions: dict[int, None] = {}
        #: Those that came first as a redelivery, for which a broker promises no order.
        self.redelivered: set[int] = set()
        #: Orders of which an end, or a doubt, was told.
        self._settled: set[Name] = set()
        self._open: set[Name] = set()

    def __enter__(self) -> Self:
        self._client.connect()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def submit_over(self, client: HttpOrderClient) -> None:
        """Submit by this client from now on."""
        self._over = client

    def place(self, order: Mapping[str, Any]) -> bool:
        """Submit the order until the broker has confirmed it; False if the backend was stopped."""
        name = order["merchant_id"], order["order_id"]
        if not self._until_confirmed(lambda: self._over.submit(order, again=True)):
            return False
        with self._news:
            self.placed.append(name)
            if name not in self._settled:
                self._open.add(name)
        return True

    def cancel(self, merchant_id: str, order_id: str) -> None:
        """Ask for the order to be cancelled, until the broker has confirmed that."""
        self._until_confirmed(lambda: self._over.cancel(order_id, merchant_id))

    @property
    def split(self) -> Split:
        """The merchants whose orders it sends to the canary at present."""
        return self._client.split

    @property
    def outstanding(self) -> int:
        """How many orders have no outcome yet."""
        return len(self._open)

    def is_settled(self, name: Name) -> bool:
        """Whether an end, or a doubt, was told of it."""
        return name in self._settled

    def wait(self, enough: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is enough, looking at every event; whether it was, within the time."""
        until = time.monotonic() + seconds
        with self._news:
            while not enough():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(min(left, 1.0))
        return True

    def wait_until_settled(self, seconds: float, *, of_silence: bool = False) -> list[Name]:
        """Wait until every order has ended, or is in doubt. Those that are not, after the time.

        Args:
            seconds: how long in all, or ``of_silence``: how long without one that ends.
        """
        if not of_silence:
            self.wait(lambda: not self._open, seconds)
            return sorted(self._open)
        while self._open and self.wait(partial(self._more_than, len(self._settled)), seconds):
            pass
        return sorted(self._open)

    def _more_than(self, settled: int) -> bool:
        return len(self._settled) > settled

    def events(self, order_id: str) -> list[dict[str, Any]]:
        """What was told of an order, repeats of an event aside."""
        of_it = [
            event for (_, order), told in self.told.items() if order == order_id for event in told
        ]
        return distinct(of_it)

    def dead_letters(self) -> dict[str, str | None]:
        """The ids of the messages in ``orders.dead``, an order's being its own, and why each is
        there. They stay there.
        """
        found = {}
        with Connection(self._broker_url, connect_timeout=PATIENCE) as connection:
            queue = topology.dead_queue.bind(connection.channel())
            while (letter := queue.get(no_ack=False)) is not None:
                reason = (letter.headers or {}).get("x-reason-code")
                found[str(letter.properties.get("message_id"))] = reason
        return found

    def _until_confirmed(self, publish: Callable[[], object]) -> bool:
        while not self._stopping.is_set():
            try:
                publish()
            except (BrokerUnavailable, PublishRefused, Unroutable):
                self._stopping.wait(AGAIN)
            else:
                return True
        return False

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with Connection(self._broker_url, connect_timeout=2) as connection:
                    self._hear(connection)
            except connection_errors():
                self._stopping.wait(AGAIN)

    def _hear(self, connection: Connection) -> None:
        consumer = connection.Consumer(
            [topology.events_queue],
            on_message=self._heard,
            auto_declare=False,
            prefetch_count=200,
        )
        with consumer:
            while not self._stopping.is_set():
                try:
                    connection.drain_events(timeout=0.1)  # it is stopped within that
                except TimeoutError:
                    continue

    def _heard(self, message: Any) -> None:
        event = json.loads(message.body)
        event.pop("order", None)
        name = event["merchant_id"], event["order_id"]
        with self._news:
            self.told[name].append(event)
            if event["position"] not in self.positions:
                self.positions[event["position"]] = None
                if message.delivery_info["redelivered"]:
                    self.redelivered.add(event["position"])
            if event["type"] in TERMINAL or event["type"] == IN_DOUBT:
                self._settled.add(name)
                self._open.discard(name)
            self._news.notify_all()
        message.ack()


def connection_errors() -> tuple[type[BaseException], ...]:
    """What kombu raises when a connection or a channel is lost, or cannot be made."""
    amqp = Connection("amqp://")
    return (*amqp.connection_errors, *amqp.channel_errors, OperationalError, OSError)


def distinct(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without repeats, each where it came first."""
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        first.setdefault(event["id"], event)
    return list(first.values())
