"""An order's message while it waits: what of it is kept, and what Celery reads of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import control, state
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import Message

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker import wire
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.worker import intake
from pos_gateway.worker.request import ORDINARY, OrderRequest, RequestState
from pos_gateway.worker.tasks import CancelTask, OrderTask
from tests.orders import an_order

ORDER = an_order("o1", "m1", customer={"name": "Ada Lovelace"}, notes="ring twice")


@pytest.fixture
def request_() -> Iterator[OrderRequest]:
    """As the strategy makes it, and Celery's worker knows it."""
    offered: list[OrderRequest] = []
    an_intake(offered.append).handle(a_message())
    [request] = offered
    said.clear()
    state.reset_state()  # another test's orders stay there until they are garbage collected
    state.task_reserved(request)
    yield request
    state.task_ready(request)


said: list[tuple[Any, ...]] = []


def an_intake(offer: Callable[[OrderRequest], None]) -> intake.MessageIntake:
    """Of a worker whose dispatcher takes requests so."""
    app = Celery(set_as_current=False)
    app.register_task(OrderTask())
    app.register_task(CancelTask())
    consumer = SimpleNamespace(
        app=app,
        dispatcher=SimpleNamespace(offer=offer),
        hostname="worker@here",
        event_dispatcher=None,
        connection_errors=(OSError,),
        channel_errors=(),
    )
    gate: Any = SimpleNamespace(settings=SimpleNamespace(max_order_bytes=10_000))
    dead_letter: Any = lambda _message, code, reason: pytest.fail(f"{code}: {reason}")  # noqa: E731
    return intake.MessageIntake(consumer, gate, dead_letter, None)


def wait_for_the_retry(request: OrderRequest, again: Any) -> None:
    """It was attempted, and waits for the retry of this message."""
    request.enter(RequestState.IN_FLIGHT)
    request.decision, request.again = Decision(Outcome(Kind.RETRY), messages=[again]), again
    request.enter(RequestState.RETRY_WAITING)


def commit(request: OrderRequest) -> None:
    """It was attempted, and its outcome is committed."""
    request.enter(RequestState.IN_FLIGHT)
    request.enter(RequestState.COMMITTED)


def read_by_admission(
    deliver_by: object, action: Action = Action.SUBMIT, *, resolve: bool = False, attempts: int = 1
) -> float | None:
    """The deadline that admission reads of an order."""
    headers = {"id": "o1", wire.RESOLVE: resolve, wire.ATTEMPTS: attempts}
    info = {"routing_key": "orders"}
    message = SimpleNamespace(headers=headers, body=b"", delivery_info=info)
    task, consumer = SimpleNamespace(action=action, name=""), SimpleNamespace(event_dispatcher=None)
    payload = [[{**ORDER, "deliver_by": deliver_by}], {}, {}]
    return OrderRequest(message, payload, task, consumer, 0.0).deliver_by


def read(deliver_by: object) -> float | None:
    """The deadline that its delivery reads."""
    record = {"order_id": "o1", "merchant_id": "m1", "deliver_by": deliver_by}
    try:
        return CancelRequest.parse(record).deliver_by.timestamp()
    except InvalidOrder:
        return None


OFFSETS = ("Z", "z", "+00:00", "-00:00", "+23:59", "+24:00", "+0100", "+01", "\u221201:00", "")
TIMES = st.one_of(
    st.builds(
        "{:04}-{:02}-{:02}{}{:02}:{:02}{}{}".format,
        *(st.sampled_from((1, 1969, 2026, 9999)), st.integers(0, 13), st.integers(0, 32)),
        st.sampled_from("Tt _"),
        *(st.integers(0, 24), st.integers(0, 60)),
        st.sampled_from(("", ":00", ":59", ":60", ":16.5", ":16,5", ":16.123456789", ":16.")),
        st.sampled_from(OFFSETS),
    ),
    st.sampled_from(("20261120T072616Z", "2026-W47-5T07:26:16Z", "2026-324", " 2026-11-20T07:26:16Z ")),
    st.builds("{}{}".format, st.sampled_from(("", "-", "+", " ")), st.integers(0, 10**14)),
    st.floats(allow_nan=True).map(str),
    st.text(max_size=30),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.none(), max_size=1)),
)  # fmt: skip


@given(TIMES)
@example("2026-11-20t07:26:16z")
@example("1763629576")
@example("2026-11-20T07:26:16\u221201:00")
@example("2026-11-20T24:00:00Z")
@example("2016-12-31T23:59:60Z")
@example("9999-12-31T23:59:59.9999999-23:59")
@example("0001-01-01T00:00:01+23:59")
def test_admission_reads_every_deliver_by_as_the_order_does(deliver_by: object) -> None:
    """Otherwise an expired order would wait for its merchant without end."""
    assert read_by_admission(deliver_by) == read(deliver_by)


