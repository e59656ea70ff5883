"""Parked orders, many to a message: a bundle's wire format.

A Celery message like an order's (``wire.py``) with a list as the one argument: for each order the message's
properties, then the body unchanged. The list is laid out in lines and the headers describe the content, so bundles are
built, joined and parked again without parsing an order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Self
from uuid import uuid4

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import LOOK_UP, NO_EMBED, is_look_up, is_plain
from pos_gateway.domain.errors import InvalidBundle
from pos_gateway.domain.record import identifier

PARKED_ORDERS = "pos_gateway.parked_orders"

#: Maximum orders in a bundle, and maximum bytes of the orders with headers.
MAX_ORDERS = 64
MAX_BYTES = 128 * 1024

#: Limits of an arriving bundle: a bundle of a different version may be larger.
BYTES_ALLOWED, ORDERS_ALLOWED = 4 * MAX_BYTES, 4 * MAX_ORDERS

#: Exclusive limit of a Unix time, for a double and a header's 64 bits.
_NO_TIME = 2**53

#: Maximum bytes of an order's properties, and maximum headers in the properties.
_SAID, _HEADERS = 4096, 20

_HEAD, _TAIL = b"[[[\n", b"\n]],{}," + NO_EMBED + b"]"
#: The separator of two lines. No line contains the separator: JSON has a newline only between tokens, where a blank
#: replaces the newline.
_NEXT = b",\n"

_MERCHANT, _ORDERS = "x-merchant-id", "x-orders"
_DELIVER_BY = "x-deliver-by"
#: Headers of a bundle.
HEADERS = frozenset({_MERCHANT, _ORDERS, _DELIVER_BY, LOOK_UP})


@dataclass(frozen=True, slots=True)
class ParkedOrder:
    """An order's message in a bundle."""

    message: Message
    #: The expiry (Unix time); None if the order has no readable expiry.
    deliver_by: float | None

    def lines(self) -> list[bytes]:
        """The order's two lines in a bundle."""
        said: dict[str, Any] = {
            "message_id": self.message.message_id,
            "headers": dict(self.message.headers),
        }
        if self.deliver_by is not None:
            said["deliver_by"] = self.deliver_by
        # A body without newlines, as usual, is not copied.
        return [json.dumps(said).encode(), self.message.body.replace(b"\n", b" ")]


