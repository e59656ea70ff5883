"""Which merchants are in trouble, and which are the worst."""

from typing import Any

import pytest

from pos_gateway.admission.breaker import BreakerState
from pos_gateway.admission.symptoms import MerchantStatus
from pos_gateway.admission.trouble import is_in_trouble, worst

WELL: dict[str, Any] = {
    "in_flight": 0,
    "waiting": 0,
    "agreed": 10,
    "limit": 10,
    "light": False,
    "silent": False,
    "breaker": BreakerState.CLOSED,
    "troubled": False,
    "parked": 0,
}


def a_merchant(name: str = "m", **fields: Any) -> MerchantStatus:
    return MerchantStatus(name, **{**WELL, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"in_flight": 10}, False),
        ({"in_flight": 10, "troubled": True}, False),  # at its limit, and no order waits
        ({"waiting": 5}, False),  # for a slot
        ({"waiting": 1, "troubled": True}, True),
        ({"parked": 1}, True),
        ({"unsent": True}, True),
        ({"silent": True, "troubled": True}, False),  # it was, when it last had an order
        ({"silent": True, "troubled": True, "in_flight": 1}, True),
        ({"breaker": BreakerState.OPEN, "troubled": True}, True),
        ({"breaker": BreakerState.HALF_OPEN, "troubled": True}, True),
    ],
)
def test_a_merchant_is_in_trouble_when_its_orders_wait_because_of_it(
    fields: dict[str, Any], expected: bool
) -> None:
    assert is_in_trouble(a_merchant(**fields)) is expected


def test_the_worst_have_the_most_waiting_orders_and_then_an_open_breaker() -> None:
    merchants = [
        a_merchant("well", in_flight=9),
        a_merchant("silent", silent=True, troubled=True, in_flight=2),
        a_merchant("half open", breaker=BreakerState.HALF_OPEN, troubled=True),
        a_merchant("open", breaker=BreakerState.OPEN, troubled=True),
        a_merchant("some parked", parked=5),
        a_merchant("parked and waiting", parked=4, waiting=3, troubled=True),
        a_merchant("some parked, open", parked=5, breaker=BreakerState.OPEN, troubled=True),
    ]
    by_severity = ["parked and waiting", "some parked, open", "some parked", "open", "half open"]
    assert [each.merchant_id for each in worst(merchants, 10)] == [*by_severity, "silent"]
    assert [each.merchant_id for each in worst(iter(merchants), 2)] == by_severity[:2]
    assert [each.merchant_id for each in worst(merchants[2:5], 2)] == ["some parked", "open"]
    assert [each.merchant_id for each in worst(merchants[1:5], 4)] == [*by_severity[2:], "silent"]