@pytest.mark.parametrize("text", ["2100-01-01t00:00:00z", "2100-01-01T01:00:00+01:00"])
def test_a_time_is_read_as_rfc_3339_says(text: str) -> None:
    assert read_by_admission(text) == datetime(2100, 1, 1, tzinfo=UTC).timestamp()


TEXT = json.dumps(ORDER)
#: Messages with this order, as a gateway writes them, as Celery does, and with other blanks.
BODIES = [
    wire.body_of(TEXT.encode()).decode(),
    json.dumps([[ORDER], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]),
    f"[[ {TEXT} ],{{}},{{}}]",
    f'\n[ [{TEXT}] , {{ }} , {{ "chain" : null , "chord" : null }} ] ',
    wire.body_of(f" {TEXT}\n".encode()).decode(),
]
NOT_ALONE = [
    wire.body_of(f"{TEXT},{TEXT}".encode()).decode(),
    f'[[],{{"order":{TEXT}}},{{}}]',
    f'[[{TEXT}],{{"x":1}},{{}}]',
    f'[[{TEXT}],{{}},{{"chain":[]}}]',
]
#: No JSON, though the order itself is.
BROKEN = [
    f'[[{TEXT}],{{}},{{"a":null "b":null}}]',
    f'[[{TEXT}],{{}},{{"a":null,}}]',
    f"[[{TEXT}],{{}},{{,}}]",
    wire.body_of(f"{TEXT},".encode()).decode(),
    wire.body_of(f"{TEXT}{TEXT}".encode()).decode(),
]


def as_taken(body: str, task: str = wire.SUBMIT_ORDER) -> Any:
    headers = {"id": "o1", "task": task}
    message = SimpleNamespace(body=body.encode(), headers=headers, content_type="application/json")
    return intake.read(message, 1_000_000)


@pytest.mark.parametrize("body", BODIES)
def test_an_order_is_read_on_its_arrival_as_it_is_later(body: str) -> None:
    order = as_taken(body)
    record, source = wire.read(body.encode())
    assert isinstance(order, Order)
    assert order == Order.parse(record, source)
    assert order.source == source == wire.text_in(body.encode()) == TEXT.encode()


@pytest.mark.parametrize("body", NOT_ALONE)
def test_what_has_more_than_an_order_is_parsed(body: str) -> None:
    assert as_taken(body) == json.loads(body)


@pytest.mark.parametrize("body", BROKEN)
def test_what_is_no_json_around_an_order_is_refused(body: str) -> None:
    with pytest.raises(wire.Malformed):
        as_taken(body)


def test_a_long_message_and_a_cancel_request_are_not_read_as_an_order_on_arrival() -> None:
    long = wire.body_of(json.dumps({**ORDER, "items": ORDER["items"] * 400}).encode()).decode()
    assert len(long) > ORDINARY
    assert as_taken(long) == json.loads(long)
    assert as_taken(BODIES[0], wire.CANCEL_ORDER) == json.loads(BODIES[0])


@pytest.mark.parametrize("depth", [30, 150, *range(190, 205)])
@pytest.mark.parametrize("field", ["unknown", "fulfillment"])
def test_what_is_taken_can_be_read_again_however_deeply_it_is_nested(
    field: str, depth: int
) -> None:
    """For its retry: an order alone may be nested more deeply than its message."""
    nested = '{"x":' * (depth - 1) + "{}" + "}" * (depth - 1)
    text = json.dumps({**ORDER, field: "here"}).replace('"here"', nested)
    body = wire.body_of(text.encode())
    try:
        as_taken(body.decode())
    except wire.Malformed:
        return
    assert wire.read(body)


@pytest.mark.parametrize("starts", [True, False])
def test_only_an_order_that_starts_at_once_is_kept_read(starts: bool) -> None:
    offered: list[OrderRequest] = []

    def offer(request: OrderRequest) -> None:
        offered.append(request)
        if starts:
            request.enter(RequestState.IN_FLIGHT)

    an_intake(offer).handle(a_message())
    [request] = offered
    assert (request.merchant_id, request.order_id) == ("m1", "o1")
    assert (request.order is not None) is starts
    order = request.order
    assert order is None or order == Order.parse(*wire.read(request.raw.body))
    if starts:
        request.enter(RequestState.REQUEUED)


def _say(word: str) -> Any:
    return lambda _log, errors, *more: said.append((word, errors, *more))


def a_message() -> Message:
    message = Message(
        json.dumps([[ORDER], {}, {"callbacks": None}]).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"routing_key": "orders", "exchange": "orders"},
        properties={"application_headers": {"argsrepr": "Ada Lovelace"}, "delivery_tag": 7},
        headers={
            "task": wire.SUBMIT_ORDER,
            "id": "number 7",
            "argsrepr": "Ada Lovelace",
            wire.ATTEMPTS: 3,
        },
    )
    message.ack_log_error, message.reject_log_error = _say("ack"), _say("reject")
    return message


