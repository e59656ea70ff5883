"""Stable and canary workers on two queues: which workers take the canary's orders, and when."""

from typing import Any

from kombu import Connection

from pos_gateway.broker import topology
from tests.worker.lab import PATIENCE, Lab

ORDERS = [f"o{number}" for number in range(10)]


def test_stable_workers_take_the_canarys_orders_only_while_it_has_no_worker(lab: Lab) -> None:
    """None while it consumes, though they are idle; all, also unacknowledged ones, once it ends."""
    lab.open_merchants("m")
    in_hand: list[Any] = []
    with lab.worker():
        lab.wait_for_workers(1, topology.CANARY_KEY)
        with (
            Connection(lab.broker_url) as canary,
            canary.Consumer([topology.canary_queue], on_message=in_hand.append),
        ):
            lab.submit_to_canary("m", *ORDERS)
            while len(in_hand) < len(ORDERS):
                canary.drain_events(timeout=PATIENCE)
        lab.events_until_all_ended(ORDERS)
    assert lab.merchants.summary()["creates"] == len(ORDERS)
