"""``pos-gateway enqueue``: every good line goes, every bad one is named."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.broker import topology
from testkit.servers.proxy import Proxy
from tests.cli.conftest import Orders, Program, press_ctrl_c

MakeOrder = Callable[..., dict[str, Any]]


def lines(*records: Any) -> str:
    return "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records)


def test_every_line_is_sent_and_blank_lines_are_ignored(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    path = connected.folder / "orders.jsonl"
    path.write_text("\ufeff" + lines(order("a"), "", "   ", order("b"), order("c")))
    done = connected.run("enqueue", str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 sent, 0 refused\n", "")
    assert sorted(orders.take(3)) == ["a", "b", "c"]


def test_bad_lines_are_reported_in_their_order_and_the_good_ones_still_go(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    history = datetime.now(UTC) - timedelta(hours=2)
    bad = {
        "not JSON": '{"order_id": "x", ',
        "a list": "[1, 2]",
        "a key twice": '{"order_id": "x", "order_id": "y"}',
        "NaN": '{"total": NaN}',
        "half a character": json.dumps(order(extra="\ud800")),
        "too deep": "[" * 100_000,
        "a string for a number": order(total="450"),
        "a negative quantity": order(
            items=[{"sku": "s", "name": "n", "quantity": -1, "unit_price": 1}]
        ),
        "the past": order(
            placed_at=(history - timedelta(hours=1)).isoformat(), deliver_by=history.isoformat()
        ),
        "before it was placed": order(deliver_by=history.isoformat()),
        "no merchant": {k: v for k, v in order().items() if k != "merchant_id"},
        "a terminal's escape sequence": order(currency="\x1b[31m"),
        "5 MB": order(fulfillment={"note": "x" * 5_000_000}),
        "5 MB in many strings": order(extra=["x" * 4000] * 1250),
    }
    mixed = [each for record in bad.values() for each in (record, order("good"))]
    done = connected.run("enqueue", "-", stdin=lines(*mixed))
    reported = done.stderr.splitlines()
    assert done.returncode == 1
    assert done.stdout == f"{len(bad)} sent, {len(bad)} refused\n"
    numbers = [int(line.split(":")[0].removeprefix("line ")) for line in reported]
    assert sorted(set(numbers)) == [1 + 2 * n for n in range(len(bad))]
    assert numbers == sorted(numbers)
    expected = (
        "line 1: (record): is not JSON: Expecting property name",
        "line 3: (record): is a list",
        "line 5: (record): gives the key 'order_id' twice",
        "line 7: (record): NaN is not JSON",
        "line 9: (record): has half a character",
        "line 11: (record): is nested too deeply",
        "line 13: total: input should be a valid integer (got '450')",
        "line 15: items[0].quantity: input should be greater than or equal to 1 (got -1)",
        "line 17: deliver_by: is in the past",
        "line 19: deliver_by: is not after placed_at",
        "line 21: merchant_id: is required",
        "line 23: currency: string should match",
        "line 25: ",
        "line 27: (record): no worker would take it: the message has 5",
    )
    for beginning in expected:
        assert any(line.startswith(beginning) for line in reported), (beginning, reported)
    assert "\x1b" not in done.stderr
    assert all(len(line) < 400 for line in reported)
    assert orders.take(len(bad)) == ["good"] * len(bad)


def test_a_late_order_is_sent_only_as_one_that_may_have_been_before(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    history = datetime.now(UTC) - timedelta(hours=2)
    placed = (history - timedelta(hours=1)).isoformat()
    late = lines(order("late", placed_at=placed, deliver_by=history.isoformat()))
    done = connected.run("enqueue", "-", stdin=late)
    assert done.returncode == 1
    assert "enqueue --again" in done.stderr
    done = connected.run("enqueue", "--again", "-", stdin=late)
    assert (done.returncode, done.stdout) == (0, "1 sent, 0 refused\n")
    assert orders.take(1) == ["late"]


def test_a_line_that_is_not_utf_8_is_refused(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    done = connected.run("enqueue", "-", stdin=b'{"a": "\xff"}\n' + lines(order()).encode())
    assert done.returncode == 1
    assert done.stderr.startswith("line 1: (record): is not UTF-8 (byte 0xff at offset 7)")
    assert orders.take(1) == ["o-1"]


def test_a_line_longer_than_16_mib_is_refused_with_its_number(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    endless = json.dumps(order(notes="x" * (20 * 2**20)))
    done = connected.run("enqueue", "-", stdin=lines(order("a"), endless, order("b")))
    assert done.returncode == 1
    assert done.stderr == "line 2: (record): the line is longer than 16777216 bytes\n"
    assert sorted(orders.take(2)) == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_list_is_refused_with_what_would_do(
    connected: Program, order: MakeOrder, indent: int | None
) -> None:
    done = connected.run("enqueue", "-", stdin=json.dumps([order(), order()], indent=indent))
    assert (done.returncode, done.stdout) == (1, "0 sent, 1 refused\n")
    assert "wanted is one order a line" in done.stderr
    assert "jq -c '.[]'" in done.stderr


def test_a_broker_that_is_down_is_one_sentence(program: Program, order: MakeOrder) -> None:
    done = program.run("enqueue", "-", stdin=lines(*[order(str(n)) for n in range(100)]))
    assert (done.returncode, done.stdout) == (1, "0 sent, 0 refused\n")
    assert len(done.stderr.splitlines()) == 1
    assert "cannot reach the broker at amqp://" in done.stderr
    assert "0 sent, nothing from line 1 on" in done.stderr


def test_a_broker_that_goes_away_leaves_the_line_to_go_on_from(
    program: Program, broker_url: str, orders: Orders, order: MakeOrder
) -> None:
    with Proxy(broker_url) as proxy:
        program.settings["POS_GATEWAY_BROKER_URL"] = proxy.url
        sending = program.start("enqueue", "-")
        assert sending.stdin is not None
        sending.stdin.write(lines(order("a")))
        sending.stdin.flush()
        orders.take(1)
        proxy.down()
        stdout, stderr = sending.communicate(lines(order("b"), order("c")))
    assert sending.returncode == 1
    sent = int(stdout.split()[0])  # the confirm of the first may have been lost on its way
    assert sent <= 1
    assert f"nothing from line {sent + 1} on" in stderr


def test_a_missing_queue_is_said(connected: Program, orders: Orders, order: MakeOrder) -> None:
    sending = connected.start("enqueue", "-")
    assert sending.stdin is not None
    sending.stdin.write(lines(order("a")))
    sending.stdin.flush()
    orders.take(1)
    with orders.connection.channel() as channel:
        topology.orders_queue.bind(channel).delete()
    stdout, stderr = sending.communicate(lines(order("b")))
    assert (sending.returncode, stdout) == (1, "1 sent, 0 refused\n")
    assert "no queue takes messages" in stderr
    assert "nothing from line 2 on" in stderr


def test_ctrl_c_finishes_what_was_begun(
    connected: Program, orders: Orders, order: MakeOrder
) -> None:
    sending = connected.start("enqueue", "-")
    assert sending.stdin is not None
    sending.stdin.write(lines(*[order(str(n)) for n in range(3)]))
    sending.stdin.flush()
    orders.take(3)
    stdout, stderr = press_ctrl_c(sending)
    assert (sending.returncode, stdout, stderr) == (130, "3 sent, 0 refused\n", "")


def test_the_canary_gets_its_share(connected: Program, orders: Orders, order: MakeOrder) -> None:
    done = connected.run("enqueue", "-", "--canary-percent", "100", stdin=lines(order()))
    assert done.returncode == 0
    assert orders.left() == 0
    with orders.connection.channel() as channel:
        assert topology.canary_queue.bind(channel).queue_declare(passive=True)[1] == 1


def test_a_file_that_is_not_there_is_said(program: Program) -> None:
    done = program.run("enqueue", "nowhere.jsonl")
    assert done.returncode == 2
    assert "nowhere.jsonl" in done.stderr
