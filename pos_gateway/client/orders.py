"""``OrderClient``: publishes orders to the broker."""

import time
import types
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Self

from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.domain.errors import FieldError, InvalidOrder
from pos_gateway.domain.http_limits import BATCH
from pos_gateway.domain.json_text import members
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.record import WHOLE
from pos_gateway.domain.split import Split, in_canary
from pos_gateway.domain.submit_result import SUBMITTED, SubmitResult, parsed_or_refused
from pos_gateway.routing.splits import SplitWatch
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.settings import setting
from pos_gateway.telemetry.program_span import program_span

__all__ = [
    "CANCEL_FOR",
    "OrderClient",
    "home_of",
    "in_canary",
    "require_readable",
    "require_submittable",
]

#: How long a cancel request is retried by default: a kitchen is done by then.
CANCEL_FOR = timedelta(minutes=15)

_LATE = (
    "is in the past; an order that may have been submitted before is submitted all the same with "
    "again=True (enqueue --again)"
)


class OrderClient:
    """Publishes orders to the broker. Safe from threads and green threads; reconnects by itself.

    One client per process is enough; it connects at the first order, and again after a fork.

    Args:
        broker_url: RabbitMQ's URL; a cluster's nodes with ``;`` between them. Default:
            ``POS_GATEWAY_BROKER_URL``.
        canary_percent: percent of merchants (not of orders) whose orders go to the canary
            workers. The same merchants stay in it while it grows. Default: what ``pos-gateway
            canary set`` last set, followed while this client runs; before that
            ``POS_GATEWAY_CANARY_PERCENT`` (0 if unset).
        max_order_bytes: maximum bytes of an order's message, as in the workers. Default:
            ``POS_GATEWAY_MAX_ORDER_BYTES``.
        timeout: seconds for a call: until the broker's confirm. The first call also reads the canary
            split, in half of them at most.
        declare: declare exchanges and queues on connecting, or see that they are there if the broker
            user may not.

    Raises:
        InvalidSettings: a value given here or in the environment is invalid.
    """

    def __init__(
        self,
        broker_url: str | None = None,
        *,
        canary_percent: float | None = None,
        max_order_bytes: int | None = None,
        timeout: float = 10.0,
        declare: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        url = setting("broker_url", broker_url)
        self._own_split = Split(percent=setting("canary_percent", canary_percent))
        self._watch = SplitWatch(url, declare=declare) if canary_percent is None else None
        self._largest = setting("max_order_bytes", max_order_bytes)
        self._timeout = timeout
        self._clock = clock
        self._publisher = PlainPublisher(url, declare=declare)

    def submit(self, order: Order | Mapping[str, Any], *, again: bool = False) -> None:
        """Return once the broker has stored the order in a queue.

        Submitting an order again (after an error, say) is harmless: the POS gets it once.

        Args:
            order: the order.
            again: the order may have been submitted before, so it is submitted even if its
                ``deliver_by`` has passed meanwhile: its event says how it ended, and if it was
                never sent, that it has expired.

        Raises:
            InvalidOrder: the order breaks the contract, its ``deliver_by`` is in the past (without
                ``again``), or no worker could read it; ``.errors`` names the fields.
            BrokerUnavailable: unreachable, or no confirm in time. Submit again, with ``again``.
            PublishRefused: the broker refused it.
            Unroutable: no queue takes orders on this broker.
        """
        until = self._until()
        parsed = Order.parse(order)
        message = self._message(parsed, again=again)
        self._publish("submit", message, parsed.merchant_id, until)

    def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        """Submit orders together; a result for each, in order. A refused one holds up no other.

        They share the broker's round trips. Each thousand has ``timeout`` for itself.

        Args:
            orders: the orders.
            again: as ``submit`` has it.
        """
        remaining = iter(orders)
        results: list[SubmitResult] = []
        while batch := list(islice(remaining, BATCH)):
            results += self._submit_batch(batch, again=again)
        return results

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        """Return once the broker has stored the cancel request.

        It may arrive before the order, which is then never sent, during an attempt, or after it.
        Its outcome is published as an event. Repeating it is harmless.

        Args:
            order_id, merchant_id: which order.
            deliver_by: until when to try, with its offset; default: ``CANCEL_FOR`` from now.

        Raises:
            InvalidOrder: an id or ``deliver_by`` is invalid.
            BrokerUnavailable, PublishRefused, Unroutable: as ``submit``.
        """
        ends = self._until()
        record = {"order_id": order_id, "merchant_id": merchant_id}
        until = deliver_by or self._clock.now() + CANCEL_FOR
        request = CancelRequest.parse({**record, "deliver_by": until})
        message = wire.cancel_message(
            request.order_id, request.to_json(), routing_key=self._key_of(merchant_id)
        )
        self._publish("cancel", message, merchant_id, ends)

    def _until(self) -> float:
        """When a call that begins now ends."""
        return time.monotonic() + self._timeout

    def _publish(self, action: str, message: Message, merchant_id: str, until: float) -> None:
        with program_span(action, message.message_id, merchant_id) as context:
            left = max(0.0, until - time.monotonic())
            self._publisher.publish(message.following(context), timeout=left)

    def _submit_batch(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool
    ) -> list[SubmitResult]:
        until = self._until()
        parsed = [self._checked(each, again=again) for each in orders]
        messages = [each for each in parsed if isinstance(each, Message)]
        with program_span("submit") as context:
            traced = [each.following(context) for each in messages]
            left = max(0.0, until - time.monotonic())
            errors = self._publisher.publish_many(traced, timeout=left)
        published = (
            SubmitResult(message.message_id, None if error else SUBMITTED, error)
            for message, error in zip(messages, errors, strict=True)
        )
        return [each if isinstance(each, SubmitResult) else next(published) for each in parsed]

    def _checked(self, order: Order | Mapping[str, Any], *, again: bool) -> Message | SubmitResult:
        parsed = parsed_or_refused(order)
        if isinstance(parsed, SubmitResult):
            return parsed
        try:
            return self._message(parsed, again=again)
        except InvalidOrder as error:
            return SubmitResult(parsed.order_id, None, error)

    def _message(self, order: Order, *, again: bool) -> Message:
        """Raises InvalidOrder."""
        require_submittable(order, None if again else self._clock.now(), self._largest)
        return wire.submit_message(
            order.order_id, order.source, routing_key=self._key_of(order.merchant_id)
        )

    @property
    def split(self) -> Split:
        """The canary split in force."""
        seen = self._watch.split(self._timeout / 2) if self._watch is not None else None
        return self._own_split if seen is None else seen

    def _key_of(self, merchant_id: str) -> str:
        return home_of(merchant_id, self.split)

    def connect(self) -> None:
        """Connect now rather than at the first order. Raises as ``submit``."""
        self._publisher.connect(timeout=self._timeout)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._watch is not None:
            self._watch.close()
        self._publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()


def home_of(merchant_id: str, split: Split) -> str:
    """The key of the queue that this merchant's orders go to."""
    return topology.CANARY_KEY if split.takes(merchant_id) else topology.ORDERS_KEY


def require_submittable(order: Order, now: datetime | None, limit: int) -> None:
    """Raises InvalidOrder for an order that has expired, or that no worker could read.

    Args:
        order: the order.
        now: the time; None: it may have expired.
        limit: maximum bytes of its message.
    """
    if now is not None and order.expired(now):
        raise InvalidOrder([FieldError("deliver_by", _LATE, order.deliver_by.isoformat())])
    require_readable(order.source, limit)


def require_readable(order: bytes, limit: int) -> None:
    """Raises InvalidOrder for an order that a worker would dead-letter as unreadable."""
    body = wire.body_of(order)
    try:
        wire.require_small(body, limit)
        wire.decoded(body)
    except wire.Malformed as problem:
        raise InvalidOrder([_unreadable(order.decode(), problem)]) from None


def _unreadable(order: str, problem: wire.Malformed) -> FieldError:
    """The field at fault, and the remedy."""
    fields = [(name, order[begin:end]) for name, begin, end in members(order)]
    if problem.code == "too_large":
        longest, _ = max(fields, key=lambda field: len(field[1]))
        remedy = f"shorten {longest}, or have it taken (POS_GATEWAY_MAX_ORDER_BYTES)"
        return FieldError(WHOLE, f"no worker would take it: {problem.reason}; {remedy}")
    for name, text in fields:
        try:
            wire.decoded(wire.body_of(f'{{"":{text}}}'.encode()))
        except wire.Malformed:
            remedy = "nest it less deeply, and give numbers of thousands of digits as texts"
            return FieldError(name, f"no worker could read it; {remedy}", text)
    return FieldError(WHOLE, f"no worker could read it: {problem.reason}")
