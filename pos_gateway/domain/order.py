"""An order, as submitted by the backend and sent to the merchant's POS."""

import re
from collections.abc import Callable
from datetime import datetime
from functools import cache, cached_property
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    FailFast,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from pos_gateway.domain.errors import FieldError, InvalidOrder
from pos_gateway.domain.json_text import is_finite, with_text
from pos_gateway.domain.quick_order import RFC_3339, QuickReader
from pos_gateway.domain.record import WHOLE, Identifier, Money, Record, field_errors
from pos_gateway.runtime.clock import from_unix

#: Maximum items of an order, modifiers of an item, and modifiers of an order: they bound how long
#: an order blocks the event loop. Real ones have some dozens.
ITEMS, MODIFIERS_OF_ITEM, MODIFIERS = 1000, 250, 5000
#: Bytes of an order that has no more of them if it is valid: one has a name.
_FEW_MODIFIERS = MODIFIERS * len('{"name":""}')
#: Quantities are whole; 10,000 of one item is a mistake, not an order.
Quantity = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]


def _written_out(value: Any) -> Any:
    if not (isinstance(value, datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value))):
        raise ValueError("should be a time as RFC 3339 has it, 2026-01-31T12:00:00Z")
    return value


_RFC_3339 = re.compile(RFC_3339)
#: A time with its offset, as text: of digits alone, pydantic reads seconds or milliseconds.
Time = Annotated[AwareDatetime, BeforeValidator(_written_out)]
_TIME: TypeAdapter[datetime] = TypeAdapter(Time)


def timestamp(value: Any) -> float | None:
    """The Unix time of an order's time field; None if it is invalid.

    Accepts exactly what ``Order`` accepts: else admission would use another deadline.
    """
    try:
        return _TIME.validate_python(value).timestamp()
    except ValidationError:
        return None  # the task will report the error


def _text_or_object(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("should be a text or an object")
    return value


def _not_too_many(items: Any) -> Any:
    """Refuse too many items or modifiers before validating each."""
    if isinstance(items, list | tuple):
        if len(items) > ITEMS:
            raise ValueError(f"has {len(items)} items; {ITEMS} are allowed")
        number = sum(len(_modifiers(each)) for each in items)
        if number > MODIFIERS:
            raise ValueError(f"has {number} modifiers in all; {MODIFIERS} are allowed")
    return items


def _modifiers(item: Any) -> list[Any] | tuple[Any, ...]:
    found = item.get("modifiers") if isinstance(item, dict) else getattr(item, "modifiers", None)
    return found if isinstance(found, list | tuple) else ()


#: "pickup", or an object that backend and merchant have agreed on; passed on unchanged.
Fulfillment = Annotated[
    Any,
    AfterValidator(_text_or_object),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class Modifier(Record):
    """A change to an item ("no onions", "extra cheese"); a discount has a negative price."""

    name: str
    sku: str | None = None
    quantity: Quantity = 1
    unit_price: Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)] = 0


class Item(Record):
    """One line of an order."""

    sku: str
    name: str
    quantity: Quantity
    unit_price: Money
    modifiers: Annotated[tuple[Modifier, ...], Field(max_length=MODIFIERS_OF_ITEM), FailFast()] = ()
    notes: str | None = None


class Customer(Record):
    """Who the order is for, as far as the merchant needs to know."""

    name: str | None = None
    phone: str | None = None


