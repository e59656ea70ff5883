"""A message in ``orders.dead``: its content and reason."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from pos_gateway.broker import topology, wire
from pos_gateway.broker.bundle import PARKED_ORDERS, Bundle
from pos_gateway.broker.properties import COMPRESSION
from pos_gateway.domain.errors import AdminError, InvalidBundle, InvalidOrder
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import one_line
from pos_gateway.domain.record import identifier

#: Most characters of a reason's code, and of its text: a foreign message may have 100,000 for each, and
#: lists keep tens of thousands of letters.
CODE, REASON = 128, 1000
#: Header only of messages that a worker could not parse.
_UNREAD = "x-content-type"
#: The reason of an unparsed message that may be an order.
TOO_LARGE = "too_large"


class NotReplayable(AdminError):
    """Raised for a message that is no order; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead-lettered message."""

    #: The ID on the command line: the order's, if the message has an order's.
    id: str
    order_id: str | None
    merchant_id: str | None
    code: str | None
    reason: str | None
    #: Time of the dead-lettering (Unix time).
    at: float | None
    headers: dict[str, Any]
    body: bytes
    #: Delivery tag on the channel below.
    tag: int
    channel: Any

    @classmethod
    def of(cls, message: Any) -> Self:
        """A letter from a received message."""
        body = message.body
        body = body.encode() if isinstance(body, str) else bytes(body)
        headers = message.headers if isinstance(message.headers, dict) else {}
        number = identifier(message.properties.get("message_id"))
        named = _named(body)
        dead = _by_the_broker(headers)
        return cls(
            id=number or f"sha256:{hashlib.sha256(body).hexdigest()[:12]}",
            order_id=identifier(named.get("order_id")),
            merchant_id=identifier(named.get("merchant_id"))
            or identifier(headers.get("x-merchant-id")),
            code=_text(headers.get("x-reason-code"), CODE) or (dead and dead[0]),
            reason=_text(headers.get("x-reason"), REASON) or (dead and dead[1]),
            at=_time(message.properties.get("timestamp"), headers),
            headers=headers,
            body=body,
            tag=message.delivery_tag,
            channel=message.channel,
        )

    @property
    def has_event(self) -> bool:
        """Whether a worker dead-lettered the message, with a reason and an event: the broker gives neither.

        An order that was not parsed has no event, unless the order's ids came first.
        """
        if "x-reason-code" not in self.headers:
            return False
        if _UNREAD not in self.headers:
            return True
        is_order = self.headers.get("task") == wire.SUBMIT_ORDER
        return is_order and len(wire.named_in(self.body)) == len(wire.NAMES)

    def content(self) -> Order | CancelRequest | Bundle:
        """The order, the cancel request, or the parked orders. Raises NotReplayable."""
        task = self.headers.get("task")
        # A message too long for a worker with a lower limit may be an order, and parked orders unreadable to a
        # different release may be readable here.
        if _UNREAD in self.headers and self.code != TOO_LARGE and task != PARKED_ORDERS:
            raise NotReplayable(
                f"it is no order ({self.code}: {self.reason})", kind=f"it is no order ({self.code})"
            )
        if COMPRESSION in self.headers:
            raise NotReplayable("it is compressed, and not looked into")
        try:
            if task == PARKED_ORDERS:
                bundle = Bundle.read(self.headers, self.body, topology.ORDERS_KEY)
                bundle.open()
                return bundle
            record, source = wire.read(self.body)
            if task == wire.SUBMIT_ORDER:
                return Order.parse(record, source)
            if task == wire.CANCEL_ORDER:
                return CancelRequest.parse(record, source)
        except InvalidOrder as error:
            wrong = "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
            raise NotReplayable(
                f"it is no valid order: {wrong}", kind="it is no valid order"
            ) from None
        except (InvalidBundle, ValueError, RecursionError) as error:
            raise NotReplayable(f"it cannot be read: {type(error).__name__}") from None
        raise NotReplayable("it is no message of the gateway's")


def _named(body: bytes) -> dict[str, Any]:
    """The order, or cancel request, in the body; empty if there is neither."""
    try:
        match json.loads(body):
            case [[dict() as record, *_], *_]:
                return record
    except (ValueError, RecursionError):
        pass
    return {}


#: Reasons for which RabbitMQ itself dead-letters a message: our code and text. Neither has an event.
_BY_THE_BROKER = {
    "delivery_limit": ("delivery_limit", f"it came back more than {topology.DELIVERY_LIMIT} times"),
    "expired": (
        "message_ttl",
        "no worker took it within its property expiration, or a policy's message-ttl",
    ),
}


def _by_the_broker(headers: dict[str, Any]) -> tuple[str, str] | None:
    """RabbitMQ's own reason for the dead-lettering, if any."""
    reason = headers.get("x-first-death-reason")
    match headers.get("x-death"):
        case [{"reason": last}, *_]:  # earlier entries may be native delays
            reason = last
    if (said := _text(reason, CODE)) is None:
        return None
    return _BY_THE_BROKER.get(said, (said, "RabbitMQ moved it here"))


def _time(stamp: Any, headers: dict[str, Any]) -> float | None:
    match headers.get("x-death"):
        case [{"time": datetime() as died}, *_]:
            return _utc(died)
    if isinstance(stamp, datetime):
        return _utc(stamp)
    return float(stamp) if isinstance(stamp, int) else None


def _utc(moment: datetime) -> float:
    # The AMQP library returns naive times in UTC.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _text(value: Any, most: int) -> str | None:
    """As one line for the audit, even from a foreign message."""
    return one_line(value[:most]) if isinstance(value, str) else None
