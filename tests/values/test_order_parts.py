"""The parts of an order beside its items: checked at intake, and written as they came."""

import json
from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.masking import MASK, masked
from pos_gateway.domain.order import MODIFIERS, Order
from pos_gateway.ledger.submissions import digest
from tests.orders import an_order

ADDRESS = {"line1": "1 Main St", "city": "Boston", "postal_code": "02215", "country": "US"}
AT, LATER = "2026-01-31T12:00:00Z", "2026-01-31T13:30:00+01:00"
BURGER = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
#: All parts, each whole. The items: 2 * (850 + 2 * (10 + 3 * (4 + 1))).
WHOLE: dict[str, Any] = {
    "order_id": "o1",
    "merchant_id": "m1",
    "placed_at": AT,
    "deliver_by": "2026-01-31T14:00:00Z",
    "currency": "EUR",
    "items": [
        {
            **BURGER,
            "ref": "line 1",
            "modifiers": [
                {
                    "name": "Coke",
                    "quantity": 2,
                    "unit_price": 10,
                    "notes": "cold",
                    "modifiers": [
                        {
                            "name": "lime",
                            "sku": "l",
                            "quantity": 3,
                            "unit_price": 4,
                            "modifiers": [{"name": "peeled", "unit_price": 1}],
                        },
                        {"name": "no ice"},
                    ],
                }
            ],
        }
    ],
    "total": 2030,
    "tip": 50,
    "customer": {
        "name": "Ada L.",
        "email": "ada@example.com",
        "first_name": "Ada",
        "last_name": "L.",
    },
    "display_id": "A 17 🍔",
    "order_type": "delivery",
    "scheduled_for": LATER,
    "prep_minutes": 20,
    "delivery": {
        "address": {**ADDRESS, "line2": "door 3", "region": "MA", "lat": 42, "lon": -71.5},
        "instructions": "ring twice",
        "contactless": True,
        "courier": {"name": "Bo", "phone": "1", "reference": "C-7"},
    },
    "dine_in": {"table": "7", "guests": 2},
    "discounts": [
        {
            "name": "Ten off",
            "amount": 100,
            "items": ["line 1"],
            "id": "d",
            "funded_by": "merchant",
        },
        {"name": "Welcome", "amount": 500, "funded_by": "platform"},
    ],
    "fees": [
        {"kind": "delivery", "name": "Courier", "amount": 300, "taxable": False},
        {"name": "Bag", "amount": 10},
    ],
    "taxes": [
        {"name": "City", "amount": 20, "rate": "1.125", "remitted_by": "merchant"},
        {"name": "State", "amount": 99, "remitted_by": "platform"},
        {"name": "VAT", "amount": 70, "rate": "7", "inclusive": True},
    ],
    "payment": {"status": "paid", "method": "card", "source": "Shop", "reference": "P-1"},
    "utensils": False,
}


def readings(record: dict[str, Any]) -> list[Order]:
    """The order by each way to read it."""
    text = json.dumps(record).encode()
    quick = Order.read(text)
    assert quick is not None, "else the model has read it"
    return [quick, Order.parse_json(text), Order.parse(record), Order.parse(record, text)]


def errors(record: dict[str, Any]) -> list[str]:
    text = json.dumps(record).encode()
    assert Order.read(text) is None
    found = []
    for parse in (lambda: Order.parse_json(text), lambda: Order.parse(record)):
        with pytest.raises(InvalidOrder) as caught:
            parse()
        found.append([str(each) for each in caught.value.errors])
    assert [each.split(" (got")[0] for each in found[0]] == [
        each.split(" (got")[0] for each in found[1]
    ]
    return found[0]


def wrong(**fields: Any) -> list[str]:
    return errors(an_order(**fields))


def with_modifiers(*modifiers: Any, **fields: Any) -> dict[str, Any]:
    return an_order(items=[{**BURGER, "modifiers": list(modifiers)}], **fields)


def test_an_order_with_every_part_is_read_and_written_as_it_came() -> None:
    for order in readings(WHOLE):
        written = json.loads(order.to_json())
        assert written.pop("scheduled_for") == LATER
        came = {name: value for name, value in WHOLE.items() if name != "scheduled_for"}
        [item] = came["items"]
        [coke] = item["modifiers"]
        lime, ice = coke["modifiers"]
        [peeled] = lime["modifiers"]
        one = {"quantity": 1, "unit_price": 0}
        below = [{**lime, "modifiers": [{**one, **peeled}]}, {**one, **ice}]
        came["items"] = [{**item, "modifiers": [{**coke, "modifiers": below}]}]
        assert written == came
        assert json.loads(order.source) == WHOLE
        assert order.items[0].price == 850 + 2 * (10 + 3 * 5)


def test_an_order_without_any_part_is_written_as_before() -> None:
    record = {name: WHOLE[name] for name in ("order_id", "merchant_id", "placed_at", "deliver_by")}
    record |= {"currency": "EUR", "items": [BURGER], "total": 1700, "customer": {"name": "A"}}
    for order in readings(record):
        written = json.dumps({**record, "items": [{**BURGER, "modifiers": []}]})
        assert order.to_json().decode() == written.replace(": ", ":").replace(", ", ",")


