"""An order, as submitted by the backend and sent to the merchant's POS."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
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
from pos_gateway.domain.order_parts import (
    DeliveryInfo,
    DineIn,
    Discounts,
    DisplayId,
    Email,
    Fees,
    Flag,
    LineRef,
    OrderType,
    Payment,
    PrepMinutes,
    Taxes,
)
from pos_gateway.domain.quick_order import RFC_3339, quick_reader
from pos_gateway.domain.record import WHOLE, Identifier, Money, Record, field_errors
from pos_gateway.runtime.clock import from_unix

#: Maximum items of an order, modifiers of an item or a modifier, and modifiers of an order at all levels:
#: they bound how long an order blocks the event loop. Real ones have some dozens.
ITEMS, MODIFIERS_OF_ITEM, MODIFIERS = 1000, 250, 5000
#: Maximum levels of modifiers below an item.
DEPTH = 3
#: Maximum time from the order to the moment that the order is for (Square's limit).
SCHEDULED = timedelta(days=7)
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
    """Refuse too many items, modifiers or levels of modifiers before validating each."""
    if isinstance(items, list | tuple):
        if len(items) > ITEMS:
            raise ValueError(f"has {len(items)} items; {ITEMS} are allowed")
        number, depth, level = 0, 0, _modifiers(items)
        while level:
            number, depth = number + sum(map(len, level)), depth + 1
            if number > MODIFIERS:
                raise ValueError(f"has {number} modifiers in all; {MODIFIERS} are allowed")
            if depth > DEPTH:
                raise ValueError(f"has {depth} levels of modifiers; {DEPTH} are allowed")
            level = [below for each in level for below in _modifiers(each)]
    return items


def _modifiers(parts: Any) -> list[Any]:
    """The lists of modifiers of items, or of modifiers, that have any."""
    found = [
        each.get("modifiers") if isinstance(each, dict) else getattr(each, "modifiers", None)
        for each in parts
    ]
    return [each for each in found if isinstance(each, list | tuple) and each]


#: "pickup", or an object that backend and merchant have agreed on; passed on unchanged.
Fulfillment = Annotated[
    Any,
    AfterValidator(_text_or_object),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class AnyModifier(Record):
    """A modifier at any level; by itself of the third, without modifiers."""

    name: str
    sku: str | None = None
    quantity: Quantity = 1
    unit_price: Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)] = 0
    notes: str | None = None
    modifiers: Annotated[tuple[Any, ...], Field(max_length=0)] | None = None

    @property
    def price(self) -> int:
        """The price of one, with its modifiers, which count once for each."""
        below: Iterable[AnyModifier] = self.modifiers or ()
        return self.unit_price + sum(each.quantity * each.price for each in below)


class NestedModifier(AnyModifier):
    """A change to a modifier ("no ice")."""

    modifiers: (
        Annotated[tuple[AnyModifier, ...], Field(max_length=MODIFIERS_OF_ITEM, fail_fast=True)]
        | None
    ) = None


class Modifier(AnyModifier):
    """A change to an item ("no onions", "extra cheese"); a discount has a negative price."""

    modifiers: (
        Annotated[tuple[NestedModifier, ...], Field(max_length=MODIFIERS_OF_ITEM, fail_fast=True)]
        | None
    ) = None


class Item(Record):
    """One line of an order."""

    sku: str
    name: str
    quantity: Quantity
    unit_price: Money
    modifiers: Annotated[tuple[Modifier, ...], Field(max_length=MODIFIERS_OF_ITEM), FailFast()] = ()
    notes: str | None = None
    ref: LineRef | None = Field(
        None, description="A name for the line, unique in the order, for `discounts[].items`."
    )

    @property
    def price(self) -> int:
        """The price of one with its modifiers, which count once for each."""
        return self.unit_price + sum(each.quantity * each.price for each in self.modifiers)


class Customer(Record):
    """Who the order is for, as far as the merchant needs to know."""

    name: str | None = None
    phone: str | None = None
    email: Email | None = None
    first_name: str | None = None
    last_name: str | None = None

    @property
    def full_name(self) -> str | None:
        """The name; made of first and last name where none is given."""
        return self.name or " ".join(filter(None, (self.first_name, self.last_name))) or None

    @property
    def has_parts(self) -> bool:
        """Whether first and last name are the whole name: beside ``name``, one of the two is not."""
        given = (self.first_name, self.last_name)
        return all(given) or (any(given) and not self.name)


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
    total: Money = Field(
        description="Without the tip. With `discounts`, `fees` or `taxes`: the items, minus the"
        " discounts, plus the fees and the taxes that are not inclusive."
    )
    tip: Money | None = None
    fulfillment: Fulfillment | None = None
    customer: Customer | None = None
    notes: str | None = None
    display_id: DisplayId | None = None
    order_type: OrderType | None = None
    scheduled_for: Time | None = Field(
        None, description="When the guest gets the order: at most 7 days after `placed_at`."
    )
    prep_minutes: PrepMinutes | None = None
    delivery: DeliveryInfo | None = None
    dine_in: DineIn | None = None
    discounts: Discounts | None = None
    fees: Fees | None = None
    taxes: Taxes | None = None
    payment: Payment | None = None
    utensils: Flag | None = None

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        if errors := list(_broken(self)):
            raise InvalidOrder(errors)  # not a ValueError: passes through pydantic
        return self

    @property
    def subtotal(self) -> int:
        """What the items come to, in minor units."""
        return sum(item.quantity * item.price for item in self.items)

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
        validated = _quick(cls)
        if validated is None:
            return None
        try:
            order: Self = validated(text)
        except ValidationError:
            return None
        if order.deliver_by <= order.placed_at or not is_finite(text):
            return None
        # A name may be written with escapes.
        has_refs = b'"ref"' in text or b"\\u" in text
        has_rules = has_refs or not _RULED.isdisjoint(order.model_fields_set)
        if has_rules and next(_broken(order), None) is not None:
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
        self,
        since: float | None,
        until: float | None,
        external_id: str | None = None,
        known_as: str | None = None,
    ) -> Self:
        """The same order, byte for byte, with the ledger's record of when it may have been sent.

        Args:
            since: when the ledger first recorded it (Unix time), if it has.
            until: its ``deliver_by`` in the ledger, if it has one.
            external_id: the POS's id for it, if the POS has accepted it.
            known_as: the POS's id for it, if the POS has not decided.
        """
        order = self.model_copy()
        vars(order)["external_id"] = external_id
        vars(order)["known_as"] = external_id or known_as
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
    def known_as(self) -> str | None:
        """The POS's id for it, if the POS has named one: decided or not."""
        return self.external_id

    @cached_property
    def sent_until(self) -> datetime:
        """Until when it may have been sent: an operator may have extended its ``deliver_by``."""
        return self.deliver_by

    def to_json(self) -> bytes:
        """The order as JSON with defaults filled in, for a POS; always the same bytes."""
        return _written(self)