def test_a_request_knows_its_order_id_and_parses_the_order_anew(request_: OrderRequest) -> None:
    assert request_.key == ("m1", "o1", "submit")
    assert (request_.raw.tries, request_.routing_key) == (3, "orders")
    assert wire.read(request_.raw.body)[0] == ORDER
    assert request_.order is None  # thousands wait: no parsed order is kept


def test_a_waiting_order_keeps_only_its_bytes(request_: OrderRequest) -> None:
    """Its fields are in memory once, in the body."""
    held = [
        getattr(request_, name, None)
        for name in OrderRequest.__slots__
        if name not in ("message", "raw")
    ]
    message = request_.message
    held += [request_.raw._replace(body=b""), message.properties, message._decoded_cache]
    assert message.properties["delivery_tag"] == 7  # the in-memory broker needs it to requeue
    assert b"Ada Lovelace" in message.body and request_.raw.body is message.body
    assert "Ada Lovelace" not in repr(held)


def test_a_request_takes_its_retrys_content_and_keeps_its_delivery(
    request_: OrderRequest,
) -> None:
    later = {**ORDER, "deliver_by": "2100-01-01T00:00:00Z"}
    headers = {wire.ATTEMPTS: 4, wire.RESOLVE: True, wire.LOOK_UP: True}
    assert not request_.raw.look_up
    body = json.dumps(later).encode()
    again = wire.submit_message("o1", body, routing_key="orders", headers=headers)
    wait_for_the_retry(request_, again)
    request_.become(again, 7.0)
    assert (request_.key, wire.read(request_.raw.body)[0]) == (("m1", "o1", "submit"), later)
    assert (request_.raw.tries, request_.deliver_by, request_.received) == (4, None, 7.0)
    assert (request_.state, request_.decision, request_.again) == ("arrived", None, None)
    assert request_.raw.look_up
    wait_for_the_retry(request_, again)
    request_.become(replace(again, headers={**again.headers, wire.RESOLVE: False}), 8.0)
    assert request_.deliver_by == datetime.fromisoformat("2100-01-01T00:00:00Z").timestamp()
    commit(request_)
    request_.acknowledge()
    assert said == [("ack", (OSError,))]
    state.task_ready(request_)
    assert state.requests == {}  # Celery knows it by its first id


def test_an_expired_cancel_request_with_a_look_up_has_an_outcome_and_an_order_has_none() -> None:
    """The request's outcome was not published yet, and its merchant may be paused for days."""
    at = datetime.fromisoformat(ORDER["deliver_by"]).timestamp()
    assert read_by_admission(ORDER["deliver_by"], Action.CANCEL) == at
    assert read_by_admission(ORDER["deliver_by"], Action.CANCEL, resolve=True) == at + RESOLVE_FOR
    assert read_by_admission("never", Action.CANCEL, resolve=True) is None
    assert read_by_admission(ORDER["deliver_by"], resolve=True) is None
    assert read_by_admission(ORDER["deliver_by"], resolve=True, attempts=0) == at, "a backend's"


def test_a_message_is_acknowledged_once(request_: OrderRequest) -> None:
    commit(request_)
    request_.acknowledge()
    request_.acknowledge()
    request_.requeue()
    assert said == [("ack", (OSError,))]


def test_a_message_is_requeued_once(request_: OrderRequest) -> None:
    request_.requeue()
    request_.requeue()
    request_.acknowledge()
    assert said == [("reject", (OSError,), True)]


def test_a_requeued_message_is_not_acknowledged(request_: OrderRequest) -> None:
    commit(request_)
    request_.is_stale = True
    request_.acknowledge()
    request_.requeue()
    assert said == []


def test_celery_inspect_shows_ids_and_nothing_of_the_body(
    request_: OrderRequest,
) -> None:
    [shown] = control.reserved(SimpleNamespace(tset=set))
    assert (shown["id"], shown["name"]) == ("number 7", wire.SUBMIT_ORDER)
    assert shown["args"] == [{"merchant_id": "m1", "order_id": "o1"}]
    assert "Ada" not in json.dumps(shown)
    state.task_accepted(request_)
    [shown] = control.active(SimpleNamespace(tset=set))
    assert shown["hostname"] == "worker@here"
    assert control.reserved(SimpleNamespace(tset=set)) == []


def test_celery_control_does_not_settle_an_order(request_: OrderRequest) -> None:
    request_.terminate(pool=None, signal="TERM")
    request_.cancel(pool=None)
    assert not request_.acknowledged
    assert said == []
