"""Parts of an order beside its items: the way to the guest, money beside the prices, the payment.

All are optional, and none has a default: an order is written without the fields that were not given.
Text and lists may be empty, which says the same as leaving them out.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pos_gateway.domain.record import Money, Record

#: Maximum taxes, fees and discounts of an order, each; maximum items that a discount names.
CHARGES, DISCOUNTED = 10, 1000
#: What guest, counter and courier call an order: a name for a ticket.
DisplayId = Annotated[
    str, StringConstraints(max_length=30, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")
]
#: A name for a line of the order, by which discounts refer to the line.
LineRef = Annotated[str, StringConstraints(min_length=1, max_length=60)]
Email = Annotated[str, StringConstraints(max_length=254, pattern=r"^([^@\s]+@[^@\s]+)?$")]
OrderType = Literal["pickup", "delivery", "dine_in", "curbside"]
PrepMinutes = Annotated[int, Field(strict=True, ge=0, le=1440)]
Flag = Annotated[bool, Field(strict=True)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Positive = Annotated[int, Field(strict=True, gt=0, le=2**53)]


class Address(Record):
    """Where a delivery goes."""

    line1: _Text
    line2: str | None = None
    city: _Text
    region: str | None = None
    postal_code: str = Field(description="Empty in a country that has none.")
    country: Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")] = Field(
        description="ISO 3166-1, two capitals."
    )
    lat: (
        Annotated[int, Field(strict=True, ge=-90, le=90)]
        | Annotated[float, Field(strict=True, ge=-90, le=90)]
        | None
    ) = None
    lon: (
        Annotated[int, Field(strict=True, ge=-180, le=180)]
        | Annotated[float, Field(strict=True, ge=-180, le=180)]
        | None
    ) = None


class Courier(Record):
    """Who carries the order to the guest, and knows the address if the order has none."""

    name: str | None = None
    phone: str | None = None
    reference: Annotated[str, StringConstraints(max_length=50)] | None = None


class DeliveryInfo(Record):
    """How an order reaches the guest."""

    address: Address | None = None
    instructions: Annotated[str, StringConstraints(max_length=500)] | None = None
    contactless: Flag | None = None
    courier: Courier | None = None


class DineIn(Record):
    """Where the guests sit."""

    table: Annotated[str, StringConstraints(max_length=30)] | None = None
    guests: Annotated[int, Field(strict=True, ge=1, le=100)] | None = None


class Discount(Record):
    """Money off the order, or off the items named."""

    name: _Name
    amount: _Positive
    items: (
        Annotated[tuple[LineRef, ...], Field(min_length=1, max_length=DISCOUNTED, fail_fast=True)]
        | None
    ) = Field(None, description="The `ref` of each item that the discount is for.")
    id: str | None = None
    funded_by: Literal["merchant", "platform"] | None = Field(
        None, description="`merchant` if not given. `total` has no discount of the platform's."
    )

    @property
    def is_in_total(self) -> bool:
        """Whether the merchant gets less for the order."""
        return self.funded_by != "platform"


class Fee(Record):
    """What the guest pays for a service; also the courier's tip."""

    kind: Literal["delivery", "service", "bag", "small_order", "other"] | None = None
    name: _Name
    amount: _Positive
    taxable: Flag | None = None
    id: str | None = None


class Tax(Record):
    """A tax on the order. An inclusive tax is in the items' prices already."""

    name: _Name
    amount: Money
    rate: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,3}(\.[0-9]{1,6})?$")] | None = Field(
        None, description="Percent, as decimal text: `8.875`."
    )
    inclusive: Flag | None = None
    remitted_by: Literal["merchant", "platform"] | None = Field(
        None, description="`merchant` if not given. `total` has no tax that the platform remits."
    )

    @property
    def is_merchants(self) -> bool:
        """Whether the merchant remits the tax."""
        return self.remitted_by != "platform"

    @property
    def is_in_total(self) -> bool:
        """Whether the merchant gets the tax beside the items' prices."""
        return self.is_merchants and not self.inclusive


class Payment(Record):
    """How the guest has paid, elsewhere; an order without it is paid, too."""

    status: Literal["paid", "unpaid"] | None = None
    method: Literal["card", "cash", "wallet", "other"] | None = None
    source: Annotated[str, StringConstraints(max_length=255)] | None = None
    reference: Annotated[str, StringConstraints(max_length=40)] | None = None


Discounts = Annotated[tuple[Discount, ...], Field(max_length=CHARGES, fail_fast=True)]
Fees = Annotated[tuple[Fee, ...], Field(max_length=CHARGES, fail_fast=True)]
Taxes = Annotated[tuple[Tax, ...], Field(max_length=CHARGES, fail_fast=True)]
