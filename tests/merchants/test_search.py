"""Merchants are found by a part of their id or provider, ten thousand of them."""

from sqlalchemy import Engine

from pos_gateway.merchants.search import search
from pos_gateway.merchants.store import MerchantStore
from tests.merchants.test_store import a_merchant


def ids(engine: Engine, part: str, **terms: object) -> list[str]:
    return [each.merchant_id for each in search(engine, part, **terms)]  # type: ignore[arg-type]


def test_a_part_of_the_id_or_the_provider_is_found(engine: Engine, store: MerchantStore) -> None:
    store.put(
        [
            a_merchant("pizza-1", provider="Acme"),
            a_merchant("Pizza-2", paused=True),
            a_merchant("sushi", provider="pizzas", adapter="square"),
            a_merchant("100%"),
            a_merchant("a_b"),
        ]
    )
    assert {*ids(engine, "PIZZA")} == {"pizza-1", "Pizza-2", "sushi"}
    assert ids(engine, "acm") == ["pizza-1"]
    assert ids(engine, "%") == ["100%"]
    assert ids(engine, "_") == ["a_b"]
    assert ids(engine, "no such") == []
    assert len(ids(engine, "")) == 5
    [found] = search(engine, "pizza-2")
    assert (found.provider, found.adapter, found.paused) == (None, "rest", True)


def test_pages_follow_each_other(engine: Engine, store: MerchantStore) -> None:
    store.put(a_merchant(f"m{number:05}", provider="acme") for number in range(10_000))
    assert ids(engine, "m0999", most=4) == ["m09990", "m09991", "m09992", "m09993"]
    assert ids(engine, "m0999", most=4, after="m09997") == ["m09998", "m09999"]
    assert ids(engine, "acme", most=2, after="m00041") == ["m00042", "m00043"]
