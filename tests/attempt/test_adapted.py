"""What an order is adapted by is durable before the POS has the order, by the merchant's record of that moment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.adapted import Adapted, As
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.transport.errors import NotSent, NoValidReply
from tests.gate import Gate

ACCEPTED = (200, {"status": "accepted", "id": "pos-1"})


class Noting(RestAdapter):
    """Carries notes by a setting."""

    asked = 0

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        self.asked += 1
        if order.notes:
            yield Adapted("notes", As(merchant.provider or "note"))


def a_gate(folder: Path, pos: Any, **merchant: Any) -> Gate:
    gate = Gate(folder, pos, **merchant)
    gate.adapters["rest"] = Noting()
    return gate


def kept(gate: Gate) -> Any:
    with gate.database.connect() as connection:
        [text] = connection.exec_driver_sql("select adapted from orders").scalars()
    return text and json.loads(text)


NOTE = {"adapted": [{"field": "notes", "as": "note"}]}


def test_it_is_durable_when_the_pos_gets_the_order(tmp_path: Path) -> None:
    found = []

    def pos(_: Any) -> Any:
        found.append(kept(gate))
        return ACCEPTED

    gate = a_gate(tmp_path, pos)
    gate.take(gate.an_order(notes="nuts"))
    assert found == [NOTE]
    assert kept(gate) == NOTE


def test_an_order_without_adaptations_has_none(tmp_path: Path) -> None:
    gate = a_gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    assert kept(gate) is None


@pytest.mark.parametrize("error", [NotSent("refused", "x"), NoValidReply("timeout", "x")])
def test_an_order_that_is_sent_again_has_that_of_the_last_time(
    tmp_path: Path, error: Exception
) -> None:
    answers: list[Any] = [error, ACCEPTED]
    gate = a_gate(tmp_path, lambda _: answers.pop(0))
    order = gate.an_order(notes="nuts")
    gate.take(order)
    assert kept(gate) == NOTE
    gate.adapters["rest"].adapted = lambda *_: iter([])  # type: ignore[attr-defined]
    gate.take(order)
    assert kept(gate) is None


def test_an_order_that_is_looked_up_keeps_it(tmp_path: Path) -> None:
    answers: list[Any] = [(202, {"status": "pending", "id": "pos-1"}), ACCEPTED]
    gate = a_gate(tmp_path, lambda _: answers.pop(0))
    order = gate.an_order(notes="nuts")
    gate.take(order)
    gate.adapters["rest"].adapted = lambda *_: iter([])  # type: ignore[attr-defined]
    gate.take(order)
    assert gate.row_state() == "accepted"
    assert kept(gate) == NOTE


def test_an_order_that_is_not_sent_is_not_looked_through(tmp_path: Path) -> None:
    gate = a_gate(tmp_path, lambda _: ACCEPTED, paused=True)
    gate.take(gate.an_order(notes="nuts"), settled=True)
    adapter = gate.adapters["rest"]
    assert isinstance(adapter, Noting)
    assert adapter.asked == 0


def test_an_adapters_mistake_ends_the_order_as_any_of_its_mistakes(tmp_path: Path) -> None:
    """Nothing is sent: the order is dead-lettered by name, and its worker goes on."""
    gate = a_gate(tmp_path, lambda _: ACCEPTED, provider="nowhere")
    gate.take(gate.an_order(notes="nuts"))
    assert gate.recorded() == [("failed", "internal_error")]
    assert gate.said == []