class Order(Record):
    """An order. Money is in integer minor units; times carry an offset (RFC 3339)."""

    order_id: Identifier = Field(description="The backend's id; the idempotency key everywhere.")
    merchant_id: Identifier
    placed_at: Time
    deliver_by: Time = Field(
        description="After this moment the order is worthless and ends as order.expired."
    )
    currency: Currency = Field(description="ISO 4217, in capitals.")
    items: Annotated[
        tuple[Item, ...], Field(min_length=1, max_length=ITEMS), BeforeValidator(_not_too_many)
    ]
    total: Money
    tip: Money | None = None
    fulfillment: Fulfillment | None = None
    customer: Customer | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _could_ever_be_delivered(self) -> Self:
        if self.deliver_by <= self.placed_at:
            # A ValueError here becomes a field error.
            raise ValueError("deliver_by is not after placed_at")
        return self

    @classmethod
    def parse(cls, record: Any, source: bytes | None = None) -> Self:
        """An order from decoded JSON (or an order, which is returned unchanged).

        Args:
            record: the decoded JSON.
            source: its text, if there is one.

        Raises:
            InvalidOrder: names the wrong fields, twenty at most.
        """
        if isinstance(record, cls):
            return record
        return cls._checked(lambda: cls.model_validate(record), source)

    @classmethod
    def parse_json(cls, text: bytes | str) -> Self:
        """An order from JSON text. Raises InvalidOrder."""
        source = text.encode() if isinstance(text, str) else text
        order = cls.read(source)
        return order or cls._checked(lambda: cls.model_validate_json(source), source)

    @classmethod
    def read(cls, text: bytes) -> Self | None:
        """An order from JSON text, at half of ``parse_json``'s cost; None: it may be invalid."""
        if may_have_too_many(text):
            return None
        order: Self | None = _quick(cls)(text)
        if order is None or order.deliver_by <= order.placed_at or not is_finite(text):
            return None
        vars(order)["source"] = text
        return order

    @classmethod
    def _checked(cls, parse: Callable[[], Self], source: bytes | None) -> Self:
        order, vars(order)["source"] = _checked(cls, parse, source)
        return order

    def expired(self, now: datetime) -> bool:
        """Whether ``deliver_by`` has passed."""
        return self.deliver_by <= now

    def until(self, deliver_by: datetime | None) -> Self:
        """The same order with another ``deliver_by``, if one is given. Raises InvalidOrder."""
        if deliver_by is None:
            return self
        return self.parse_json(with_text(self.source, "deliver_by", deliver_by.isoformat()))

    @cached_property
    def source(self) -> bytes:
        """The order's text as received, byte for byte: in the queue, the ledger and the event.

        An order that came as no text has one without the fields that were not given.
        """
        return _written(self, exclude_unset=True)

    def in_ledger(
        self, since: float | None, until: float | None, external_id: str | None = None
    ) -> Self:
        """The same order, byte for byte, with the ledger's record of when it may have been sent.

        Args:
            since: when the ledger first recorded it (Unix time), if it has.
            until: its ``deliver_by`` in the ledger, if it has one.
            external_id: the POS's id for it, if the POS has accepted it.
        """
        order = self.model_copy()
        vars(order)["external_id"] = external_id
        if since is not None:
            vars(order)["known_since"] = from_unix(since)
        if until is not None:
            vars(order)["sent_until"] = max(self.deliver_by, from_unix(until))
        return order

    @cached_property
    def known_since(self) -> datetime | None:
        """When the ledger first recorded it; ``placed_at``, by the backend's clock, may be off."""
        return None

    @cached_property
    def external_id(self) -> str | None:
        """The POS's id for it, if the POS has accepted it."""
        return None

    @cached_property
    def sent_until(self) -> datetime:
        """Until when it may have been sent: an operator may have extended its ``deliver_by``."""
        return self.deliver_by

    def to_json(self) -> bytes:
        """The order as JSON with defaults filled in, for a POS; always the same bytes."""
        return _written(self)


def may_have_too_many(text: bytes) -> bool:
    """Whether an order's JSON may have more modifiers than are allowed, which are not to be read."""
    return len(text) > _FEW_MODIFIERS and text.count(b"{") > MODIFIERS


@cache
def _quick(model: type[Order]) -> QuickReader:
    return QuickReader(model)


class CancelRequest(Record):
    """A request to cancel an order. After ``deliver_by`` it is not retried."""

    order_id: Identifier
    merchant_id: Identifier
    deliver_by: Time

    @classmethod
    def parse(cls, record: Any, source: bytes | None = None) -> Self:
        """A cancel request from decoded JSON. Raises InvalidOrder, which names the wrong fields."""
        return _checked(cls, lambda: cls.model_validate(record), source)[0]

    @classmethod
    def parse_json(cls, text: bytes) -> Self:
        """A cancel request from JSON text. Raises InvalidOrder."""
        return _checked(cls, lambda: cls.model_validate_json(text), text)[0]

    def to_json(self) -> bytes:
        """The cancel request as JSON."""
        return _written(self)


R = TypeVar("R", bound=Record)


def _checked(cls: type[R], parse: Callable[[], R], source: bytes | None) -> tuple[R, bytes]:
    """The parsed record and its text, if it can be serialized. Raises InvalidOrder."""
    try:
        record = parse()
        # An unknown field may hold a value that JSON cannot: report it now.
        text = _written(record, exclude_unset=True) if source is None else source
    except ValidationError as error:
        raise InvalidOrder([_named(entry) for entry in field_errors(error)]) from None
    except PydanticSerializationError as error:
        problem = f"cannot be written as JSON: {error}"
        raise InvalidOrder([FieldError(WHOLE, problem)]) from None
    if not is_finite(text):
        raise InvalidOrder([FieldError(WHOLE, "has a number that JSON has not (NaN, 1e999)")])
    return record, text


def _written(record: Record, *, exclude_unset: bool = False) -> bytes:
    # Not ``model_dump_json``, which decodes the bytes that it is given.
    adapter = _adapter(type(record))
    return adapter.dump_json(record, exclude_none=True, exclude_unset=exclude_unset)


@cache
def _adapter(model: type[R]) -> TypeAdapter[R]:
    return TypeAdapter(model)


def _named(error: FieldError) -> FieldError:
    if error.field == WHOLE and "deliver_by" in error.problem:
        return FieldError("deliver_by", "is not after placed_at", error.value["deliver_by"])
    return error
