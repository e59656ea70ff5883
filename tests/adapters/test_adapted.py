"""The event says of each field that a POS gets in a note, and of no other, that it was adapted.

Looked for in the bodies of the requests: the list and the notes may not disagree.
"""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.adapters import adapted, clover_order, hubrise_order, square_order, toast_order
from pos_gateway.adapters.adapted import NAMED, Adapted, As, summary
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from tests.adapters.test_optional_fields import ADDRESS
from tests.adapters.vendors import VENDORS, guid, order_of, sku_of

#: The requests' body, the names of its texts that are notes, and the fields whose place those are.
BODIES: dict[str, Callable[[Order, Merchant], object]] = {
    "square": square_order.creation,
    "toast": toast_order.content,
    "clover": lambda order, merchant: clover_order.Cart(order, merchant).encoded(),
    "hubrise": hubrise_order.content,
}
NOTES = {
    "square": {"note"},
    "toast": {"displayName", "tabName", "notes"},
    "clover": {"note"},
    "hubrise": {"customer_notes", "delivery_notes"},
}
OWN = {
    "square": {"items[0].notes"},
    "toast": {"display_id", "delivery.instructions"},
    "clover": {"notes", "items[0].notes"},
    "hubrise": {"notes", "items[0].notes", "delivery.instructions"},
}
#: A text that a note has if it has the field.
SIGNS = {
    "customer.name": "Ada Lovelace",
    "customer.phone": "0123-PH",
    "customer.email": "ada@example.com",
    "display_id": "D-17",
    "order_type": "dine_in",
    "fulfillment": "window seat",
    "scheduled_for": "for 20",
    "prep_minutes": "37 minutes",
    "utensils": "no utensils",
    "notes": "nuts!",
    "items[0].notes": "rare!",
    "items[0].modifiers[0]": "Bun!",
    "items[0].modifiers[0].notes": "cold!",
    "items[0].modifiers[0].modifiers[0]": "Ice!",
    "items[0].modifiers[0].modifiers[0].notes": "cubes!",
    "items[0].modifiers[1]": "words alone!",
    "delivery.address": "1 Main St",
    "delivery.instructions": "ring!",
    "delivery.contactless": "contactless",
    "delivery.courier": "courier Bo",
    "dine_in.table": "T-9",
    "dine_in.guests": "41 guests",
}
#: Beside a modifier's notes its name is in the note, too.
NAMES = {"items[0].modifiers[0]", "items[0].modifiers[0].modifiers[0]"}
DELIVERED = {
    "order_type": "delivery",
    "delivery": {"address": ADDRESS, "instructions": "ring!", "contactless": True},
}
WAYS: dict[str, dict[str, Any]] = {
    "delivered": DELIVERED,
    "carried": {"delivery": {**DELIVERED["delivery"], "courier": {"name": "Bo"}}},  # type: ignore[dict-item]
    "at a table": {"order_type": "dine_in", "dine_in": {"table": "T-9", "guests": 41}},
    "in words": {"fulfillment": "window seat"},
    "curbside": {"order_type": "curbside"},
}
SETTINGS: dict[str, list[dict[str, str]]] = {
    "square": [{}, {"delivery_as": "DELIVERY", "prep_minutes": "9", "dine_in_as": "IN_STORE"}],
    "toast": [
        {"delivery_dining_option": guid("d"), "dine_in_dining_option": guid("i")},
        {
            "delivery_dining_option": guid("d"),
            "dine_in_dining_option": guid("i"),
            "customer_phone": "6175550123",
            "customer_email": "a@example.com",
        },
    ],
    "clover": [{"scheduled_as": "NOTE"}, {"scheduled_as": "NOTE", "order_type": "OT1"}],
    "hubrise": [{}],
}


def merchant_of(vendor: str, **settings: str) -> Merchant:
    merchant = VENDORS[vendor].merchant
    return merchant.model_copy(update={"pos": {**merchant.pos, **settings}})