@dataclass(slots=True)
class Bundle:
    """One merchant's orders parked together, to be published or as received."""

    merchant_id: str
    #: The routing key of the bundle, and of the unparked orders.
    routing_key: str
    #: Number of orders.
    orders: int = 0
    #: Bytes of their lines.
    size: int = 0
    #: The whole second (Unix time) by which the first order has expired; None: no order expires.
    deliver_by: int | None = None
    #: The orders as in the message, in pieces of one line or more. Hundreds of bundles may be here, with their
    #: messages until the acknowledgement: nothing in a message is copied.
    pieces: Sequence[bytes | memoryview] = ()
    #: Whether all orders are look-ups.
    look_ups: bool = False

    @classmethod
    def of(cls, merchant_id: str, routing_key: str, parked: Iterable[ParkedOrder]) -> "Bundle":
        """A bundle of these orders, of any number."""
        return joined([cls.of_one(merchant_id, routing_key, each) for each in parked])

    @classmethod
    def of_one(cls, merchant_id: str, routing_key: str, parked: ParkedOrder) -> Self:
        """A bundle of one order, for joining."""
        pieces, by = parked.lines(), parked.deliver_by
        due = None if by is None else ceil(by)
        look_up = is_look_up(parked.message.headers)
        return cls(merchant_id, routing_key, 1, _size(pieces), due, pieces, look_up)

    @classmethod
    def read(cls, headers: Mapping[str, Any], body: bytes, routing_key: str) -> Self:
        """Parse the headers and frame; only ``open`` parses the orders.

        Raises:
            InvalidBundle: the message is no bundle.
        """
        merchant_id, orders = identifier(headers.get(_MERCHANT)), headers.get(_ORDERS)
        deliver_by = headers.get(_DELIVER_BY)
        if merchant_id is None:
            raise InvalidBundle(f"the header {_MERCHANT} is missing or no identifier")
        if type(orders) is not int or not 1 <= orders <= ORDERS_ALLOWED:
            raise InvalidBundle(f"the header {_ORDERS} is missing or no number of orders")
        if deliver_by is not None and type(deliver_by) is not int:
            raise InvalidBundle(f"the header {_DELIVER_BY} is no whole number of seconds")
        if not (body.startswith(_HEAD) and body.endswith(_TAIL)):
            raise InvalidBundle("the body does not begin or end as a bundle's")
        lines = memoryview(body)[len(_HEAD) : -len(_TAIL)]
        look_ups = headers.get(LOOK_UP) is True
        return cls(merchant_id, routing_key, orders, len(lines), deliver_by, [lines], look_ups)

    @property
    def lines(self) -> bytes:
        """The orders as in the message."""
        return _NEXT.join(self.pieces)

    def is_small(self) -> bool:
        """Whether the bundle is at most half full; two half-full bundles can be joined."""
        return 2 * self.orders <= MAX_ORDERS and 2 * self.size <= MAX_BYTES

    def message(self) -> Message:
        """The message with the bundle; for a single order, the order's own message.

        Raises:
            InvalidBundle: the single order is invalid.
        """
        if self.orders == 1:
            return self.open()[0].message
        number = uuid4().hex
        headers: dict[str, Any] = {
            "task": PARKED_ORDERS,
            "id": number,
            "lang": "py",
            _MERCHANT: self.merchant_id,
            _ORDERS: self.orders,
        }
        if self.deliver_by is not None:
            headers[_DELIVER_BY] = self.deliver_by
        if self.look_ups:
            headers[LOOK_UP] = True
        return Message(
            exchange=topology.orders_exchange.name,
            routing_key=self.routing_key,
            body=b"".join((_HEAD, self.lines, _TAIL)),
            message_id=number,
            headers=headers,
        )

    def open(self) -> list[ParkedOrder]:
        """The orders.

        Raises:
            InvalidBundle: the orders do not match the headers; nothing in the bundle can be relied on.
        """
        whole = self.lines
        number = whole.count(_NEXT) + 1
        if number != 2 * self.orders:
            raise InvalidBundle(f"{number} lines are not those of {self.orders} orders")
        lines = whole.split(_NEXT)
        return [self._order(said, body) for said, body in zip(lines[::2], lines[1::2], strict=True)]

    def _order(self, said: bytes, body: bytes) -> ParkedOrder:
        if len(said) > _SAID:
            raise InvalidBundle(f"{len(said)} bytes are said of an order; {_SAID} are allowed")
        try:
            match json.loads(said):
                case {"message_id": str() as number, "headers": dict() as headers, **rest}:
                    deliver_by: Any = rest.get("deliver_by")
                    if _is_sendable(number, headers) and _is_time(deliver_by):
                        message = Message(
                            exchange=topology.orders_exchange.name,
                            routing_key=self.routing_key,
                            body=body,
                            message_id=number,
                            headers=headers,
                        )
                        return ParkedOrder(message, deliver_by)
        except (ValueError, RecursionError) as error:
            raise InvalidBundle(f"what is said of an order cannot be read: {error}") from error
        raise InvalidBundle("what is said of an order is not what it should be")


def joined(bundles: Iterable[Bundle]) -> Bundle:
    """One bundle of all orders in these bundles, which share a merchant and a routing key."""
    parts = list(bundles)
    pieces = [piece for part in parts for piece in part.pieces]
    dues = [part.deliver_by for part in parts if part.deliver_by is not None]
    return Bundle(
        parts[0].merchant_id,
        parts[0].routing_key,
        sum([part.orders for part in parts]),
        _size(pieces),
        min(dues, default=None),
        pieces,
        all(part.look_ups for part in parts),
    )


def _size(pieces: Sequence[bytes | memoryview]) -> int:
    return sum(map(len, pieces)) + len(_NEXT) * (len(pieces) - 1)


def _is_sendable(number: str, headers: Mapping[str, Any]) -> bool:
    """Whether AMQP can carry the headers. Raises ValueError for text other than UTF-8."""
    if len(headers) > _HEADERS:
        return False
    for name, value in headers.items():
        if isinstance(value, str):
            value.encode()
        if not (is_plain(value) and identifier(name)):
            return False
    return number == "" or identifier(number) is not None


def _is_time(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and abs(value) < _NO_TIME)
