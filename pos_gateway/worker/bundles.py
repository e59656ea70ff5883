"""Handles messages with parked orders; ``strategy.py`` handles single orders.

A green worker asks admission how many to unpark. A synchronous worker has no admission: it unparks
every order at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import time
from typing import Any

import structlog

from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import BYTES_ALLOWED, Bundle, ParkedOrder
from pos_gateway.domain.errors import BrokerUnavailable, InvalidBundle
from pos_gateway.worker.request import body_of
from pos_gateway.worker.strategy import Handler
from pos_gateway.worker.tasks import SYNCHRONOUS_TIMEOUT

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReturnedBundle:
    """A message with parked orders, from its arrival to its acknowledgement."""

    bundle: Bundle
    message: Any
    _ack: Callable[..., None]
    _reject: Callable[..., None]
    _connection_errors: tuple[type[BaseException], ...]

    @property
    def is_late(self) -> bool:
        """Whether an order in it has expired."""
        return is_late(self.bundle.deliver_by)

    def acknowledge(self) -> None:
        """Acknowledge the message: all its orders are stored elsewhere."""
        self._ack(log, self._connection_errors)

    def reject(self, requeue: bool) -> None:
        """Requeue the message, or reject it to ``orders.dead``."""
        self._reject(log, self._connection_errors, requeue)


def is_late(deliver_by: float | None, within: float = 0.0) -> bool:
    """Whether the deadline has passed, or will within ``within`` seconds."""
    return deliver_by is not None and deliver_by - within <= time()


def returned(consumer: Any, gate: Gateway) -> Handler:
    """The handler for messages with parked orders on this consumer."""
    errors = consumer.connection_errors

    def handle(message: Any, _body: Any, ack: Any, reject: Any, _callbacks: Any) -> None:
        body = body_of(message)
        if len(body) > BYTES_ALLOWED:
            reason = f"the message has {len(body)} bytes; a bundle has {BYTES_ALLOWED} at most"
            consumer.quarantine(message, "too_large", reason)
            return
        key = wire.home_key(message.delivery_info["routing_key"])
        try:
            bundle = Bundle.read(message.headers, body, key)
            back = ReturnedBundle(bundle, message, ack, reject, errors)
            if consumer.dispatcher is None:
                _unpark_all(back, bundle.open(), gate)
            else:
                consumer.dispatcher.take_back(back)
        except InvalidBundle as error:
            consumer.quarantine(message, "invalid_bundle", str(error))

    return handle


def _unpark_all(back: ReturnedBundle, orders: list[ParkedOrder], gate: Gateway) -> None:
    messages = [order.message for order in orders]
    try:
        gate.store(messages, timeout=SYNCHRONOUS_TIMEOUT)
    except BrokerUnavailable as error:
        log.warning("orders.not_let_out", orders=len(messages), error=str(error))
        back.reject(requeue=True)
    else:
        back.acknowledge()