def full(vendor: str, way: str) -> Order:
    """An order with all optional fields that the POS takes."""
    at = datetime.now(UTC) + timedelta(minutes=90)
    ice = {"name": "Ice!", "sku": sku_of("ice"), "notes": "cubes!"}
    bun = {"name": "Bun!", "sku": sku_of("bun"), "notes": "cold!", "modifiers": [ice]}
    item = {"sku": sku_of("b"), "name": "Burger", "quantity": 2, "unit_price": 850}
    fields: dict[str, Any] = {
        "items": [{**item, "notes": "rare!", "modifiers": [bun, {"name": "words alone!"}]}],
        "customer": {"name": "Ada Lovelace", "phone": "0123-PH", "email": "ada@example.com"},
        "display_id": "D-17",
        "scheduled_for": at.isoformat(),
        "prep_minutes": 37,
        "utensils": False,
        "notes": "nuts!",
        "payment": {"method": "card", "source": "Web", "reference": "r-1"},
        **WAYS[way],
    }
    if vendor == "toast":
        del fields["prep_minutes"]
    return order_of(**fields)


def noted(value: Any, names: set[str]) -> Iterator[str]:
    """The notes in a request's body."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, str) and name in names:
            yield each
        elif isinstance(each, dict | list):
            yield from noted(each, names)


def listed(vendor: str, order: Order, merchant: Merchant) -> list[Adapted]:
    adapter: Any = VENDORS[vendor].adapter
    return list(adapter.adapted(order, merchant))


CASES = [
    (vendor, settings, way)
    for vendor in BODIES
    for settings in SETTINGS[vendor]
    for way in WAYS
    if (vendor, way) != ("toast", "carried")  # rejected
]


@pytest.mark.parametrize(("vendor", "settings", "way"), CASES)
def test_a_field_in_a_note_is_adapted_and_one_with_a_place_is_not(
    vendor: str, settings: dict[str, str], way: str
) -> None:
    order, merchant = full(vendor, way), merchant_of(vendor, **settings)
    sent = BODIES[vendor](order, merchant)
    assert isinstance(sent, bytes)
    found = [field for field, _ in listed(vendor, order, merchant)]
    assert len(set(found)) == len(found)
    note = "\n".join(noted(json.loads(sent), NOTES[vendor]))
    # A name that the note has twice, and a customer whose tab repeats who is known, have a place.
    repeated = NAMES if vendor in ("square", "hubrise") else set()
    if vendor == "toast" and "customer_phone" in settings:
        repeated = {"customer.name"}
    in_note = {path for path, sign in SIGNS.items() if sign in note} - OWN[vendor] - repeated
    said = {path for path in SIGNS if any(f"{path}.".startswith(f"{each}.") for each in found)}
    assert said - {"order_type"} == in_note - {"order_type"}
    assert {each for each in found if each not in SIGNS} <= {"delivery", *payment_of(vendor)}
    type_ = order.order_type
    assert ("order_type" in found) == (
        type_ is not None and type_ in note.replace(" / ", " ").split()
    )


def payment_of(vendor: str) -> set[str]:
    names = ("method", "source", "reference")
    return {f"payment.{each}" for each in names} if vendor == "clover" else set()


def test_each_field_says_where_it_is_read() -> None:
    """In the order of the notes: the order's first, then an item's."""
    said = {
        vendor: [
            f"{field} {as_}"
            for field, as_ in listed(
                vendor, full(vendor, "delivered"), merchant_of(vendor, **SETTINGS[vendor][0])
            )
        ]
        for vendor in BODIES
    }
    modifier = "items[0].modifiers[0]"
    notes = [f"{modifier}.notes", f"{modifier}.modifiers[0].notes"]
    assert said["square"] == [
        "order_type note",
        "customer.phone note",
        "delivery.address note",
        "delivery.instructions note",
        "delivery.contactless note",
        "utensils item_note",
        "notes item_note",
        *(f"{each} item_note" for each in notes),
    ]
    assert said["toast"] == [
        "customer.name tab_name",
        "customer.phone tab_name",
        "customer.email tab_name",
        "delivery.contactless delivery_note",
        "items[0].notes special_request",
        "utensils special_request",
        "notes special_request",
        *(f"{each} special_request" for each in notes),
        "items[0].modifiers[1] special_request",
    ]
    assert said["clover"] == [
        "customer.name note",
        "customer.phone note",
        "customer.email note",
        "order_type note",
        "scheduled_for note",
        "prep_minutes note",
        "delivery.address note",
        "delivery.instructions note",
        "delivery.contactless note",
        "utensils note",
        f"{modifier} item_note",
        "items[0].modifiers[1] item_note",
        "payment.method payment_note",
        "payment.reference payment_note",
        "payment.source payment_note",
    ]
    assert said["hubrise"] == [
        "prep_minutes note",
        "utensils note",
        "delivery.contactless delivery_note",
        *(f"{each} item_note" for each in notes),
    ]


def test_a_modifier_of_the_catalog_has_a_place_at_clover() -> None:
    order = full("clover", "delivered")
    catalog = {order.items[0].sku: "I1", sku_of("bun"): "M1"}
    merchant = merchant_of("clover", scheduled_as="NOTE").with_catalog(catalog)
    found = [field for field, as_ in listed("clover", order, merchant) if as_ == As.ITEM_NOTE]
    modifier = "items[0].modifiers[0]"
    assert found == [f"{modifier}.modifiers[0]", f"{modifier}.notes", "items[0].modifiers[1]"]


@pytest.mark.parametrize("vendor", ["square", "toast", "hubrise"])
def test_a_customer_whom_the_pos_takes_has_a_place_of_its_own(vendor: str) -> None:
    customer = {"name": "Ada Lovelace", "phone": "+14155552671", "email": "ada@example.com"}
    order, merchant = order_of(customer=customer, display_id="D-17"), merchant_of(vendor)
    assert isinstance(BODIES[vendor](order, merchant), bytes)
    assert listed(vendor, order, merchant) == []


class TestSummary:
    def of(self, order: Order, vendor: str = "square", **settings: str) -> dict[str, Any] | None:
        adapter: Any = VENDORS[vendor].adapter
        text = summary(adapter.adapted, order, merchant_of(vendor, **settings))
        return None if text is None else json.loads(text)

    @pytest.mark.parametrize("vendor", BODIES)
    def test_an_order_without_adaptations_has_none(self, vendor: str) -> None:
        assert self.of(order_of(), vendor) is None

    def test_rest_adapts_nothing(self) -> None:
        assert not hasattr(VENDORS["rest"].adapter, "adapted")

    def test_few_are_all_named(self) -> None:
        assert self.of(order_of(utensils=True)) == {
            "adapted": [{"field": "utensils", "as": "item_note"}]
        }

    @pytest.mark.parametrize("modifiers", [NAMED, NAMED + 1, 250])
    def test_many_are_counted(self, modifiers: int) -> None:
        item = {"sku": "b", "name": "B", "quantity": 2, "unit_price": 850}
        noted = [{"name": "x" * 99, "notes": "y" * 99}] * modifiers
        found = self.of(order_of(items=[{**item, "modifiers": noted}]))
        assert found is not None
        assert [each["field"] for each in found["adapted"]] == [
            f"items[0].modifiers[{number}].notes" for number in range(NAMED)
        ]
        assert found.get("adapted_more", 0) == modifiers - NAMED
        assert ("adapted_more" in found) == (modifiers > NAMED)

    def test_the_longest_has_two_kilobytes(self) -> None:
        path = "items[999]" + ".modifiers[249]" * 3 + ".notes"

        def deep(order: Order, merchant: Merchant) -> Iterator[Adapted]:
            return iter([Adapted(path, As.SPECIAL_REQUEST)] * 5000)

        text = summary(deep, order_of(), VENDORS["square"].merchant)
        assert text is not None
        assert len(text) < 2600

    def test_an_order_that_will_be_refused_has_none(self) -> None:
        """Found out before the order is claimed: the refusal is the adapter's."""
        order = order_of(order_type="pickup", dine_in={"table": "7"}, utensils=True)
        assert self.of(order) is None

    def test_no_text_of_the_orders_is_in_it(self) -> None:
        order = full("clover", "carried")
        adapter: Any = VENDORS["clover"].adapter
        text = summary(adapter.adapted, order, merchant_of("clover", scheduled_as="NOTE"))
        assert text is not None
        assert not [sign for sign in SIGNS.values() if sign in text and sign != "contactless"]


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", "1", "{", '{"adapted": 1}', '{"adapted": [{"field": "x"}]}']
)
def test_a_summary_that_is_none_has_no_fields(text: str | None) -> None:
    """A row's text that was changed by hand keeps no order from being shown."""
    assert adapted.adapted_in(text) == ([], 0)


def test_words_without_a_text_are_none() -> None:
    assert adapted.words("x", "") == adapted.words("x", None) == []