@pytest.mark.parametrize("name", ["discounts", "fees", "taxes"])
def test_an_empty_list_of_charges_is_none(name: str) -> None:
    """A total of other money than the items' is a matter of backend and POS as before."""
    for order in readings(an_order(total=1, **{name: []})):
        assert order.total == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"display_id": "A" * 31}, "display_id: string should have at most 30 characters"),
        ({"display_id": "A\n17"}, "display_id: string should match pattern"),
        ({"display_id": 17}, "display_id: input should be a valid string"),
        ({"order_type": "drone"}, "order_type: input should be 'pickup', 'delivery', 'dine_in'"),
        ({"order_type": ""}, "order_type: input should be"),
        ({"scheduled_for": "soon"}, "scheduled_for: should be a time as RFC 3339 has it"),
        ({"prep_minutes": -1}, "prep_minutes: input should be greater than or equal to 0"),
        ({"prep_minutes": 1441}, "prep_minutes: input should be less than or equal to 1440"),
        ({"prep_minutes": "20"}, "prep_minutes: input should be a valid integer"),
        ({"customer": {"email": "ada"}}, "customer.email: string should match pattern"),
        ({"customer": {"email": "a@b@c"}}, "customer.email: string should match pattern"),
        ({"customer": {"email": "a" * 250 + "@b.cc"}}, "customer.email: string should have at m"),
        ({"delivery": "1 Main St"}, "delivery: should be an object"),
        ({"delivery": {"address": {}}}, "delivery.address.line1: is required"),
        ({"delivery": {"address": {**ADDRESS, "city": ""}}}, "delivery.address.city: string sho"),
        ({"delivery": {"address": {**ADDRESS, "country": "USA"}}}, "delivery.address.country: "),
        ({"delivery": {"address": {**ADDRESS, "lat": 91}}}, "delivery.address.lat"),
        ({"delivery": {"instructions": "x" * 501}}, "delivery.instructions: string should have a"),
        ({"delivery": {"contactless": "yes"}}, "delivery.contactless: input should be a valid b"),
        ({"delivery": {"courier": {"reference": "x" * 51}}}, "delivery.courier.reference: stri"),
        ({"order_type": "delivery"}, "delivery.address: is required where order_type is delivery"),
        ({"order_type": "delivery", "delivery": {}}, "delivery.address: is required where order"),
        ({"dine_in": {"guests": 0}}, "dine_in.guests: input should be greater than or equal to 1"),
        ({"dine_in": {"guests": 101}}, "dine_in.guests: input should be less than or equal to 1"),
        ({"dine_in": {"table": "x" * 31}}, "dine_in.table: string should have at most 30"),
        ({"discounts": [{"name": "x", "amount": 0}]}, "discounts[0].amount: input should be gre"),
        ({"discounts": [{"name": "x", "amount": -5}]}, "discounts[0].amount: input should be gr"),
        ({"discounts": [{"name": "", "amount": 5}]}, "discounts[0].name: string should have at"),
        ({"discounts": [{"name": "x" * 65, "amount": 5}]}, "discounts[0].name: string should ha"),
        ({"discounts": [{"amount": 5}]}, "discounts[0].name: is required"),
        ({"discounts": [{"name": "x", "amount": 5}] * 11}, "discounts: tuple should have at mos"),
        (
            {"discounts": [{"name": "x", "amount": 5, "items": ["x"]}], "total": 1695},
            "discounts[0].items: has a ref that no item has (got 'x')",
        ),
        (
            {"discounts": [{"name": "x", "amount": 1800}], "total": 0},
            "total: should be -100: items 1700 - discounts 1800 + fees 0 + taxes 0 (got 0)",
        ),
        ({"fees": [{"name": "x", "amount": 1.5}]}, "fees[0].amount: input should be a valid int"),
        ({"fees": [{"name": "x", "amount": 5, "kind": "beer"}]}, "fees[0].kind: input should be"),
        (
            {"fees": [{"name": "x", "amount": 5}], "total": 1700},
            "total: should be 1705: items 1700 - discounts 0 + fees 5 + taxes 0 (got 1700)",
        ),
        ({"taxes": [{"name": "x", "amount": -1}]}, "taxes[0].amount: input should be greater"),
        ({"taxes": [{"name": "x", "amount": 1, "rate": 7}]}, "taxes[0].rate: input should be a v"),
        ({"taxes": [{"name": "x", "amount": 1, "rate": "7,5"}]}, "taxes[0].rate: string should m"),
        (
            {"taxes": [{"name": "x", "amount": 1, "inclusive": True}], "total": 1701},
            "total: should be 1700: items 1700 - discounts 0 + fees 0 + taxes 0 (got 1701)",
        ),
        ({"payment": {"status": "maybe"}}, "payment.status: input should be 'paid' or 'unpaid'"),
        ({"payment": {"reference": "x" * 41}}, "payment.reference: string should have at most"),
        ({"utensils": "no"}, "utensils: input should be a valid boolean"),
        (
            {"items": [{**BURGER, "ref": "1"}, {**BURGER, "ref": "1"}]},
            "items: have a ref twice; give each item its own (got '1')",
        ),
        ({"items": [{**BURGER, "ref": "x" * 61}]}, "items[0].ref: string should have at most 60"),
    ],
)
def test_a_malformed_part_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    assert wrong(**fields)[0].startswith(said)


