"""Retention: what is kept of terminal orders, for how long, and what it is still used for."""

from pathlib import Path

import pytest

from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.events import relay
from pos_gateway.ledger.pruning import prune_orders
from pos_gateway.settings import DAY, Settings
from tests.gate import Gate

ACCEPTED = (200, {"status": "accepted", "id": "pos-1"})


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PRUNE_ORDERS_EVERY", 0.0)


def leader_prunes(gate: Gate) -> None:
    """Prune as the leader does, until nothing is left to prune."""
    gate.events._prune()
    before = None
    while (after := gate.rows("select order_id, payload from orders")) != before:
        before = after
        for _ in range(20):
            gate.events._prune_orders()


@pytest.mark.usefixtures("_no_pauses")
def test_retention_follows_the_settings(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED, settings={"keep_events": 2.0, "keep_orders": 5.0})
    gate.take(gate.an_order(customer={"name": "Quackenbush"}))
    gate.publish_events()
    for days, events, orders in ((1.9, 1, 1), (0.2, 0, 1), (2.8, 0, 1), (0.2, 0, 0)):
        gate.wait(days * DAY)
        leader_prunes(gate)
        assert len(gate.recorded()) == events
        [(payload,)] = gate.rows("select payload from orders")
        assert (payload is not None) is bool(orders)
    gate.wait(30 * DAY)
    leader_prunes(gate)
    assert gate.rows("select * from orders") == []


@pytest.mark.usefixtures("_no_pauses")
def test_without_a_retention_nothing_is_pruned(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED, settings={"keep_events": 0, "keep_orders": 0})
    gate.take(gate.an_order())
    gate.publish_events()
    gate.wait(1000 * DAY)
    leader_prunes(gate)
    assert gate.recorded() == [("accepted", None)]
    assert gate.rows("select payload is not null from orders") == [(1,)]


def test_orders_are_kept_for_at_least_a_day() -> None:
    """For a redelivery."""
    with pytest.raises(InvalidSettings, match="KEEP_ORDERS: should be 0 or at least 1"):
        Settings.from_environment({"POS_GATEWAY_KEEP_ORDERS": "0.5"})
    assert Settings.from_environment({"POS_GATEWAY_KEEP_ORDERS": "1"}).keep_orders == 1


def pruned(gate: Gate, days: float) -> None:
    gate.wait(days * DAY)
    list(prune_orders(gate.database, gate.clock.now().timestamp() - DAY))


def test_a_cancel_request_for_a_pruned_order_is_not_recorded_as_cancelled(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    pruned(gate, 20)
    assert gate.rows("select payload, external_id from orders") == [(None, "pos-1")]
    said = len(gate.said)
    gate.take_cancel()
    assert len(gate.said) == said
    assert gate.recorded() == [("accepted", None), ("accepted", "not_cancelled")]
    [(why,)] = gate.rows("select reason_message from events where reason_code = 'not_cancelled'")
    assert why.startswith("unknown_order")


def test_an_order_that_was_cancelled_before_it_arrived_is_not_sent_a_year_later(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    order = gate.an_order(seconds=400 * DAY)
    gate.take_cancel()
    pruned(gate, 360)
    gate.take(order)
    assert (gate.said, gate.recorded()) == ([], [("cancelled", None)])
    assert gate.row_state(action="cancel") == "cancelled"
    pruned(gate, 40)
    assert gate.row_state() is None  # the row does not stay for ever


def test_a_redelivered_pruned_order_is_not_sent_and_has_an_event(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    order = gate.an_order()
    gate.take(order)
    gate.publish_events()
    pruned(gate, 20)
    said = len(gate.said)
    gate.take(order)
    [told] = gate.repeated()
    assert (told["type"], told["position"], len(gate.said)) == ("order.accepted", 1, said)
