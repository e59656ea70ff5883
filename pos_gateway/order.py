"""An order, as the backend places it and as the merchant's POS gets it."""

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from pos_gateway.errors import FieldError, InvalidOrder
from pos_gateway.record import Identifier, Money, Record, field_errors

#: Quantities are whole; 10,000 of one item is a mistake, not an order.
Quantity = Annotated[int, Field(strict=True, ge=1, le=10_000)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]


def _written_out(value: Any) -> Any:
    if not isinstance(value, str | datetime):
        raise ValueError("should be a time as RFC 3339 has it, 2026-01-31T12:00:00Z")
    return value


#: A moment with its offset, in letters: a bare number could be seconds or milliseconds.
Time = Annotated[AwareDatetime, BeforeValidator(_written_out)]


def _text_or_object(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("should be a text or an object")
    return value


#: "pickup", or whatever object backend and merchant have agreed on; it is passed on as it is.
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
    unit_price: Annotated[int, Field(strict=True)] = 0


class Item(Record):
    """One line of an order."""

    sku: str
    name: str
    quantity: Quantity
    unit_price: Money
    modifiers: tuple[Modifier, ...] = ()
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
    items: Annotated[tuple[Item, ...], Field(min_length=1, max_length=1000)]
    total: Money
    tip: Money | None = None
    fulfillment: Fulfillment | None = None
    customer: Customer | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _could_ever_be_delivered(self) -> Self:
        if self.deliver_by <= self.placed_at:
            # A ValueError here becomes a field error like every other one.
            raise ValueError("deliver_by is not after placed_at")
        return self

    @classmethod
    def parse(cls, record: Any) -> Self:
        """An order from decoded JSON (or an order, which is returned as it is).

        Raises:
            InvalidOrder: names every field that is wrong.
        """
        if isinstance(record, cls):
            return record
        return cls._checked(lambda: cls.model_validate(record))

    @classmethod
    def parse_json(cls, text: bytes | str) -> Self:
        """An order from JSON text. Raises InvalidOrder."""
        return cls._checked(lambda: cls.model_validate_json(text))

    @classmethod
    def _checked(cls, parse: Callable[[], Self]) -> Self:
        try:
            order = parse()
            order.to_json()  # a field we do not know may hold what JSON cannot: say so now
        except ValidationError as error:
            raise InvalidOrder([_named(entry) for entry in field_errors(error)]) from None
        except PydanticSerializationError as error:
            problem = f"cannot be written as JSON: {error}"
            raise InvalidOrder([FieldError("(record)", problem)]) from None
        return order

    def expired(self, now: datetime) -> bool:
        """Whether it is too late to deliver this order."""
        return self.deliver_by <= now

    def until(self, deliver_by: datetime | None) -> Self:
        """The same order with another ``deliver_by``, if one is given. Raises InvalidOrder."""
        if deliver_by is None:
            return self
        record = self.model_dump(mode="json", exclude_none=True)
        return self.parse({**record, "deliver_by": deliver_by.isoformat()})

    def to_json(self) -> bytes:
        """The order as JSON, fields that were not given left out; always the same bytes."""
        return self.encoded

    @cached_property
    def encoded(self) -> bytes:
        """What ``to_json`` returns, written once: queue, POS and event all carry it."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


class CancelRequest(Record):
    """A wish to cancel an order. After ``deliver_by`` nothing is tried any more."""

    order_id: Identifier
    merchant_id: Identifier
    deliver_by: Time

    @classmethod
    def parse(cls, record: Any) -> Self:
        """A wish from decoded JSON. Raises InvalidOrder, which names every field that is wrong."""
        try:
            return cls.model_validate(record)
        except ValidationError as error:
            raise InvalidOrder(field_errors(error)) from None

    def to_json(self) -> bytes:
        """The wish as JSON."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)


def _named(error: FieldError) -> FieldError:
    if error.field == "(record)" and "deliver_by" in error.problem:
        return FieldError("deliver_by", "is not after placed_at", error.value["deliver_by"])
    return error
