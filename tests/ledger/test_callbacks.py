"""Callbacks in the ledger, on both databases: what each one changes, and what it never may."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter
from sqlalchemy import Engine, insert, select, text, update

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import audit, callbacks, events, orders
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind, Lifecycle, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger import callbacks as module
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune_callbacks
from pos_gateway.ledger.states import Action, Ended, Key, State
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import DAY, KEY, Clock, Rows, Worker, an_entry, claimed, without_event

HERE = "the POS"
CANCEL = replace(KEY, action=Action.CANCEL)
FORWARD = (Lifecycle.PREPARING, Lifecycle.READY, Lifecycle.COMPLETED)


@pytest.fixture
def ledger(engine: Engine) -> Iterator[CallbackLedger]:
    clock = Clock()
    clock.of_day = DAY + 60
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    yield ledger
    ledger.close()


def of(meaning: Kind | Lifecycle, event_id: str | None = None, **others: Any) -> Received:
    """A callback about the order."""
    key = others.pop("key", KEY)
    endpoints = others.pop("endpoints", (HERE,))
    said = Callback(event_id or f"of-{meaning}", meaning, order_id=key.order_id, **others)
    return Received("rest", "m", said, {key.merchant_id: endpoints})


def vendors(
    external_id: str, meaning: Kind | Lifecycle = Lifecycle.READY, **others: Any
) -> Received:
    """A callback that names the POS's id alone."""
    owners = others.pop("owners", {"m": (HERE,)})
    said = Callback(f"of-{external_id}-{meaning}", meaning, external_id=external_id, **others)
    return Received("square", "m", said, owners)


def told(rows: Rows) -> list[str]:
    return [row.type for row in rows.events()]


def apply(ledger: CallbackLedger, *received: Received) -> list[CallbackResult]:
    return [each.result for each in ledger.apply(received)]


def open_in(worker: Callable[..., Worker], state: State) -> Worker:
    """A worker that has sent the order, which is in this state now."""
    one: Worker = worker()
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE, order=b"{}"))
    if state is State.PENDING:
        one.finish(claim, an_entry(Kind.PENDING, pending=True))
    elif state is State.IN_DOUBT:
        one.finish(claim, an_entry(Kind.IN_DOUBT, doubt_since=DAY))
    return one


OPEN = pytest.mark.parametrize("state", [State.SENDING, State.PENDING, State.IN_DOUBT])


@OPEN
@pytest.mark.parametrize("kind", [Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED])
def test_a_decision_ends_an_order_that_the_pos_may_have(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    engine: Engine,
    state: State,
    kind: Kind,
) -> None:
    open_in(worker, state)
    before = rows.order()
    reason = Reason("sold_out", "no\nsoup")
    said = of(kind, external_id="7", reason=reason)
    [applied] = ledger.apply([said])
    assert (applied.result, applied.events) == (CallbackResult.APPLIED, (kind,))
    row = rows.order()
    assert (row.state, row.told, row.epoch) == (kind, kind, before.epoch + 1)
    assert (row.owner, row.doubt_since, row.settling, row.pending) == (None, None, None, False)
    assert (row.external_id, row.reason_code, row.reason_message) == ("7", "sold_out", "no soup")
    event = rows.events()[-1]
    assert (event.type, event.external_id, event.reason_code) == (kind, "7", "sold_out")
    assert event.event_id == dehydrated(KEY, kind).id, "as an attempt's"
    with engine.connect() as connection:
        [note] = connection.execute(select(audit)).all()
        [stored] = connection.execute(select(callbacks)).all()
    assert (note.what, note.order_id) == (f"callback.{kind}", "o1")
    assert (stored.event_id, stored.result) == (f"of-{kind}", "applied")


@OPEN
@pytest.mark.parametrize("to", FORWARD)
def test_an_order_that_is_prepared_was_accepted(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, state: State, to: Lifecycle
) -> None:
    open_in(worker, state)
    before = told(rows)
    assert apply(ledger, of(to)) == [CallbackResult.APPLIED]
    assert (rows.order().state, rows.order().lifecycle) == ("accepted", to)
    assert told(rows)[len(before) :] == ["accepted", to]


