"""Orders in doubt that expire or are cancelled."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from kombu import Connection

from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.wire import submit_message
from pos_gateway.cli.root import root
from tests.faults.lab import UNKEYED, FaultLab
from tests.orders import an_order

#: The POS reads the order and hangs up, and has no look-up.
SILENT: dict[str, Any] = {
    **UNKEYED,
    "create": {"kind": "reset"},
    "lookups": {"kind": "fail", "status": 500},
}


def events_of(lab: FaultLab, order_id: str) -> list[str]:
    return [event["type"] for event in lab.backend.events(order_id)]


def requests(lab: FaultLab, poses: list[str]) -> dict[str, int]:
    """How often each POS was sent its order."""
    return {pos: lab.merchants.merchant(pos)["requests"] for pos in poses}


def operate(lab: FaultLab, *arguments: str) -> str:
    """The output of ``pos-gateway`` for an operator."""
    environment = {
        "POS_GATEWAY_BROKER_URL": lab.broker_url,
        "POS_GATEWAY_DATABASE_URL": lab.database_url,
        "USER": "kim",
    }
    done = CliRunner().invoke(root, arguments, env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout


def let_expire(lab: FaultLab, poses: list[str]) -> None:
    """Let the orders' deadlines have passed, in their messages and by the ledger."""
    for pos in poses:
        lab.expire(pos, pos)
    publisher = Publisher(lab.broker_url)
    with Connection(lab.broker_url) as connection:
        for message in [connection.default_channel.basic_get("orders") for _ in range(2)]:
            (order,), *_ = json.loads(message.body)
            times = an_order(seconds=-0.5)
            order |= {name: times[name] for name in ("placed_at", "deliver_by")}
            body = wire.body_of(json.dumps(order).encode())
            publisher.publish(Message("orders", "orders", body, order["order_id"], message.headers))
            message.channel.basic_ack(message.delivery_tag)
    publisher.close()


def test_an_order_that_expires_in_doubt_is_looked_up_and_not_sent_again(
    lab: FaultLab,
) -> None:
    poses = lab.open_poses(request_timeout=1.0)
    for pos in poses:
        lab.merchants.profile(pos, SILENT)
    with lab.worker():
        for pos in poses:
            lab.place(pos, pos)
        for pos in poses:
            lab.wait_for_row(pos, pos, state="in_doubt")
    lab.wait_until_queued("orders", 2)  # the third's POS is not asked again
    let_expire(lab, poses)
    with lab.worker():
        for pos in poses:
            lab.wait_for_events(pos, 1)
        assert all(events_of(lab, pos) == ["order.in_doubt"] for pos in poses)
        listed = operate(lab, "orders", "list", "--state", "in_doubt")
        assert all(pos in listed for pos in poses)
        sent = requests(lab, poses)
        asked = {pos: lab.merchants.merchant(pos)["lookups"] for pos in poses}
        lab.merchants.profile(
            "keyed-*", {"create": {"kind": "accept"}, "lookups": {"kind": "accept"}}
        )
        lab.merchants.profile("queryable-*", UNKEYED)
        for pos in poses[:2]:  # each answers that it does not know the order
            lab.wait_for_row(pos, pos, state="expired")
            lab.wait_for_events(pos, 2)
    assert (
        events_of(lab, "keyed-0")
        == events_of(lab, "queryable-0")
        == ["order.in_doubt", "order.expired"]
    )
    assert events_of(lab, "blind-0") == ["order.in_doubt"]
    assert lab.ledger("blind-0", "blind-0")[0] == "in_doubt"  # it needs an operator
    for pos in poses[:2]:
        assert lab.merchants.merchant(pos)["lookups"] > asked[pos]
    assert lab.merchants.summary()["creates"] == 0
    assert requests(lab, poses) == sent
    assert list(sent.values())[1:] == [1, 1]  # a second create could be a second order there
    lab.verdict()


def test_an_order_with_an_extended_deadline_is_sent_although_its_old_message_arrives_first(
    lab: FaultLab,
) -> None:
    lab.open_merchants("blind-0", adapter="blind", request_timeout=2)
    lab.merchants.profile("blind-0", {**UNKEYED, "create": {"kind": "reset"}})
    with lab.worker():
        lab.wait_for_worker()
        lab.place("blind-0", "o1")
        lab.wait_for_events("o1", 1)
    lab.expire("blind-0", "o1")
    old = an_order("o1", "blind-0", seconds=-1, placed_at="2026-01-01T00:00:00+00:00")
    publisher = Publisher(lab.broker_url)
    publisher.publish(submit_message("o1", json.dumps(old).encode(), routing_key="orders"))
    publisher.close()
    lab.wait_until_queued("orders", 1)
    operate(lab, "orders", "resolve", "o1", "--not-sent", "--for", "30m")
    lab.merchants.profile("blind-0", UNKEYED)
    with lab.worker():
        lab.wait_for_row("blind-0", "o1")
        lab.wait_for_events("o1", 2)
    assert events_of(lab, "o1") == ["order.in_doubt", "order.accepted"]
    lab.verdict()


@pytest.mark.parametrize(
    ("decision", "then", "cancels"),
    [
        ("--accepted", ["order.in_doubt", "order.accepted", "order.cancelled"], 1),
        ("--not-sent", ["order.in_doubt", "order.cancelled"], 0),
    ],
)
def test_a_cancel_request_waits_until_an_operator_resolves_an_order_at_a_pos_without_look_up(
    lab: FaultLab, decision: str, then: list[str], cancels: int
) -> None:
    lab.open_merchants("blind-0", adapter="blind", request_timeout=2)
    create = {"kind": "reset", "makes_order": decision == "--accepted"}
    lab.merchants.profile("blind-0", {**UNKEYED, "create": create, "lookups": {"kind": "accept"}})
    with lab.worker():
        lab.place("blind-0", "o1")
        lab.wait_for_events("o1", 1)
        lab.backend.cancel("blind-0", "o1")
        lab.wait_for_row("blind-0", "o1", action="cancel", state="new")
        assert lab.merchants.merchant("blind-0")["requests"] == 1
        operate(lab, "orders", "resolve", "o1", decision)
        lab.wait_for_events("o1", len(then))
        lab.wait_for_row("blind-0", "o1", action="cancel")
    assert events_of(lab, "o1") == then
    pos = lab.merchants.merchant("blind-0")
    assert (pos["requests"], pos["cancels"]) == (1, cancels)
