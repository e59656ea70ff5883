"""Cancel requests at every moment of an order, with a real worker."""

from typing import Any

from tests.faults.lab import UNKEYED, FaultLab
from tests.worker.lab import PATIENCE


def events_of(lab: FaultLab, order_id: str) -> list[str]:
    return [event["type"] for event in lab.backend.events(order_id)]


def test_a_cancel_request_has_one_right_outcome_whenever_it_arrives(lab: FaultLab) -> None:
    lab.open_merchants("m", "refuses", request_timeout=10)
    lab.merchants.profile(
        "refuses", {"create": {"kind": "accept"}, "lookups": {"kind": "fail", "status": 409}}
    )
    lab.backend.cancel("m", "before")
    with lab.worker():
        lab.wait_for_row("m", "before", action="cancel")
        lab.place("m", "before", "after")
        lab.place("refuses", "kept")
        lab.settle()
        lab.backend.cancel("m", "after")
        lab.backend.cancel("m", "after")  # twice, with one event
        lab.backend.cancel("refuses", "kept")
        lab.wait_for_events("after", 2)
        lab.wait_for_events("kept", 2)
        lab.merchants.profile("m", {"kind": "accept", "latency": 2.0})
        lab.place("m", "during")
        lab.merchants.wait_until(merchant_id="m", in_flight=1)
        lab.backend.cancel("m", "during")
        lab.wait_for_events("during", 2)
    assert events_of(lab, "before") == ["order.cancelled"]
    assert (
        events_of(lab, "after") == events_of(lab, "during") == ["order.accepted", "order.cancelled"]
    )
    assert events_of(lab, "kept") == ["order.accepted", "order.accepted"]
    assert lab.backend.events("kept")[1]["reason"]["code"] == "not_cancelled"
    assert lab.merchants.order("m", "before") is None
    lab.verdict()


def test_an_order_in_doubt_is_looked_up_before_it_is_sent_again_or_cancelled(
    lab: FaultLab,
) -> None:
    """The POS created neither: one is sent again, the other is cancelled for certain."""
    lab.open_merchants("queryable-0", adapter="queryable", request_timeout=2)
    lost: dict[str, Any] = {**UNKEYED, "create": {"kind": "reset"}, "lookups": {"kind": "accept"}}
    lab.merchants.profile("queryable-0", lost)
    with lab.worker():
        lab.place("queryable-0", "sent-again", "cancelled")
        for order_id in ("sent-again", "cancelled"):
            lab.wait_for_row("queryable-0", order_id, state="in_doubt")
        lab.backend.cancel("queryable-0", "cancelled")
        lab.merchants.wait_until(merchant_id="queryable-0", cancels=1, timeout=PATIENCE)
        lab.merchants.profile("queryable-0", UNKEYED)  # orders sent from now on are created
        lab.settle()
    assert events_of(lab, "sent-again") == ["order.accepted"]
    assert events_of(lab, "cancelled") == ["order.cancelled"]
    assert lab.merchants.merchant("queryable-0")["lookups"] > 0
    lab.verdict()
