"""POSes that forget idempotency keys, and orders that are in doubt for longer than that."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.attempt.doubt import KEY_KEPT_FOR
from pos_gateway.transport.errors import NoValidReply
from tests.gate import Gate

LOST = NoValidReply("timeout", "no reply in time")


class Forgetful:
    """Keeps a key for this long; creates an order for each request, even if its reply is lost."""

    def __init__(self, folder: Path, keeps: float) -> None:
        self.gate = Gate(folder, self)
        self.made: list[str] = []
        self.keys: dict[str, float] = {}
        self.keeps = keeps
        #: Losses of requests, of replies to creates, and of those to look-ups.
        self.lost: set[str] = {"replies"}

    def __call__(self, request: Any) -> Any:
        if "requests" in self.lost:
            return LOST
        if request.method == "GET":
            if "look-ups" in self.lost:
                return LOST
            return (200, {"id": "1", "status": "accepted"}) if self.made else (404, {})
        key, now = request.headers["Idempotency-Key"], self.gate.hand.seconds
        if now - self.keys.get(key, -1e9) >= self.keeps:
            self.keys[key] = now
            self.made.append(key)
        return LOST if "replies" in self.lost else (201, {"id": "1", "status": "accepted"})

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.gate.said]


@pytest.fixture
def pos(tmp_path: Path) -> Forgetful:
    return Forgetful(tmp_path, keeps=KEY_KEPT_FOR + 300)


def test_an_order_that_is_long_in_doubt_is_looked_up_before_it_is_sent_again(
    pos: Forgetful,
) -> None:
    gate, order = pos.gate, pos.gate.an_order(seconds=3 * 86400)
    gate.take(order)
    pos.lost = {"requests"}
    gate.wait(40)
    gate.take(order)
    gate.wait(25 * 3600)
    pos.lost = set()
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    assert (pos.made, pos.methods) == (["o1"], ["POST", "POST", "GET"])


@pytest.mark.parametrize("pause", [60.0, KEY_KEPT_FOR - 60])
def test_an_order_that_is_sent_repeatedly_is_created_once(pos: Forgetful, pause: float) -> None:
    """Each attempt renews the doubt, and the POS has the key since the first."""
    gate, order = pos.gate, pos.gate.an_order(seconds=86400)
    pos.lost = {"replies", "look-ups"}
    for _ in range(40):
        gate.take(order)
        gate.wait(pause)
    pos.lost = set()
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    assert pos.made == ["o1"]


def test_an_order_that_is_not_found_is_sent_with_its_key(pos: Forgetful) -> None:
    gate, order = pos.gate, pos.gate.an_order(seconds=86400)
    pos.lost = {"requests"}
    gate.take(order)
    gate.wait(7200)
    pos.lost = set()
    gate.ledger.catch_up()
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    assert (pos.made, pos.methods) == (["o1"], ["POST", "GET", "POST"])


def test_an_order_briefly_in_doubt_is_sent_again_without_a_look_up(pos: Forgetful) -> None:
    gate, order = pos.gate, pos.gate.an_order(seconds=86400)
    gate.take(order)
    pos.lost = set()
    gate.wait(KEY_KEPT_FOR - 1)
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    assert pos.methods == ["POST", "POST"]


@pytest.mark.parametrize("hours", [-30, 0.1, 30])
def test_an_order_is_looked_up_whatever_the_wall_clock_says(pos: Forgetful, hours: float) -> None:
    gate, order = pos.gate, pos.gate.an_order(seconds=86400 * 3)
    gate.take(order)
    with gate.database.begin() as connection:
        connection.exec_driver_sql(f"update orders set created_at = created_at + {hours * 3600}")
    gate.wait(30)
    pos.lost = set()
    gate.take(order)
    assert (gate.recorded(), pos.methods) == ([("accepted", None)], ["POST", "GET"])


def test_an_order_is_looked_up_although_the_wall_clock_was_set_back(pos: Forgetful) -> None:
    gate, order = pos.gate, pos.gate.an_order(seconds=86400)
    gate.take(order)
    gate.wait(2 * KEY_KEPT_FOR)
    with gate.database.begin() as connection:  # as if the order were just here, by that clock
        connection.exec_driver_sql(
            f"update orders set created_at = created_at + {2 * KEY_KEPT_FOR}"
        )
    pos.lost = set()
    gate.take(order)
    assert (gate.recorded(), pos.methods) == ([("accepted", None)], ["POST", "GET"])
