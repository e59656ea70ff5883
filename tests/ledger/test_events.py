"""An outcome and its status event are both committed, or neither."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine
from structlog.testing import capture_logs

from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.batch import Finishing, Recording
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import EventRow, Key, State
from pos_gateway.runtime.vault import Vault
from pos_gateway.telemetry import metrics
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]


def driver_error(worker: Worker) -> type[Exception]:
    error: type[Exception] = worker._engine.dialect.dbapi.Error  # type: ignore[union-attr]
    return error


def test_an_events_order_has_the_outcomes_fields(worker: Workers, rows: Rows) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    entry = an_entry(
        Kind.REJECTED, reason=Reason("sold_out", "no more"), external_id="x", attempts=4
    )
    one.finish(claim, entry)
    (event,) = rows.events()
    assert entry.event is not None
    assert (event.event_id, event.type, event.position) == (entry.event.id, "rejected", None)
    assert (event.merchant_id, event.order_id, event.occurred_at) == ("m", "o1", DAY)
    assert (event.external_id, event.attempts) == ("x", 4)
    assert (event.reason_code, event.reason_message) == ("sold_out", "no more")
    assert rows.order().told == "rejected"


def test_an_outcome_without_an_event_keeps_the_orders_last_event(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    event = an_entry(Kind.PENDING).event
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.PENDING, event=event))
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.IN_DOUBT, external_id="x"))
    assert [row.type for row in rows.events()] == ["pending"]
    assert (rows.order().told, rows.order().state) == ("pending", "in_doubt")
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.NEW))
    assert rows.order().external_id == "x"  # the external id stays once it is known


def test_an_outcome_whose_event_cannot_be_written_is_not_written(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True))
    broken: Any = EventRow("e", None)  # type: ignore[arg-type]
    with pytest.raises(driver_error(one)):
        one.finish(claim, an_entry(event=broken))
    assert (rows.order().state, rows.order().told) == ("sending", None)
    assert rows.events() == []
    assert one.finish(claim, an_entry())
    assert len(rows.events()) == 1


def test_an_unwritable_event_costs_other_operations_nothing(worker: Workers, rows: Rows) -> None:
    one = worker()
    keys = [Key("m", f"o{n}") for n in range(4)]
    claims = [claimed(one.claim(key, send=True)) for key in keys]
    entries = [an_entry(key=key) for key in keys]
    entries[2] = replace(entries[2], event=EventRow("e", None))  # type: ignore[arg-type]
    finishings = [Finishing(c, e) for c, e in zip(claims, entries, strict=True)]
    with pytest.raises(driver_error(one)):
        one.together(*finishings)
    for n in (0, 1, 3):  # one by one, as the group commit does then
        assert one.together(finishings[n]) == [True]
    states = {row.order_id: row.state for row in rows.orders()}
    assert states == {"o0": "accepted", "o1": "accepted", "o2": "sending", "o3": "accepted"}
    assert sorted(row.order_id for row in rows.events()) == ["o0", "o1", "o3"]


def test_an_outcome_under_a_lost_claim_has_no_event(worker: Workers, rows: Rows) -> None:
    one = worker()
    lost = claimed(one.claim(KEY, send=True))
    one.abandon(lost, sent=True)
    claim = claimed(one.claim(KEY, send=True))
    other = claimed(one.claim(Key("m", "o2"), send=True))
    results = one.together(
        Finishing(lost, an_entry(Kind.REJECTED)),
        Finishing(other, an_entry(key=other.key)),
        Finishing(claim, an_entry()),
    )
    assert results == [False, True, True]
    assert sorted((row.order_id, row.type) for row in rows.events()) == [
        ("o1", "accepted"),
        ("o2", "accepted"),
    ]


def test_the_same_event_twice_is_one_row(worker: Workers, rows: Rows) -> None:
    """The event of a message without a row, which may be delivered any number of times."""
    one = worker()
    for _ in range(3):
        one.record_event(KEY, an_entry(Kind.FAILED), b"{}")
    failed, another = an_entry(Kind.FAILED), an_entry(Kind.FAILED, key=Key("m", "o2"))
    event_records = [Recording(KEY, each, "{}") for each in (failed, another)]
    one.together(*event_records)
    assert [row.type for row in rows.events()] == ["failed", "failed"]


def test_an_outcomes_event_with_a_duplicate_id_gets_a_new_one(worker: Workers, rows: Rows) -> None:
    """And it is logged: skipped, the backend would wait for it for ever."""
    one, key = worker(), Key("m", "o2")
    one.record_event(KEY, an_entry(Kind.FAILED), b"{}")
    claim, neighbour = claimed(one.claim(KEY, send=True)), claimed(one.claim(key, send=True))
    before = metrics.event_ids_taken._value.get()
    with capture_logs() as logs:
        assert one.finish(claim, an_entry(Kind.FAILED, reason=Reason("http_401", "no")))
    assert one.finish(neighbour, an_entry(key=key))
    assert [line["event"] for line in logs] == ["event.id_taken"]
    assert metrics.event_ids_taken._value.get() == before + 1
    assert [row.reason_code for row in rows.events()] == [None, "http_401", None]
    assert len({row.event_id for row in rows.events()}) == 3
    assert rows.order().state == "failed"


def test_an_operators_event_with_a_duplicate_id_gets_a_new_one(
    worker: Workers, rows: Rows, engine: Engine
) -> None:
    one, order_admin = worker(), OrderAdmin(engine, Payloads(Vault()))
    one.record_event(KEY, an_entry(), b"{}")
    doubt = without_event(State.IN_DOUBT, doubt_since=DAY)
    one.finish(claimed(one.claim(KEY, send=True)), doubt)
    seen = order_admin.one(KEY)
    assert seen is not None
    with capture_logs() as logs:
        order_admin.change(seen, an_entry(), operator="kim", what="x", details="")
    assert [line["event"] for line in logs] == ["event.id_taken"]
    assert [row.type for row in rows.events()] == ["accepted", "accepted"]


@pytest.mark.parametrize("merchant_id", ["m", "größer", "m-1234567890"])
def test_an_events_id_is_a_stable_name_based_uuid(merchant_id: str) -> None:
    """Consumers deduplicate by it: RFC 9562's version 5, of a namespace that never changes."""
    namespace = uuid.UUID("6f2b0c1e-5d38-4f0e-9a52-6a0e3d1b7c44")
    for n in range(100):  # every variant
        id_ = dehydrated(Key(merchant_id, f"o{n}"), Kind.ACCEPTED).id
        assert id_ == str(uuid.uuid5(namespace, f"{merchant_id}\no{n}\norder.accepted"))
    one, another = (dehydrated(KEY, Kind.FAILED, content=each).id for each in (b"1", b"2"))
    assert len({one, another, dehydrated(KEY, Kind.FAILED).id}) == 3


