"""Status events as types, from the queue ``order-events``, a page over HTTP, or a stream.

    match events.parse(message.body):            # or an event of HttpOrderClient.events
        case OrderAccepted(external_id=pos_id):
            ...
        case OrderRejected(reason=reason):
            ...

A type that this version does not know is a plain ``StatusEvent``, and an unknown field is kept as an
attribute: a backend need not be upgraded before the gateway.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from pos_gateway.domain.errors import FieldError, InvalidEvent
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.record import WHOLE, field_errors


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class EventReason(_Part):
    """Why: a code for programs (docs/wire-format.md lists them), a sentence for people."""

    code: str
    message: str = ""


class EventMerchant(_Part):
    """What an event says of its merchant."""

    provider: str | None = None
    adapter: str = ""


class Adaptation(_Part):
    """A field that the POS has elsewhere than in a field of its own."""

    field: str = Field(description="Its path in the order.")
    as_: str = Field("", alias="as", description="Where a kitchen or a courier reads it.")


class StatusEvent(_Part):
    """A change of an order. docs/events.md says what can be relied on."""

    #: Whether it is an order's end; after an acceptance, lifecycle events may follow.
    is_terminal: ClassVar[bool] = False

    id: str = Field(description="Of an event that comes again, the same.")
    position: int = Field(ge=1, description="Its place among all events, without a gap.")
    type: str
    order_id: str
    merchant_id: str
    occurred_at: AwareDatetime | None = None
    external_id: str | None = Field(None, description="The POS's id for the order.")
    reason: EventReason | None = None
    attempts: int = 0
    merchant: EventMerchant | None = None
    order: dict[str, Any] | str | None = Field(None, description="As it was submitted.")
    incomplete: str = Field("", description="Why there is no order, if it cannot be read any more.")
    truncated: bool = Field(False, description="Whether the event is too long for the order.")
    adapted: tuple[Adaptation, ...] = Field(
        (), description="Of an accepted order: what was adapted for the POS."
    )
    adapted_more: int = Field(0, description="How many more fields were adapted.")


class OrderAccepted(StatusEvent):
    """The POS has the order."""

    is_terminal = True


class OrderRejected(StatusEvent):
    """The POS has refused it; ``reason`` has its words."""

    is_terminal = True


class OrderCancelled(StatusEvent):
    """It was cancelled, or never sent."""

    is_terminal = True


class OrderExpired(StatusEvent):
    """Its ``deliver_by`` has passed, and the POS does not have it."""

    is_terminal = True


class OrderFailed(StatusEvent):
    """It cannot succeed as it is configured: for an operator."""

    is_terminal = True


class OrderPending(StatusEvent):
    """The POS has it, and has not decided."""


class OrderInDoubt(StatusEvent):
    """The POS may have it: another event follows, or an operator decides."""


class OrderPreparing(StatusEvent):
    """After the acceptance: the kitchen has begun."""


class OrderReady(StatusEvent):
    """After the acceptance: it can be picked up."""


class OrderCompleted(StatusEvent):
    """After the acceptance: it was handed over."""


class OrderCancelledByPos(StatusEvent):
    """After the acceptance: the restaurant has given it up."""


#: Every type that this version knows.
TYPES: Mapping[str, type[StatusEvent]] = {
    f"order.{kind.value}": each
    for kind, each in {
        Kind.ACCEPTED: OrderAccepted,
        Kind.REJECTED: OrderRejected,
        Kind.CANCELLED: OrderCancelled,
        Kind.PENDING: OrderPending,
        Kind.EXPIRED: OrderExpired,
        Kind.FAILED: OrderFailed,
        Kind.IN_DOUBT: OrderInDoubt,
        Lifecycle.PREPARING: OrderPreparing,
        Lifecycle.READY: OrderReady,
        Lifecycle.COMPLETED: OrderCompleted,
        Lifecycle.CANCELLED_BY_POS: OrderCancelledByPos,
    }.items()
}


def parse(event: bytes | str | Mapping[str, Any]) -> StatusEvent:
    """An event from a message's body, a stream's ``data``, or decoded JSON.

    Raises:
        InvalidEvent: it is none; names the wrong fields.
    """
    record = event if isinstance(event, Mapping) else _decoded(event)
    kind = record.get("type") if isinstance(record, Mapping) else None
    model = TYPES.get(kind, StatusEvent) if isinstance(kind, str) else StatusEvent
    try:
        return model.model_validate(record)
    except ValidationError as error:
        raise InvalidEvent(field_errors(error)) from None


def from_stream(lines: Iterable[bytes | str] | bytes | str) -> Iterator[StatusEvent]:
    """The events of ``GET /v1/events/stream``, from its lines, with or without their ends.

    With requests: ``from_stream(reply.iter_lines())``. Keep the last ``position``, and send it as
    ``Last-Event-ID`` when you connect again. Raises InvalidEvent.
    """
    data: list[str] = []
    for line in _lines(lines):
        if line:
            name, _, value = line.partition(":")  # a comment has no name
            if name == "data":
                data.append(value.removeprefix(" "))
        elif data:
            yield parse("\n".join(data))
            data.clear()


#: Where a stream's line ends, and nowhere else: ``str.splitlines`` splits at other characters as well.
_LINE_END = re.compile(r"\r\n|\n|\r")


def _lines(pieces: Iterable[bytes | str] | bytes | str) -> Iterator[str]:
    """The lines of a stream, from pieces of one whole line or more each, without their ends."""
    for piece in [pieces] if isinstance(pieces, bytes | str) else pieces:
        text = piece.decode() if isinstance(piece, bytes) else piece
        *lines, last = _LINE_END.split(text)
        yield from lines
        if last or not lines:
            yield last


def _decoded(text: bytes | str) -> Any:
    # Not pydantic's parser, which ends at 200 levels: an order may have them.
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent([FieldError(WHOLE, f"is not JSON: {error}")]) from None
