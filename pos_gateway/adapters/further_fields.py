"""Fields of an order beside the schema's, for the adapters whose POS has a place for them.

The schema leaves these fields to backends, and a POS of the kind ``rest`` gets them as they came. An
adapter says which ones are read (``Reads``): these are checked here, in one form for every vendor.
``unsupported.py`` refuses the others by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, FailFast, Field, ValidationError, model_validator

from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.order import ITEMS, MODIFIERS, MODIFIERS_OF_ITEM, Modifier, Order, Time
from pos_gateway.domain.record import Money, Record, field_errors

T = TypeVar("T")
#: Levels of modifiers below an item.
DEPTH = 3
#: Maximum fields of an object: each unknown field costs an error. Problems that a reason names.
_FIELDS, _NAMED = 30, 5


@dataclass(frozen=True, slots=True)
class Reads:
    """Names of the fields that an adapter reads: of an order, and of a modifier."""

    order: frozenset[str] = frozenset()
    modifier: frozenset[str] = frozenset()


NOTHING = Reads()


def is_empty(value: Any) -> bool:
    """Whether nothing is lost with the value. 0 and false are words in an item: "ice: 0"."""
    return value is None or value in ("", [], {})


def _given(value: Any) -> Any:
    """An object without its empty fields, which are the same as absent ones."""
    if not isinstance(value, Mapping):
        return value
    if len(value) > _FIELDS:
        raise ValueError(f"has {len(value)} fields; {_FIELDS} are allowed")
    return {name: each for name, each in value.items() if not is_empty(each)}


class _Object(Record):
    """An object all of whose fields are known: an unknown one is refused by name."""

    model_config = ConfigDict(extra="forbid")
    _without_empty = model_validator(mode="before")(_given)


class Address(_Object):
    """Where a delivery goes."""

    line1: str
    line2: str | None = None
    city: str
    region: str | None = None
    postal_code: str
    country: str | None = None


class DeliveryInfo(_Object):
    """How a delivery reaches the guest."""

    address: Address
    instructions: str | None = None
    contactless: bool = False


class DineIn(_Object):
    """Where the guests sit."""

    table: str | None = None
    guests: Annotated[int, Field(strict=True, ge=1, le=100)] | None = None


class _Amount(_Object):
    """An amount beside the items' prices, in minor units; ``id`` is the backend's own."""

    amount: Money
    name: str = ""
    id: Any = None


class Tax(_Amount):
    """A tax. An inclusive one is in the items' prices, and its ``rate`` is information."""

    inclusive: bool = False
    rate: str | None = None
    remitted_by: Literal["merchant"] = "merchant"


class Fee(_Amount):
    """What the guest pays for a service. Whether a fee is taxed, the POS knows."""

    kind: str | None = None
    taxable: bool | None = None


class Discount(_Amount):
    """An amount off the whole order, at the merchant's cost."""

    funded_by: Literal["merchant"] = "merchant"


_FEW = Field(max_length=10)


class FurtherFields(_Object):
    """An order's fields beside the schema's."""

    order_type: Literal["pickup", "delivery", "dine_in", "curbside"] | None = None
    scheduled_for: Time | None = None
    delivery: DeliveryInfo | None = None
    dine_in: DineIn | None = None
    taxes: Annotated[tuple[Tax, ...], _FEW, FailFast()] = ()
    fees: Annotated[tuple[Fee, ...], _FEW, FailFast()] = ()
    discounts: Annotated[tuple[Discount, ...], _FEW, FailFast()] = ()

    @property
    def besides(self) -> int:
        """What the order costs beside its items, in minor units; a tip is outside the total."""
        taxes = sum(each.amount for each in self.taxes if not each.inclusive)
        fees = sum(each.amount for each in self.fees)
        return fees + taxes - sum(each.amount for each in self.discounts)


class DeepModifier(Modifier):
    """A modifier with notes, or with modifiers of its own, which count once for each of it."""

    model_config = ConfigDict(extra="forbid")
    _without_empty = model_validator(mode="before")(_given)

    notes: str | None = None
    modifiers: Annotated[
        tuple["DeepModifier", ...], Field(max_length=MODIFIERS_OF_ITEM), FailFast()
    ] = ()
    # The backend's own (``unsupported.OWN``).
    id: Any = None
    line_id: Any = None
    ref: Any = None
    metadata: Any = None

    @property
    def price(self) -> int:
        """Of one, with its modifiers, in minor units."""
        return self.unit_price + sum(each.quantity * each.price for each in self.modifiers)

    @property
    def depth(self) -> int:
        """Levels, with the modifier's own."""
        return 1 + max((each.depth for each in self.modifiers), default=0)


def further_fields(order: Order, reads: Reads) -> FurtherFields:
    """What an adapter reads of an order beside the schema's fields; 0 and false are absent, too.

    Raises:
        Refused: a field has another form; names the field and the problem.
    """
    extra = order.model_extra or {}
    given = {name: extra[name] for name in reads.order if extra.get(name)}
    return _checked(lambda: FurtherFields.model_validate(given)) if given else _NONE


def deepened(order: Order, reads: Reads) -> Order:
    """The order, with each modifier that has a field which an adapter reads as a ``DeepModifier``.

    Raises:
        Refused: a modifier has another form, or too many levels; names the modifier.
    """
    items = list(order.items)
    is_long = order.source.count(b"{") > ITEMS + MODIFIERS
    for number, item in enumerate(items):
        if any(_is_deep(each, reads) for each in item.modifiers):
            if is_long:
                problem = f"items: {MODIFIERS} modifiers are allowed, with those of modifiers"
                raise Refused(Rejection.INVALID_ORDER, problem)
            modifiers = [
                _deep(each, f"items[{number}].modifiers[{place}]")
                if _is_deep(each, reads)
                else each
                for place, each in enumerate(item.modifiers)
            ]
            items[number] = item.model_copy(update={"modifiers": tuple(modifiers)})
    if all(map(lambda old, new: old is new, order.items, items)):
        return order
    return order.model_copy(update={"items": tuple(items)})


def _is_deep(modifier: Modifier, reads: Reads) -> bool:
    extra = modifier.model_extra or {}
    return any(extra.get(name) for name in reads.modifier)


def _deep(modifier: Modifier, path: str) -> DeepModifier:
    found = _checked(lambda: DeepModifier.model_validate(dict(modifier)), f"{path}.")
    if found.depth > DEPTH:
        problem = f"{path}.modifiers has {found.depth - 1} levels; {DEPTH - 1} are allowed"
        raise Refused(Rejection.INVALID_ORDER, problem)
    return found


def _checked(parse: Callable[[], T], path: str = "") -> T:
    try:
        return parse()
    except ValidationError as error:
        found = field_errors(error)[:_NAMED]
        is_unknown = any("is not a field" in each.problem for each in found)
        why = Rejection.UNSUPPORTED_FIELD if is_unknown else Rejection.INVALID_ORDER
        raise Refused(why, "; ".join(_said(each, path) for each in found)) from None


def _said(problem: FieldError, path: str) -> str:
    return f"{path}{problem.field} {problem.problem}"


#: Every field that is read by any adapter.
EVERYTHING = Reads(frozenset(FurtherFields.model_fields), frozenset({"modifiers", "notes"}))
_NONE = FurtherFields()