#: Optional fields that a POS may have no place for, in the order in which a reason names them.
PARTS = (
    "order_type",
    "scheduled_for",
    "prep_minutes",
    "delivery",
    "dine_in",
    "discounts",
    "fees",
    "taxes",
    "payment",
    "utensils",
)
#: Optional fields that few orders have, by model: see ``plain_order.py``.
RARE: Mapping[type[Record], frozenset[str]] = {
    Order: frozenset({"display_id", *PARTS}),
    Item: frozenset({"ref"}),
    Modifier: frozenset({"notes", "modifiers"}),
    Customer: frozenset({"email", "first_name", "last_name"}),
}


#: Fields of an order that have rules between fields, beside an item's ``ref``.
_RULED = frozenset(["order_type", "scheduled_for", "discounts", "fees", "taxes"])


def _broken(order: Order) -> Iterator[FieldError]:
    """The rules between an order's fields that the order breaks."""
    if order.deliver_by <= order.placed_at:
        yield FieldError("deliver_by", "is not after placed_at", order.deliver_by.isoformat())
    at = order.scheduled_for
    if at is not None and not order.placed_at <= at <= order.placed_at + SCHEDULED:
        problem = f"is not within {SCHEDULED.days} days after placed_at"
        yield FieldError("scheduled_for", problem, at.isoformat())
    way = order.delivery
    if order.order_type == "delivery" and (way is None or not (way.address or way.courier)):
        problem = "is required where order_type is delivery, or the delivery.courier who knows it"
        yield FieldError("delivery.address", problem)
    refs = [item.ref for item in order.items if item.ref is not None]
    known = set(refs)
    if len(known) < len(refs):
        [(twice, _)] = Counter(refs).most_common(1)
        yield FieldError("items", "have a ref twice; give each item its own", twice)
    for number, each in enumerate(order.discounts or ()):
        if unknown := [ref for ref in each.items or () if ref not in known]:
            problem = "has a ref that no item has"
            yield FieldError(f"discounts[{number}].items", problem, unknown[0])
    if order.discounts or order.fees or order.taxes:
        yield from _broken_sum(order)


def _broken_sum(order: Order) -> Iterator[FieldError]:
    items = order.subtotal
    discounts = sum(each.amount for each in order.discounts or () if each.is_in_total)
    fees = sum(each.amount for each in order.fees or ())
    taxes = sum(each.amount for each in order.taxes or () if each.is_in_total)
    if (due := items - discounts + fees + taxes) != order.total:
        parts = f"items {items} - discounts {discounts} + fees {fees} + taxes {taxes}"
        yield FieldError("total", f"should be {due}: {parts}", order.total)


def may_have_too_many(text: bytes) -> bool:
    """Whether an order's JSON may have more modifiers than are allowed, which are not to be read."""
    return len(text) > _FEW_MODIFIERS and text.count(b"{") > MODIFIERS


#: One reader for each model: making the reader takes milliseconds.
_quick = cache(quick_reader)


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
        raise InvalidOrder(field_errors(error)) from None
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
