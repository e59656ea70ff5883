"""What an order was adapted by is in its row before the first byte, and in each event of an acceptance."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, update

from pos_gateway.database.schema import orders
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.archive import Archive
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Outbox, Row
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, State, StepMark
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed, without_event
from tests.ledger.test_callbacks import HERE, of

Workers = Callable[..., Worker]

SAID = {"adapted": [{"field": "utensils", "as": "note"}], "adapted_more": 3}
ADAPTED = json.dumps(SAID)
CLEAR = Payloads(Vault())


def sent(one: Worker, adapted: str | None = ADAPTED, **options: Any) -> Claim:
    fields = {"send": True, "endpoint": HERE, "order": b"{}", "adapted": adapted, **options}
    return claimed(one.claim(KEY, **fields))


def published(engine: Engine) -> list[dict[str, Any]]:
    """The events, as the leader publishes them; read again they are the same."""
    outbox = Outbox(engine)
    term = outbox.look()[0]
    term = outbox.take("one", term.epoch) or term
    term = outbox.assign(term, 100) or term
    rows: list[Row] = outbox.read(0, 100)
    outbox.show(term)
    outbox.resign(term)
    outbox.close()
    hydration = Hydration(CLEAR)
    found = [hydration.message(row).body for row in rows]
    kept = Archive(engine, hydration).by_ids([row.event_id for row in rows])[0]
    assert len(kept) == len(rows)
    again = [
        message.body for _, message in Archive(engine, hydration)._hydrated([r.id for r in rows])
    ]
    assert again == found
    return [json.loads(each) for each in found]


def said(engine: Engine) -> list[dict[str, Any]]:
    return [{name: each[name] for name in SAID if name in each} for each in published(engine)]


def called_back(engine: Engine, kind: Kind = Kind.ACCEPTED) -> None:
    ledger = CallbackLedger(engine, CLEAR, dehydrated)
    ledger.apply([of(kind)])
    ledger.close()


def resolved(engine: Engine) -> None:
    admin = OrderAdmin(engine, CLEAR)
    seen = admin.one(KEY)
    assert seen is not None
    admin.change(seen, an_entry(), operator="kim", what="x", details="")


def test_the_event_of_an_accepted_order_says_it(worker: Workers, engine: Engine) -> None:
    one = worker()
    assert one.finish(sent(one), an_entry())
    assert said(engine) == [SAID]


def test_an_order_that_a_callback_accepts_before_its_worker_says_it(
    worker: Workers, engine: Engine
) -> None:
    one = worker()
    claim = sent(one)
    called_back(engine)
    assert not one.finish(claim, an_entry())
    assert said(engine) == [SAID]


@pytest.mark.parametrize("accept", [called_back, resolved])
def test_a_later_acceptance_says_it(
    worker: Workers, engine: Engine, accept: Callable[[Engine], None]
) -> None:
    one = worker()
    assert one.finish(sent(one), without_event(State.PENDING, pending=True))
    accept(engine)
    assert said(engine) == [SAID]


def test_a_look_up_finds_the_order_as_it_was_sent(worker: Workers, engine: Engine) -> None:
    """Whatever the merchant's record is by then."""
    one = worker()
    assert one.finish(sent(one), without_event(State.PENDING, pending=True))
    assert one.finish(sent(one, '{"adapted": []}'), an_entry())
    assert said(engine) == [SAID]


@pytest.mark.parametrize("kind", [Kind.REJECTED, Kind.CANCELLED])
def test_no_other_event_says_it(worker: Workers, engine: Engine, kind: Kind) -> None:
    one = worker()
    assert one.finish(sent(one), an_entry(kind))
    assert said(engine) == [{}]


def test_an_order_that_is_sent_again_is_as_it_is_sent_then(
    worker: Workers, engine: Engine, rows: Rows
) -> None:
    """To another POS, say, or by the merchant's new settings."""
    one = worker()
    assert one.finish(sent(one), without_event())
    claim = one.sending(sent(one, None), HERE)
    assert claim is not None
    assert rows.order().adapted is None
    assert one.finish(claim, an_entry())
    assert said(engine) == [{}]


def test_an_order_that_is_claimed_and_then_sent_says_it(worker: Workers, engine: Engine) -> None:
    one = worker()
    assert one.finish(claimed(one.claim(KEY, send=False, order=b"{}")), without_event())
    claim = one.sending(sent(one), HERE)
    assert claim is not None
    assert one.finish(claim, an_entry())
    assert said(engine) == [SAID]


def test_a_later_step_leaves_it(worker: Workers, engine: Engine, rows: Rows) -> None:
    one = worker()
    claim = one.sending(sent(one), HERE, step=StepMark(0, "pay"), progress="{}")
    assert claim is not None
    assert rows.order().adapted == ADAPTED
    assert one.finish(claim, without_event(State.PENDING, pending=True))
    claim = one.sending(sent(one, None), HERE, step=StepMark(0, "print"), progress="{}")
    assert claim is not None
    assert one.finish(claim, an_entry())
    assert said(engine) == [SAID]


def test_a_row_that_the_database_has_lost_is_restored_with_it(
    worker: Workers, engine: Engine
) -> None:
    one = worker()
    claim = sent(one)
    with engine.begin() as connection:
        connection.execute(orders.delete())
    assert one.finish(claim, an_entry())
    assert said(engine) == [SAID]


def test_an_order_of_the_release_before_says_nothing(worker: Workers, engine: Engine) -> None:
    one = worker()
    assert one.finish(sent(one, None), an_entry())
    [event] = published(engine)
    assert not SAID.keys() & event.keys()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"id": "other"}'])
def test_a_column_that_was_changed_stops_no_event(
    worker: Workers, engine: Engine, text: str
) -> None:
    one = worker()
    assert one.finish(sent(one), an_entry())
    with engine.begin() as connection:
        connection.execute(update(orders).values(adapted=text))
    [event] = published(engine)
    assert event["id"] == dehydrated(KEY, Kind.ACCEPTED).id
    assert not SAID.keys() & event.keys()