def test_an_order_is_for_a_time_within_a_week_after_it_is_placed() -> None:
    base = {"placed_at": AT, "deliver_by": "2026-02-20T12:00:00Z"}
    for at in (AT, "2026-02-07T12:00:00Z"):
        for order in readings(an_order(**base, scheduled_for=at)):
            assert order.scheduled_for is not None
    for at in ("2026-01-31T11:59:59Z", "2026-02-07T12:00:01Z"):
        [error] = wrong(**base, scheduled_for=at)
        assert error.startswith("scheduled_for: is not within 7 days after placed_at")


def test_a_courier_may_have_the_address() -> None:
    order = an_order(order_type="delivery", delivery={"courier": {"name": "Bo"}})
    assert len(readings(order)) == 4


def test_a_ref_counts_however_its_name_is_written() -> None:
    record = an_order(items=[{**BURGER, "ref": "1"}, {**BURGER, "ref": "1"}], total=3400)
    text = json.dumps(record).replace('"ref"', r'"re\u0066"').encode()
    assert Order.read(text) is None
    with pytest.raises(InvalidOrder, match="have a ref twice"):
        Order.parse_json(text)


def test_all_broken_rules_are_named_at_once() -> None:
    found = wrong(
        placed_at=AT,
        deliver_by=AT,
        scheduled_for="2020-01-01T00:00:00Z",
        order_type="delivery",
        fees=[{"name": "x", "amount": 5}],
    )
    named = [each.split(":")[0] for each in found]
    assert named == ["deliver_by", "scheduled_for", "delivery.address", "total"]


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "deepest"}
    for _ in range(depth - 1):
        found = {"name": "x", "modifiers": [found]}
    return found


def test_modifiers_have_three_levels() -> None:
    assert len(readings(with_modifiers(nested(3)))) == 4
    [error] = errors(with_modifiers(nested(4)))
    assert error.startswith("items: has 4 levels of modifiers; 3 are allowed")
    # What is deeper by far ends at the fourth level.
    [error] = errors(with_modifiers(nested(60)))
    assert error.startswith("items: has 4 levels")


def test_nested_modifiers_count_before_any_is_validated() -> None:
    """Each of 250 modifiers has 40 invalid ones: 10,000, none of which is looked at."""
    many = [{"name": "x", "modifiers": [{"nonsense": 1}] * 40}] * 250
    [error] = errors(with_modifiers(*many))
    assert error.startswith(f"items: has 10250 modifiers in all; {MODIFIERS} are allowed")
    most = [{"name": "x", "modifiers": [{"name": "y"}] * 19}] * 250
    assert Order.parse(with_modifiers(*most)).total == 1700
    found = errors(with_modifiers({"name": "x", "modifiers": [{"name": "y"}] * 251}))
    assert found[0].startswith("items[0].modifiers[0].modifiers: tuple should have at most 250")


@pytest.mark.parametrize("below", ["ice", {"name": "ice"}, [7], [None], [{"name": 7}]])
def test_a_malformed_nested_modifier_is_refused_by_name(below: Any) -> None:
    [error] = errors(with_modifiers({"name": "x", "modifiers": below}))
    assert error.startswith("items[0].modifiers[0].modifiers")


def test_unknown_fields_of_parts_are_passed_on() -> None:
    delivery = {"address": {**ADDRESS, "floor": 3}, "zone": [1]}
    for order in readings(an_order(delivery=delivery)):
        assert json.loads(order.to_json())["delivery"] == delivery


def test_the_parts_of_a_shown_order_have_no_personal_data() -> None:
    shown = masked(Order.parse(WHOLE))
    text = json.dumps(shown, ensure_ascii=False)
    for personal in ("Ada", "ada@", "Main", "ring", "Bo", "A 17", "Welcome", "no ice", "cold"):
        assert personal not in text
    assert shown["items"][0]["modifiers"][0]["modifiers"][0]["name"] == "lime"
    assert shown["discounts"][0] == {
        **dict.fromkeys(("name", "id"), MASK),
        "amount": 100,
        "items": ["line 1"],
        "funded_by": "merchant",
    }


def test_the_same_order_has_the_same_digest_however_its_parts_are_written() -> None:
    order = digest(Order.parse(WHOLE))
    others = WHOLE | {
        "scheduled_for": "2026-01-31T12:30:00Z",
        "delivery": dict(reversed(WHOLE["delivery"].items())),
        "dine_in": {**WHOLE["dine_in"], "room": None},
    }
    assert digest(Order.parse(others)) == order
    assert digest(Order.parse(WHOLE | {"utensils": True})) != order
    plain, null = an_order(), {"display_id": None, "taxes": None, "customer": None}
    assert digest(Order.parse(plain)) == digest(Order.parse(plain | null))
