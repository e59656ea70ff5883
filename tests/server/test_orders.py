"""What a viewer sees of an order and of its events: nothing that a person may have written."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.database.engine import open_database
from pos_gateway.domain.masking import MASK, masked_reason
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.attempts import RecordedAttempt
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.runtime.vault import Vault
from pos_gateway.server.masked_events import masked_event
from pos_gateway.server.orders import Orders
from tests.orders import an_order
from tests.server.lab import migrated

WHO = "Quackenbush"
#: A POS's words; with what begins an event's order in them.
WORDS = f'not for {WHO},"order":{{}}'


def standing(action: Action) -> OrderStanding:
    return OrderStanding(
        *("m-1", "o-1", action, State.FAILED, None, 1, 1, 0, None, False, "failed", 0, "x-1"),
        *("refused", WORDS, 2.0, 1.0, 1.0, None, None),
    )


def an_attempt() -> RecordedAttempt:
    return RecordedAttempt(
        *(1.0, "send", 0.1, 0.1, 0.1, 0.1, 0.1, 422, "failed", "refused", WORDS, "worker-1")
    )


def an_event(order_json: str, kind: str = "failed", code: str = "refused") -> bytes:
    """As it is published."""
    row = Row(
        *(1, 1, "e-1", kind, "m-1", "o-1", 1.0, "x-1", code, WORDS, 1, None, order_json),
        *("square", "square"),
    )
    return Hydration(Payloads(Vault())).message(row).body


class Ledger:
    """An order that has failed, and whose cancellation has, too."""

    def one(self, key: Key) -> OrderStanding:
        return standing(key.action)

    def attempts(self, key: Key) -> Sequence[RecordedAttempt]:
        return [an_attempt()]

    def of_order(self, key: Key, *_: int) -> Sequence[Any]:
        row = Row(
            *(1, 1, "e-1", "failed", "m-1", "o-1", 1.0, "x-1", "refused", WORDS, 1, None),
            *(json.dumps(an_order(customer={"name": WHO})), "square", "square"),
        )
        return [Hydration(Payloads(Vault())).message(row)]


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    engine = open_database(migrated(f"sqlite:///{tmp_path}/gateway.db"))
    yield Orders(engine, Ledger(), Ledger())  # type: ignore[arg-type]
    engine.dispose()


def reasons_in(content: Any) -> Iterator[Any]:
    """Every reason, at every depth."""
    match content:
        case dict():
            for name, value in content.items():
                if name == "reason":
                    yield value
                yield from reasons_in(value)
        case list():
            for each in content:
                yield from reasons_in(each)


def test_a_viewer_sees_no_words_of_a_pos(orders: Orders) -> None:
    shown = orders.show("m-1", "o-1", reveal=False)
    assert WHO not in json.dumps(shown)
    known, masked = {"code": "refused", "message": MASK}, {"code": MASK, "message": MASK}
    places = [
        shown["reason"],
        shown["attempts"][0]["reason"],
        shown["cancellation"]["reason"],
        shown["cancellation"]["attempts"][0]["reason"],
        shown["events"][0]["reason"],
    ]
    assert places == list(reasons_in(shown)) == [known, known, masked, masked, known]


def test_a_poss_own_code_is_masked_with_its_words() -> None:
    """A POS's code may be a sentence about the customer."""
    for kind, code, is_shown in (
        ("rejected", f"no {WHO}", False),
        ("order.rejected", f"no {WHO}", False),
        ("cancelled", f"by {WHO}", False),
        ("order.cancelled_by_pos", WHO, False),
        ("retry", "not_cancelled", False),
        ("cancelled", "resolved", True),
        ("order.failed", "http_401", True),
    ):
        assert masked_reason(kind, code) == (code if is_shown else MASK, MASK)
    event = masked_event(an_event(json.dumps(an_order()), kind="rejected", code=f"no {WHO}"))
    assert WHO not in json.dumps(event)
    assert event["reason"] == {"code": MASK, "message": MASK}


def test_a_backend_sees_them(orders: Orders) -> None:
    shown = orders.show("m-1", "o-1", reveal=True)
    assert list(reasons_in(shown)) == [{"code": "refused", "message": WORDS}] * 5


def test_a_viewers_event_has_neither_a_poss_words_nor_the_customer() -> None:
    whole = an_order(customer={"name": WHO}, notes=WHO, channel={"by": WHO})
    event = masked_event(an_event(json.dumps(whole)))
    assert WHO not in json.dumps(event)
    assert event["reason"] == {"code": "refused", "message": MASK}
    assert event["order"]["total"] == whole["total"]
    assert event["order"]["customer"] == event["order"]["channel"] == MASK
    assert event["merchant"] == {"provider": "square", "adapter": "square"}


@pytest.mark.parametrize(
    "order_json",
    [
        json.dumps({"order_id": "o-1", "name": WHO}),
        json.dumps(an_order(currency=WHO)),
        json.dumps(an_order())[:-1] + f', "x": {"[" * 197}"{WHO}"{"]" * 197}}}',
        json.dumps(an_order())[:-1] + f', "x": {"[" * 199}"{WHO}"{"]" * 199}}}',
    ],
    ids=["no_order", "invalid", "nested_deeply", "nested_more_deeply_than_an_event_may_be"],
)
def test_every_event_can_be_masked(order_json: str) -> None:
    """One that could not would end every viewer's stream, and keep all behind it from them."""
    event = masked_event(an_event(order_json))
    assert WHO not in json.dumps(event)
    assert event["order"] == MASK or event["order"]["x"] == MASK


def test_an_event_without_its_order_says_so() -> None:
    event = masked_event(an_event("nothing"))
    assert event["order"] is None
    assert event["incomplete"]