def test_a_reopened_order_has_a_new_terminal_event(worker: Workers, rows: Rows) -> None:
    one = worker()
    first, again = dehydrated(KEY, Kind.ACCEPTED), dehydrated(KEY, Kind.ACCEPTED, reopened=1)
    one.record_event(KEY, an_entry(event=first), b"{}")
    one.record_event(KEY, an_entry(event=again), b"{}")
    assert len(rows.events()) == 2


def test_events_are_numbered_in_the_order_of_their_transactions(
    worker: Workers, rows: Rows
) -> None:
    one = worker()
    for n in range(5):
        key = Key("m", f"o{4 - n}")
        one.finish(claimed(one.claim(key, send=True)), an_entry(key=key))
    by_number = sorted(rows.events(), key=lambda row: row.id)
    assert [row.order_id for row in by_number] == ["o4", "o3", "o2", "o1", "o0"]


def test_an_order_that_goes_on_has_no_end_to_repeat(worker: Workers) -> None:
    """Its order.in_doubt is published, and the terminal event follows it."""
    one = worker()
    doubt = an_entry(Kind.IN_DOUBT, doubt_since=DAY)
    one.finish(claimed(one.claim(KEY, send=True)), doubt)
    assert one.ends(KEY) == []
    one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    assert [(key, ended.state) for key, ended in one.ends(KEY)] == [(KEY, State.ACCEPTED)]