@pytest.mark.parametrize("state", [State.SENDING, State.PENDING, State.IN_DOUBT, State.ACCEPTED])
def test_what_is_about_an_accepted_order_alone_ends_no_open_one(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, state: State
) -> None:
    """The guest may still owe: whether the POS has the order as agreed a look-up says."""
    one = worker()
    if state is State.ACCEPTED:
        claim = claimed(one.claim(KEY, send=True, endpoint=HERE, order=b"{}"))
        one.finish(claim, an_entry(Kind.ACCEPTED))
    else:
        open_in(worker, state)
    before = rows.order()
    [result] = apply(ledger, of(Lifecycle.PREPARING, only_accepted=True))
    if state is State.ACCEPTED:
        assert (result, rows.order().lifecycle) == (CallbackResult.APPLIED, Lifecycle.PREPARING)
    else:
        assert (result, rows.order()) == (CallbackResult.WAITING, before)


@pytest.mark.parametrize("kind", [Kind.ACCEPTED, Kind.REJECTED])
def test_what_is_about_an_accepted_order_alone_waits_for_the_look_up(
    engine: Engine, worker: Callable[..., Worker], rows: Rows, kind: Kind
) -> None:
    """A shop accepts an order and begins with it between two look-ups."""
    clock = Clock()
    clock.of_day = DAY + 60
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    one = open_in(worker, State.PENDING)
    said = of(Lifecycle.PREPARING, only_accepted=True)
    assert apply(ledger, said) == [CallbackResult.WAITING]
    with engine.connect() as connection:
        stored = connection.scalar(select(callbacks.c.waiting))
    with pytest.raises(ValueError, match="event_id"):  # as a server of the release before reads it
        TypeAdapter(Callback).validate_json(stored)
    look_up = claimed(one.claim(KEY, send=False))
    assert one.finish(look_up, an_entry(kind))
    clock.of_day += 60
    [due] = ledger.due(10)
    assert due.callback == said.callback
    [result] = apply(ledger, replace(said, waiting_since=due.since))
    is_accepted = kind is Kind.ACCEPTED
    assert result is (CallbackResult.APPLIED if is_accepted else CallbackResult.KNOWN)
    assert told(rows) == ["pending", kind, *([Lifecycle.PREPARING] if is_accepted else [])]
    assert ledger.due(10) == []
    ledger.close()


def test_what_is_about_an_accepted_order_alone_waits_for_no_operator(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE, order=b"{}"))
    one.finish(claim, an_entry(Kind.IN_DOUBT, doubt_since=DAY, reason=Reason("moved", "")))
    before = rows.order()
    [result] = apply(ledger, of(Lifecycle.PREPARING, only_accepted=True))
    assert (result, rows.order()) == (CallbackResult.KNOWN, before)


@pytest.mark.parametrize("is_open", [True, False])
def test_an_attempt_in_flight_loses_its_claim_and_finds_the_end(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, is_open: bool
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=is_open, endpoint=HERE))
    if not is_open:
        assert one.sending(claim, HERE)
    assert apply(ledger, of(Kind.ACCEPTED)) == [CallbackResult.APPLIED]
    for kind in (Kind.ACCEPTED, Kind.REJECTED, Kind.FAILED):
        assert not one.finish(claim, an_entry(kind)), "it would be a second end"
    assert not one.sending(claim, HERE)
    ended = one.claim(KEY, send=True)
    assert isinstance(ended, Ended)
    assert ended.state is State.ACCEPTED
    assert told(rows) == ["accepted"]
    one.abandon(claim, sent=True)
    one.clock.advance(10)
    one.beat()
    assert rows.order().state == "accepted", "nothing is released"


