"""Previews ask the ledger about many orders at once, and say what they would say of each alone."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, update

from pos_gateway.administration.bulk import doubt, operations, read_ahead
from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.letters import LetterWork
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction, Subject
from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.database.schema import orders
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.runtime.vault import Vault
from tests.bulk.lab import Desk, an_order

MANY, TOGETHER = 120, 50
STATES = [None, *State]


def row(number: int, state: State, action: Action = Action.SUBMIT) -> dict[str, Any]:
    order_id = f"o-{number}"
    payload = Payloads(Vault(None)).seal(
        Key("m-1", order_id), json.dumps(an_order(order_id)).encode()
    )
    later = (datetime.now(UTC) + timedelta(hours=1)).timestamp()
    known = {"merchant_id": "m-1", "order_id": order_id, "action": action, "state": state}
    times = {"created_at": 1.0, "updated_at": 1.0, "deliver_by": later}
    counts = dict.fromkeys(("epoch", "attempts", "deaths", "reopened"), 1)
    last_event = "in_doubt" if state is State.IN_DOUBT else None
    return (
        known
        | times
        | counts
        | {"payload": payload, "pending": False, "last_event": last_event, "ticket": number}
    )


@pytest.fixture
def ledger(engine: Engine) -> Engine:
    """Orders in every state, some that it does not know, and some with a cancel request."""
    rows = []
    for number in range(MANY):
        state = STATES[number % len(STATES)]
        rows += [] if state is None else [row(number, state)]
        if number % 5 == 0:
            rows.append(row(number, State.NEW, Action.CANCEL))
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    return engine


@pytest.fixture
def statements(ledger: Engine) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(*given: Any) -> None:
        seen.append(given[2])

    event.listen(ledger, "before_cursor_execute", note)
    yield seen
    event.remove(ledger, "before_cursor_execute", note)


class _Letters(list[DeadLetter]):
    """A queue of letters."""

    others = 0

    def __enter__(self) -> "_Letters":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def letters() -> _Letters:
    found = _Letters()
    for number in range(MANY):
        order_id = f"o-{number}"
        task = wire.CANCEL_ORDER if number % 7 == 0 else wire.SUBMIT_ORDER
        order = an_order(order_id)
        if task == wire.CANCEL_ORDER:
            order = {name: order[name] for name in ("order_id", "merchant_id", "deliver_by")}
        body = wire.body_of(json.dumps(order).encode())
        headers = {"task": task}
        found.append(
            DeadLetter(order_id, order_id, "m-1", "token", "no", 1.0, headers, body, number, None)
        )
    return found


def test_a_preview_asks_of_many_at_once_and_says_the_same(
    ledger: Engine, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = letters()

    def work(_url: str, **given: Any) -> LetterWork:
        return LetterWork("", queue=lambda *_, **__: made, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(operations, "LetterWork", work)
    monkeypatch.setattr(read_ahead, "TOGETHER", TOGETHER)
    bulk = Desk(ledger, "memory://", "kim").bulk
    for action in BulkAction:
        filter_, options = BulkFilter(), BulkOptions()
        statements.clear()
        together = list(bulk.found(action, filter_, options))
        asked = len(statements)
        with monkeypatch.context() as patch:
            patch.setattr(read_ahead.ReadAheadOrderAdmin, "read", lambda *_, **__: None)
            alone = list(bulk.found(action, filter_, options))
        assert together == alone
        assert len(together) > MANY / len(STATES)
        assert asked <= 2 * -(-MANY // TOGETHER) + len(doubt.DOUBTFUL), action
        if action is not BulkAction.ACCEPTED:
            assert len(statements) > 3 * asked
        if action.subject is Subject.LETTERS:
            assert len({each.refusal for each in together}) > 3


def test_a_preview_that_selects_no_letter_hears_of_a_stop_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "TOGETHER", TOGETHER)
    given: dict[str, Any] = dict.fromkeys(("judge", "acting"))
    work = LetterWork("", is_selected=lambda _: False, queue=lambda *_, **__: letters(), **given)  # type: ignore[arg-type]
    assert list(work.found()) == [None] * 3


def test_what_is_held_of_letters_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "BYTES", 100)
    monkeypatch.setattr(read_ahead, "TOGETHER", 3)
    batches = read_ahead.in_batches([60, 60, 1, 1, 1, 500, 1], lambda each: each)
    assert list(batches) == [[60, 60], [1, 1, 1], [500], [1]]


def test_what_was_not_read_ahead_is_read_now(ledger: Engine) -> None:
    payloads = Payloads(Vault(None))
    ahead, admin = read_ahead.ReadAheadOrderAdmin(ledger, payloads), OrderAdmin(ledger, payloads)
    ahead.read([Key("m-1", "o-1")], with_orders=True)
    for number in (1, 2):
        for action in Action:
            key = Key("m-1", f"o-{number}", action)
            assert ahead.one(key) == admin.one(key)
            assert ahead.order_json(key) == admin.order_json(key)


def test_a_preview_of_orders_in_doubt_reads_a_page_at_a_time_and_each_order_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a look-up changes meanwhile, which is last then."""
    states = [State.IN_DOUBT] * 7 + [State.CLAIMED, State.SENDING] * 3
    rows = [row(n, state) | {"doubt_since": 1.0} for n, state in enumerate(states)]
    rows.append(row(90, State.IN_DOUBT, Action.CANCEL) | {"doubt_since": 1.0})
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    for module in (doubt, read_ahead):
        monkeypatch.setattr(module, "TOGETHER", 2)
    most = 0
    read = OrderAdmin._read

    def counted(self: OrderAdmin, query: Any) -> Any:
        nonlocal most
        most = max(most, len(found := read(self, query)))
        return found

    monkeypatch.setattr(OrderAdmin, "_read", counted)
    found = Desk(engine, "memory://", "kim").bulk.found(
        BulkAction.ACCEPTED, BulkFilter(), BulkOptions()
    )
    first = next(found)
    with engine.begin() as connection:
        changed = update(orders).where(orders.c.order_id == first.order_id)
        connection.execute(changed.values(updated_at=9.0))
    ids = [first.order_id, *(each.order_id for each in found)]
    assert sorted(ids) == sorted(f"o-{n}" for n in range(len(states)))
    assert most == 2
