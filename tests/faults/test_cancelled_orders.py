"""Orders that are cancelled, whenever the wish comes, and with a real worker."""

from typing import Any

from tests.faults.lab import UNKEYED, FaultLab
from tests.worker.lab import PATIENCE


def told(lab: FaultLab, order_id: str) -> list[str]:
    return [event["type"] for event in lab.backend.events(order_id)]


def test_a_wish_to_cancel_has_one_right_result_whenever_it_comes(lab: FaultLab) -> None:
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
        lab.backend.cancel("m", "after")  # twice: nothing more comes of it
        lab.backend.cancel("refuses", "kept")
        lab.wait_for_events("after", 2)
        lab.wait_for_events("kept", 2)
        lab.merchants.profile("m", {"kind": "accept", "latency": 2.0})
        lab.place("m", "during")
        lab.merchants.wait_until(merchant_id="m", in_flight=1, timeout=30)
        lab.backend.cancel("m", "during")
        lab.wait_for_events("during", 2)
    assert told(lab, "before") == ["order.cancelled"]
    assert told(lab, "after") == told(lab, "during") == ["order.accepted", "order.cancelled"]
    assert told(lab, "kept") == ["order.accepted", "order.accepted"]
    assert lab.backend.events("kept")[1]["reason"]["code"] == "not_cancelled"
    assert lab.merchants.order("m", "before") is None
    lab.verdict()


def test_an_order_in_doubt_is_asked_for_before_it_is_sent_again_or_cancelled(
    lab: FaultLab,
) -> None:
    """The POS made neither of them: one is sent again, the other is cancelled for certain."""
    lab.open_merchants("queryable-0", adapter="queryable", request_timeout=2)
    lost: dict[str, Any] = {**UNKEYED, "create": {"kind": "reset"}, "lookups": {"kind": "accept"}}
    lab.merchants.profile("queryable-0", lost)
    with lab.worker():
        lab.place("queryable-0", "sent-again", "cancelled")
        for order_id in ("sent-again", "cancelled"):
            lab.wait_for_row("queryable-0", order_id, state="in_doubt")
        lab.backend.cancel("queryable-0", "cancelled")
        lab.merchants.wait_until(merchant_id="queryable-0", cancels=1, timeout=PATIENCE)
        lab.merchants.profile("queryable-0", UNKEYED)  # what is sent from now on is made
        lab.settle()
    assert told(lab, "sent-again") == ["order.accepted"]
    assert told(lab, "cancelled") == ["order.cancelled"]
    assert lab.merchants.merchant("queryable-0")["lookups"] > 0
    lab.verdict()