def test_a_failover_brings_no_lost_claim_back(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    """A worker replays its last outcomes on a new connection."""
    one = open_in(worker, State.PENDING)
    assert apply(ledger, of(Kind.REJECTED)) == [CallbackResult.APPLIED]
    one._writer.close()
    one.beat()
    assert (rows.order().state, told(rows)) == ("rejected", ["pending", "rejected"])


@pytest.mark.parametrize("meaning", [*(Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED), *Lifecycle])
def test_an_order_that_was_never_sent_is_not_at_its_pos(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, meaning: Kind | Lifecycle
) -> None:
    one = worker()
    claim = claimed(one.claim(KEY, send=False))
    assert apply(ledger, of(meaning, "1")) == [CallbackResult.UNSENT]
    assert one.finish(claim, without_event())
    assert apply(ledger, of(meaning, "2")) == [CallbackResult.UNSENT]
    claim = claimed(one.claim(KEY, send=False))
    assert one.finish(claim, an_entry(Kind.EXPIRED)), "its claim held"
    assert apply(ledger, of(meaning, "3")) == [CallbackResult.UNSENT]
    assert (rows.order().state, told(rows)) == ("expired", ["expired"])


def test_an_order_that_the_pos_has_after_all_is_not_sent_again(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    """It said that it had not processed it: the order was to be sent again."""
    one = open_in(worker, State.SENDING)
    other = replace(KEY, order_id="o2")
    claim = claimed(one.claim(other, send=True, endpoint=HERE))
    one.finish(claim, without_event())
    assert rows.order(other).state == "new"
    assert apply(ledger, of(Kind.ACCEPTED, key=other)) == [CallbackResult.APPLIED]
    assert isinstance(one.claim(other, send=True), Ended)


def test_another_pos_than_the_one_that_may_have_it_says_nothing_about_it(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    open_in(worker, State.IN_DOUBT)
    said = of(Kind.REJECTED, endpoints=("another", "a third"))
    assert apply(ledger, said) == [CallbackResult.MOVED]
    assert rows.order().state == "in_doubt"


def accepted(worker: Callable[..., Worker], **others: Any) -> Worker:
    one: Worker = worker()
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE, order=b"{}"))
    assert one.finish(claim, an_entry(external_id="7", **others))
    return one


def test_lifecycle_events_follow_an_acceptance(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    accepted(worker)
    before = rows.order()
    assert apply(ledger, *map(of, FORWARD)) == [CallbackResult.APPLIED] * 3
    assert told(rows) == ["accepted", *FORWARD]
    row = rows.order()
    assert row.lifecycle == "completed"
    assert (row.state, row.told, row.epoch, row.updated_at) == (
        "accepted",
        "accepted",
        before.epoch,
        before.updated_at,
    )
    for event, kind in zip(rows.events()[1:], FORWARD, strict=True):
        assert event.event_id == dehydrated(KEY, kind).id
        assert (event.external_id, event.attempts) == ("7", 1)


def test_a_lifecycle_never_goes_back(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    accepted(worker)
    late, known = CallbackResult.LATE, CallbackResult.KNOWN
    assert apply(ledger, of(Lifecycle.READY)) == [CallbackResult.APPLIED]
    assert apply(ledger, of(Lifecycle.PREPARING), of(Lifecycle.READY, "2")) == [late, known]
    assert apply(ledger, of(Kind.ACCEPTED)) == [known]
    assert apply(ledger, of(Lifecycle.CANCELLED_BY_POS)) == [CallbackResult.APPLIED]
    assert apply(ledger, of(Lifecycle.COMPLETED), of(Kind.CANCELLED)) == [late, known]
    assert told(rows) == ["accepted", "ready", "cancelled_by_pos"]


@pytest.mark.parametrize("kind", [Kind.REJECTED, Kind.CANCELLED])
def test_an_accepted_order_that_the_pos_gives_up_is_cancelled_by_it(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, kind: Kind
) -> None:
    """Its one terminal event was published: a rejection would be a second one."""
    accepted(worker)
    reason = Reason("sold_out", "no soup")
    assert apply(ledger, of(kind, reason=reason)) == [CallbackResult.APPLIED]
    assert told(rows) == ["accepted", "cancelled_by_pos"]
    assert rows.events()[-1].reason_code == "sold_out"
    assert (rows.order().state, rows.order().reason_code) == ("accepted", None)


@pytest.mark.parametrize("kind", [Kind.REJECTED, Kind.EXPIRED, Kind.FAILED, Kind.CANCELLED])
@pytest.mark.parametrize(
    ("meaning", "owes"),
    [(Kind.ACCEPTED, False), *((each, owes) for each in FORWARD for owes in (False, True))],
)
def test_a_pos_that_has_an_order_that_ended_otherwise_is_for_an_operator(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    engine: Engine,
    kind: Kind,
    meaning: Kind | Lifecycle,
    owes: bool,
) -> None:
    """Also where the guest owes, and a callback is about an accepted order alone."""
    one = worker()
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE))
    assert one.finish(claim, an_entry(kind))
    assert apply(ledger, of(meaning, only_accepted=owes)) == [CallbackResult.CONTRADICTION]
    assert told(rows) == [kind]
    assert rows.order().state == kind
    with engine.connect() as connection:
        [note] = connection.execute(select(audit)).all()
    assert (note.what, note.operator) == ("callback.contradiction", "callback of rest")
    assert apply(ledger, of(Kind.REJECTED), of(Kind.CANCELLED)) == [CallbackResult.KNOWN] * 2


def test_a_callback_that_comes_again_changes_nothing(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    accepted(worker)
    same, duplicate = of(Lifecycle.READY, "1"), CallbackResult.DUPLICATE
    assert apply(ledger, same, same) == [CallbackResult.APPLIED, duplicate]
    assert apply(ledger, same) == [duplicate]
    altered = of(Lifecycle.COMPLETED, "1")
    assert apply(ledger, altered) == [duplicate], "an id is one message's"
    others = [replace(altered, merchant_id="m2"), replace(altered, adapter="square")]
    assert apply(ledger, *others) == [CallbackResult.APPLIED, CallbackResult.KNOWN]
    assert told(rows) == ["accepted", "ready", "completed"]


def test_an_unknown_order_is_stored(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    accepted(worker)
    unknown = of(Kind.ACCEPTED, key=Key("m", "o9"))
    assert apply(ledger, unknown, unknown) == [CallbackResult.UNKNOWN, CallbackResult.DUPLICATE]
    assert told(rows) == ["accepted"]


@pytest.mark.parametrize("event_id", ["x" * 5000, "\x00", "é\ud800", ""])
def test_an_event_id_may_be_any_text(
    ledger: CallbackLedger, worker: Callable[..., Worker], event_id: str
) -> None:
    accepted(worker)
    said = replace(of(Lifecycle.READY).callback, event_id=event_id)
    received = Received("rest", "m", said, {"m": (HERE,)})
    expected = [CallbackResult.APPLIED, CallbackResult.DUPLICATE]
    assert apply(ledger, received, received) == expected


@pytest.mark.parametrize(
    ("said", "written"),
    [(0.0, DAY + 60 - 86_400), (DAY + 10, DAY + 10), (DAY * 2, DAY + 60), (None, DAY + 60)],
)
def test_an_event_occurred_when_the_pos_says_within_a_day(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    said: float | None,
    written: float,
) -> None:
    accepted(worker)
    apply(ledger, of(Lifecycle.READY, occurred_at=said))
    assert rows.events()[-1].occurred_at == written


# Cancel requests


def asked_to_cancel(one: Worker, *, sent: bool) -> Any:
    claim = claimed(one.claim(CANCEL, send=False, deliver_by=DAY + 900))
    return one.sending(claim) if sent else claim


def test_a_pos_that_cancels_because_it_was_asked_ends_the_request(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    one = accepted(worker)
    claim = asked_to_cancel(one, sent=True)
    assert apply(ledger, of(Kind.CANCELLED)) == [CallbackResult.APPLIED]
    assert (rows.order(CANCEL).state, rows.order().state) == ("cancelled", "accepted")
    assert told(rows) == ["accepted", "cancelled"]
    event = rows.events()[-1]
    assert (event.event_id, event.external_id) == (dehydrated(CANCEL, Kind.CANCELLED).id, "7")
    assert not one.finish(claim, an_entry(Kind.CANCELLED, key=CANCEL)), "it would be a second one"
    assert apply(ledger, of(Kind.CANCELLED, "2")) == [CallbackResult.KNOWN]
    assert told(rows) == ["accepted", "cancelled"]


@pytest.mark.parametrize("before", [None, Lifecycle.PREPARING])
@pytest.mark.parametrize("meaning", FORWARD)
def test_a_pos_that_makes_an_order_that_was_cancelled_on_request_is_for_an_operator(
    ledger: CallbackLedger,
    worker: Callable[..., Worker],
    rows: Rows,
    engine: Engine,
    before: Lifecycle | None,
    meaning: Lifecycle,
) -> None:
    """As one that makes an order cancelled before it was accepted; a stage reached before is no news."""
    one = accepted(worker)
    if before is not None:
        apply(ledger, of(before))
    known = told(rows)
    claim = asked_to_cancel(one, sent=True)
    assert one.finish(claim, an_entry(Kind.CANCELLED, key=CANCEL))
    contradiction, is_news = CallbackResult.CONTRADICTION, meaning is not before
    said = [of(meaning, "2"), of(meaning, "3"), of(Kind.ACCEPTED), of(Kind.CANCELLED)]
    first = contradiction if is_news else CallbackResult.KNOWN
    assert apply(ledger, *said) == [first, *[CallbackResult.KNOWN] * 3]
    assert told(rows) == [*known, "cancelled"]
    assert rows.order().lifecycle == meaning
    with engine.connect() as connection:
        notes = connection.execute(select(audit.c.what, audit.c.details)).all()
    assert notes == [("callback.contradiction", f"{meaning} as 2 to m")] * is_news
    if meaning is not Lifecycle.PREPARING:
        assert apply(ledger, of(Lifecycle.PREPARING, "4")) == [CallbackResult.LATE]
        assert apply(ledger, of(Lifecycle.COMPLETED, "5")) == [
            CallbackResult.KNOWN if meaning is Lifecycle.COMPLETED else contradiction
        ]


def test_a_stage_that_waits_while_its_order_is_accepted_and_cancelled_is_no_contradiction(
    engine: Engine, worker: Callable[..., Worker], rows: Rows
) -> None:
    """The POS began with the order before it was cancelled there: no one has to call the merchant."""
    clock = Clock()
    clock.of_day = DAY + 60
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, clock)
    one = open_in(worker, State.PENDING)
    said = of(Lifecycle.PREPARING, only_accepted=True)
    assert apply(ledger, said) == [CallbackResult.WAITING]
    look_up = claimed(one.claim(KEY, send=False))
    assert one.finish(look_up, an_entry(Kind.ACCEPTED))
    claim = asked_to_cancel(one, sent=True)
    assert one.finish(claim, an_entry(Kind.CANCELLED, key=CANCEL))
    clock.of_day += 60
    [due] = ledger.due(10)
    waited = replace(said, waiting_since=due.since)
    assert apply(ledger, waited) == [CallbackResult.LATE]
    with engine.connect() as connection:
        assert not connection.execute(select(audit)).all()
    assert apply(ledger, of(Lifecycle.READY, "2")) == [CallbackResult.CONTRADICTION]
    assert told(rows) == ["pending", "accepted", "cancelled"]
    ledger.close()


def test_a_pos_that_cancels_before_it_was_asked_did_so_by_itself(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    one = accepted(worker)
    claim = asked_to_cancel(one, sent=False)
    assert apply(ledger, of(Kind.CANCELLED)) == [CallbackResult.APPLIED]
    assert told(rows) == ["accepted", "cancelled_by_pos"]
    assert not one.finish(claim, without_event()), "nothing is told after that: it has ended, too"


# Many at once


def test_many_are_one_transaction_in_order(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows
) -> None:
    one = worker()
    keys = [Key("m", f"o{number}") for number in range(40)]
    for key in keys:
        one.finish(claimed(one.claim(key, send=True, endpoint=HERE)), an_entry(key=key))
    said = [of(kind, f"{key.order_id} {kind}", key=key) for kind in FORWARD for key in keys]
    assert apply(ledger, *said) == [CallbackResult.APPLIED] * 120
    recorded = [(row.order_id, row.type) for row in rows.events()[40:]]
    assert recorded == [(key.order_id, kind) for kind in FORWARD for key in keys]
    assert {row.lifecycle for row in rows.orders()} == {"completed"}


def test_two_servers_apply_the_same_callbacks_once(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, engine: Engine
) -> None:
    """In opposite orders, about orders that are known, not known, and without the POS's id."""
    other = CallbackLedger(engine, Payloads(Vault()), dehydrated)
    one = worker()
    keys = [Key("m", f"o{number}") for number in range(30)]
    for key in keys:
        one.finish(claimed(one.claim(key, send=True, endpoint=HERE)), an_entry(key=key))
    claimed(one.claim(Key("m2", "o1"), send=True, endpoint=HERE))
    waiting = {"m2": (HERE,)}
    said = [of(Lifecycle.READY, key.order_id, key=key) for key in keys]
    said += [of(Lifecycle.READY, f"no-{n}", key=Key("m", f"no-{n}")) for n in range(30)]
    said += [vendors(f"{number}", owners=waiting) for number in range(30)]

    def applied(server: CallbackLedger, order: list[Received]) -> dict[str, CallbackResult]:
        found: dict[str, CallbackResult] = {}
        while left := [each for each in order if each.callback.event_id not in found]:
            for each, result in zip(left, apply(server, *left), strict=True):
                if result is not CallbackResult.BUSY:
                    found[each.callback.event_id] = result
        return found

    with ThreadPoolExecutor(2) as pool:
        servers = (ledger, said), (other, said[::-1])
        results = list(pool.map(lambda server: applied(*server), servers))
    other.close()
    for each in said[:30]:
        found = sorted(result[each.callback.event_id] for result in results)
        assert found == [CallbackResult.APPLIED, CallbackResult.DUPLICATE]
    assert told(rows) == ["accepted"] * 30 + ["ready"] * 30


def test_an_event_whose_id_is_taken_gets_another(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, engine: Engine
) -> None:
    accepted(worker)
    with engine.begin() as connection:
        connection.execute(
            insert(events).values(
                event_id=dehydrated(KEY, Lifecycle.READY).id,
                type="ready",
                merchant_id="m",
                order_id="x",
                occurred_at=DAY,
                attempts=1,
            )
        )
    assert apply(ledger, of(Lifecycle.READY)) == [CallbackResult.APPLIED]
    assert told(rows) == ["accepted", "ready", "ready"]


def test_the_poss_words_are_sealed(engine: Engine, worker: Callable[..., Worker]) -> None:
    accepted(worker)
    vault = Vault(new_key())
    ledger = CallbackLedger(engine, Payloads(vault), dehydrated)
    reason = Reason("sold_out", "Ada is not here")
    ledger.apply([of(Lifecycle.CANCELLED_BY_POS, reason=reason)])
    ledger.close()
    with engine.connect() as connection:
        everything = [
            str(row) for table in (events, orders) for row in connection.execute(select(table))
        ]
    assert not any("Ada is" in row for row in everything)  # a sealed text has no blank


def test_an_order_is_found_by_the_poss_id(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine
) -> None:
    accepted(worker)
    [one, other] = ledger.apply([vendors("7"), vendors("8")])
    assert (one.result, one.key) == (CallbackResult.APPLIED, KEY)
    assert (other.result, other.key) == (CallbackResult.UNKNOWN, None)
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            # Of one order any index is as good.
            copies = """insert into orders select (jsonb_populate_record(o, jsonb_build_object(
                'order_id', 'copy ' || number, 'external_id', 'copy ' || number))).*
                from orders o, generate_series(1, 2000) number where external_id = '7'"""
            connection.execute(text(copies))
            connection.execute(text("analyze orders"))
            query = "explain select 1 from orders where external_id = '7' and action = 'submit'"
            plan = str(connection.execute(text(query)).all())
        assert "orders_by_external_id" in plan


def test_old_ones_are_forgotten(
    ledger: CallbackLedger, worker: Callable[..., Worker], engine: Engine
) -> None:
    accepted(worker)
    apply(ledger, *(of(Lifecycle.READY, str(number)) for number in range(5)))
    assert list(prune_callbacks(engine, DAY + 60, 2)) == []
    assert list(prune_callbacks(engine, DAY + 61, 2)) == [2, 2, 1]
    assert apply(ledger, of(Lifecycle.READY, "0")) == [CallbackResult.KNOWN], "once more harmless"


def test_an_order_that_a_worker_is_writing_is_tried_again(
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """It never waits for a worker's lock: a worker may wait for its."""
    engine = open_database(postgresql_url)
    rows, ledger = Rows(engine), CallbackLedger(engine, Payloads(Vault()), dehydrated)
    request.addfinalizer(engine.dispose)
    request.addfinalizer(ledger.close)
    accepted(lambda: Worker(engine))
    with engine.connect() as connection:
        connection.execute(update(orders).values(attempts=5))
        monkeypatch.setattr(module, "TRIES", 2)
        two = [of(Lifecycle.READY, "1"), of(Lifecycle.READY, "2", key=Key("m", "o9"))]
        assert apply(ledger, *two) == [CallbackResult.BUSY, CallbackResult.UNKNOWN]
        monkeypatch.setattr(module, "TRIES", 10_000)
        threading.Timer(0.2, connection.commit).start()
        assert apply(ledger, two[0]) == [CallbackResult.APPLIED]
    assert rows.events()[-1].attempts == 5, "what the worker has written"


def test_one_that_another_session_is_writing_holds_up_no_other(
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    engine = open_database(postgresql_url)
    rows, ledger = Rows(engine), CallbackLedger(engine, Payloads(Vault()), dehydrated)
    request.addfinalizer(engine.dispose)
    request.addfinalizer(ledger.close)
    accepted(lambda: Worker(engine))
    again, new = of(Lifecycle.PREPARING, "1"), of(Lifecycle.READY, "2")
    assert apply(ledger, again) == [CallbackResult.APPLIED]
    monkeypatch.setattr(module, "TRIES", 1)
    with engine.connect() as connection:
        connection.execute(select(callbacks).with_for_update())
        assert apply(ledger, again, new) == [CallbackResult.BUSY, CallbackResult.APPLIED]
    assert apply(ledger, again) == [CallbackResult.DUPLICATE]
    assert told(rows) == ["accepted", "preparing", "ready"]


def test_postgresql_finds_orders_by_their_key_alone(postgresql_url: str) -> None:
    """Not by their state, which most of them share."""
    engine = open_database(postgresql_url)
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated)
    one = Worker(engine)
    keys = [Key("m", f"o{number}") for number in range(300)]
    for number, key in enumerate(keys):
        claim = claimed(one.claim(key, send=True, endpoint=HERE))
        kind = Kind.ACCEPTED if number % 2 else Kind.PENDING
        one.finish(claim, an_entry(kind, key=key, pending=kind is Kind.PENDING))
    before = read_by_state(engine)
    for key in keys:
        assert apply(ledger, of(Lifecycle.READY, key.order_id, key=key)) == [CallbackResult.APPLIED]
    ledger.close()  # a session reports its statistics when it ends
    engine.dispose()
    assert read_by_state(engine) - before < len(keys)
    engine.dispose()


def read_by_state(engine: Engine) -> int:
    """Rows that were found by their state, in all sessions."""
    query = (
        "select pg_stat_force_next_flush(), idx_tup_read from pg_stat_user_indexes "
        "where indexrelname = 'orders_by_state'"
    )
    with engine.connect() as connection:
        connection.execute(text("select pg_stat_clear_snapshot()"))
        return int(connection.execute(text(query)).one()[1])


def test_a_database_that_is_away_is_said(ledger: CallbackLedger, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("alter table callbacks rename to elsewhere"))
    try:
        with pytest.raises(LedgerUnavailable):
            apply(ledger, of(Kind.ACCEPTED))
    finally:
        with engine.begin() as connection:
            connection.execute(text("alter table elsewhere rename to callbacks"))
    assert apply(ledger, of(Kind.ACCEPTED)) == [CallbackResult.UNKNOWN]


def test_an_operator_who_reopens_an_order_begins_its_lifecycle_anew(
    ledger: CallbackLedger, worker: Callable[..., Worker], rows: Rows, engine: Engine
) -> None:
    from pos_gateway.ledger.order_admin import OrderAdmin

    accepted(worker)
    apply(ledger, of(Lifecycle.READY))
    admin = OrderAdmin(engine, Payloads(Vault()))
    seen = admin.one(KEY)
    assert seen is not None
    admin.change(seen, without_event(), operator="ada", what="test", details="", reopen=True)
    assert rows.order().lifecycle is None
