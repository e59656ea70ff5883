"""What operators do while a real worker runs: replay, resolve, cancel."""

from tests.cli.books import Books
from tests.cli.conftest import Program
from tests.worker.conftest import lab
from tests.worker.lab import Lab, by_type

__all__ = ["lab"]


def test_orders_that_needed_an_operator_are_sent_once_and_end(
    lab: Lab, connected: Program, books: Books
) -> None:
    lab.open_merchants("fast-1")
    lab.merchants.profile("fast-1", {"kind": "fail", "status": 404})
    with lab.worker():
        lab.submit("fast-1", "replayed")
        [failed] = lab.events(1)
        assert (failed["type"], failed["reason"]["code"]) == ("order.failed", "http_404")
        lab.merchants.profile("fast-1", {"kind": "accept"})
        lab.wait_until_queued("orders.dead", 1)
        refused = connected.invoke("dead", "replay", "replayed", "--merchant", "no-such")
        assert refused.exit_code == 1
        books.in_doubt("resolved", merchant_id="fast-1")
        for command in (
            ("dead", "replay", "replayed"),
            ("orders", "resolve", "resolved", "--not-sent"),
        ):
            done = connected.invoke(*command)
            assert done.exit_code == 0, done.stderr
        told = by_type(lab.events(3))
        assert sorted(told["order.accepted"]) == ["replayed", "resolved"]
        assert told["order.in_doubt"] == ["resolved"]
        # Told once more, the same is refused: the POS has them.
        refused = connected.invoke("orders", "resolve", "resolved", "--not-sent")
        assert "is not in doubt: it is accepted" in refused.stderr
        assert connected.invoke("cancel", "replayed", "--merchant", "fast-1").exit_code == 0
        [cancelled] = lab.events(1)
        assert (cancelled["type"], cancelled["order_id"]) == ("order.cancelled", "replayed")
    made = {order["order_id"]: order["creates"] for order in lab.merchants.orders()}
    assert made == {"replayed": 1, "resolved": 1}
    assert lab.queued("orders.dead") == 0
    listed = connected.invoke("orders", "list", "--order", "replayed")
    assert "accepted\tcancelled" in listed.stdout
