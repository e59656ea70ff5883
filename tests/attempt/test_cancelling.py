"""Cancel requests that are repeated, late, or raced by an operator."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.attempt.decision import LAST_ATTEMPT
from pos_gateway.broker import wire
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import (
    RESOLVE_FOR,
    Action,
    Key,
    State,
)
from pos_gateway.merchants.directory import LOOK
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from tests.gate import Gate
from tests.ledger.lab import claimed, without_event

ACCEPTED = (200, {"status": "accepted", "id": "pos-1"})
CANCELLED = (200, {"status": "cancelled", "id": "pos-1"})
AWAY = (503, {})


def accepted(folder: Path) -> Gate:
    """A gateway with an order that its POS has, and that is unreachable now."""
    gate = Gate(folder, lambda _: ACCEPTED)
    gate.take(gate.an_order(seconds=7200))
    gate.pos = lambda _: AWAY
    return gate


def reasons(gate: Gate) -> list[str]:
    query = "select reason_message from events where reason_code = 'not_cancelled' order by id"
    return [message.split(":")[0] for (message,) in gate.rows(query)]


def test_a_late_request_ends_at_once_if_the_later_deadline_has_passed_too(tmp_path: Path) -> None:
    """No message with that deadline would do more."""
    gate = accepted(tmp_path)
    gate.pos = lambda _: NotSent("connect", "refused")
    first = gate.a_request(seconds=60)
    gate.take(first, Action.CANCEL)
    gate.take_cancel(seconds=120)
    gate.wait(121)
    assert gate.take(first, Action.CANCEL).again is None
    assert gate.row_state(action="cancel") == "expired"


def test_a_second_request_with_a_later_deadline_is_attempted(tmp_path: Path) -> None:
    gate = accepted(tmp_path)
    first = gate.a_request(seconds=60)
    gate.take(first, Action.CANCEL)
    gate.wait(61)
    gate.pos = lambda _: ACCEPTED
    gate.take(first, Action.CANCEL)
    assert gate.row_state(action="cancel") == "expired"
    assert reasons(gate) == ["cancel_expired"]
    gate.take_cancel(seconds=30)
    gate.wait(31)
    gate.take_cancel(seconds=-1)  # the second request's last attempt
    assert reasons(gate) == ["cancel_expired", "cancel_expired"]  # each has its event
    gate.pos = lambda _: CANCELLED
    said = len(gate.said)
    gate.take_cancel(seconds=600)
    assert len(gate.said) == said + 1
    assert gate.recorded()[-1] == ("cancelled", None)
    gate.take_cancel(seconds=3600)  # a cancelled order is not looked up again
    assert len(gate.said) == said + 1


def test_two_open_requests_share_the_later_deadline(tmp_path: Path) -> None:
    """Otherwise the first one's outcome would be published while the second is retried."""
    gate = accepted(tmp_path)
    first, second = gate.a_request(seconds=60), gate.a_request(seconds=600)
    gate.take(first, Action.CANCEL)
    gate.take(second, Action.CANCEL)
    gate.wait(61)
    decided = gate.take(first, Action.CANCEL)
    assert decided.again is not None
    assert second["deliver_by"][:19].encode() in decided.again.body
    assert gate.row_state(action="cancel") == "new"
    gate.pos = lambda _: CANCELLED
    gate.take(second, Action.CANCEL)
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]


def test_a_request_after_an_order_was_reopened_is_for_its_new_generation(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (403, {}))
    gate.take(gate.an_order(seconds=7200))
    request = gate.a_request(seconds=600)
    gate.take(request, Action.CANCEL)
    assert gate.row_state(action="cancel") == "rejected"  # there was nothing to cancel
    with gate.database.begin() as connection:  # as an operator does
        connection.exec_driver_sql(
            "update orders set state = 'new', told = null, reopened = 1 where action = 'submit'"
        )
    gate.pos = lambda _: ACCEPTED
    gate.take(gate.an_order(seconds=7200))
    gate.pos = lambda _: CANCELLED
    gate.take(request, Action.CANCEL)
    assert gate.recorded() == [("failed", "http_403"), ("accepted", None), ("cancelled", None)]
    said = len(gate.said)
    gate.take(request, Action.CANCEL)
    assert len(gate.said) == said


KEPT = (409, {"error": {"code": "in_the_oven", "message": ""}})
UNKNOWN = (404, {})


@pytest.mark.parametrize("expires", [False, True], ids=["again", "with more time"])
@pytest.mark.parametrize(
    ("refusal", "known", "told"),
    [
        (UNKNOWN, UNKNOWN, [("cancelled", None)]),
        (KEPT, CANCELLED, [("cancelled", None)]),
        (KEPT, UNKNOWN, [("cancelled", None)]),
        (KEPT, ACCEPTED, [("accepted", "not_cancelled")]),
        (KEPT, AWAY, []),
    ],
    ids=["unknown", "cancelled", "gone", "kept", "no answer"],
)
def test_a_refusal_after_a_lost_cancellation_is_looked_up(
    tmp_path: Path, refusal: Any, known: Any, told: list[Any], expires: bool
) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: NoValidReply("timeout", "no reply")
    first = gate.a_request(seconds=60)
    gate.take(first, Action.CANCEL)
    before = [("accepted", None)]
    if expires:
        gate.wait(61 + RESOLVE_FOR)
        gate.take(first, Action.CANCEL)
        before.append(("accepted", "not_cancelled"))
    gate.pos = lambda request: known if request.method == "GET" else refusal
    decided = gate.take_cancel(seconds=600)
    if decided.outcome.look_again:  # the POS may still be cancelling
        gate.wait(decided.outcome.look_again)
        decided = gate.take_cancel(seconds=600)
    assert gate.recorded() == before + told
    assert (decided.again is None) is bool(told)


def test_a_refusal_of_the_first_cancel_request_is_believed(
    tmp_path: Path,
) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: KEPT
    said = len(gate.said)
    gate.take_cancel()
    assert gate.recorded()[-1] == ("accepted", "not_cancelled")
    assert len(gate.said) == said + 1


def in_doubt_and_late(folder: Path) -> tuple[Gate, dict[str, Any]]:
    """A gateway whose POS may have cancelled an order without a reply in time; the request."""
    gate = accepted(folder)
    gate.pos = lambda _: NoValidReply("timeout", "no reply")
    request = gate.a_request(seconds=60)
    gate.take(request, Action.CANCEL)
    gate.wait(61)
    return gate, request


@pytest.mark.parametrize(
    ("known", "told", "reason"),
    [
        (CANCELLED, ("cancelled", None), []),
        (UNKNOWN, ("cancelled", None), []),
        (ACCEPTED, ("accepted", "not_cancelled"), ["cancel_expired"]),
    ],
    ids=["cancelled", "unknown", "kept"],
)
def test_a_cancellation_in_doubt_is_looked_up_before_its_outcome_is_recorded(
    tmp_path: Path, known: Any, told: tuple[str, str | None], reason: list[str]
) -> None:
    gate, request = in_doubt_and_late(tmp_path)
    gate.pos = lambda _: AWAY
    again = gate.take(request, Action.CANCEL).again
    assert again is not None
    assert again.headers[wire.RESOLVE] is True
    gate.pos, said = lambda _: known, len(gate.said)
    gate.take(request, Action.CANCEL)
    assert gate.recorded() == [("accepted", None), told]
    assert gate.said[said:] == [("GET", "/orders/o1")]  # no second cancel request is sent
    assert (reasons(gate), gate.row_state(action="cancel") == "new") == (reason, False)


def test_a_cancellation_has_its_settling_time_before_a_look_up_counts(
    tmp_path: Path,
) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: NoValidReply("timeout", "no reply")
    request = gate.a_request(seconds=5)
    gate.take(request, Action.CANCEL)
    gate.pos = lambda _: ACCEPTED
    gate.wait(6)  # of the merchant's 10 s
    decided = gate.take(request, Action.CANCEL)
    assert decided.outcome.reason is not None
    assert (decided.outcome.reason.code, decided.again is not None) == ("unsettled", True)
    gate.wait(5)
    gate.take(request, Action.CANCEL)
    assert reasons(gate) == ["cancel_expired"]


def test_a_request_that_expires_while_its_order_is_claimed_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may be away for seconds."""
    gate = accepted(tmp_path)
    claim, said = gate.ledger.claim, len(gate.said)

    def slow(key: Key, **named: Any) -> Any:
        gate.wait(8 if key.action is Action.SUBMIT else 0)
        return claim(key, **named)

    monkeypatch.setattr(gate.ledger, "claim", slow)
    gate.take_cancel(seconds=7)
    assert (reasons(gate), len(gate.said)) == (["cancel_expired"], said)


def test_a_request_whose_order_was_taken_over_meanwhile_is_attempted_again(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: AWAY)
    gate.take(gate.an_order(seconds=7200))
    request, other = gate.a_request(seconds=3600), Ledger(gate.database, clock=gate.hand)
    other.catch_up()  # it reads the leases

    def paused(_: Any) -> Any:
        gate.wait(LEASE)
        claim = claimed(other.claim(Key("m", "o1"), send=False))
        since = claim.history.doubt_since
        assert other.finish(claim, without_event(State.IN_DOUBT, doubt_since=since))
        return AWAY

    gate.pos = paused
    gate.take(request, Action.CANCEL, settled=False)
    gate.pos, said = lambda _: CANCELLED, len(gate.said)
    gate.take(request, Action.CANCEL)
    assert [method for method, _ in gate.said[said:]] == ["GET"], "it may have been cancelled"
    assert gate.recorded() == [("cancelled", None)]


def test_a_cancellation_stays_in_doubt_for_an_hour_and_then_ends_so(tmp_path: Path) -> None:
    gate, request = in_doubt_and_late(tmp_path)
    tries, since = 0, gate.hand.seconds
    while (again := gate.take(request, Action.CANCEL, **{wire.ATTEMPTS: tries}).again) is not None:
        assert again.headers[wire.RESOLVE] is True
        tries += 1
        gate.wait(again.delay)
    assert reasons(gate) == ["cancel_in_doubt"]
    assert RESOLVE_FOR - 60 <= gate.hand.seconds - since <= RESOLVE_FOR
    assert tries < 200
    gate.pos = lambda _: CANCELLED
    gate.take_cancel()  # a request with a later deadline is attempted
    assert gate.recorded()[-1] == ("cancelled", None)


def test_a_pos_without_look_up_leaves_a_cancellation_in_doubt(tmp_path: Path) -> None:
    gate, request = in_doubt_and_late(tmp_path)
    gate.promise(Guarantee.BLIND)
    said = len(gate.said)
    gate.take(request, Action.CANCEL)
    assert (reasons(gate), len(gate.said)) == (["cancel_in_doubt"], said)


def test_a_cancellation_in_doubt_that_expires_without_a_slot_is_looked_up_with_one(
    tmp_path: Path,
) -> None:
    gate, request = in_doubt_and_late(tmp_path)
    gate.pos, said = lambda _: CANCELLED, len(gate.said)
    again = gate.take(request, Action.CANCEL, expired=True).again
    assert (again is not None and again.headers[wire.RESOLVE], len(gate.said)) == (True, said)
    gate.take(request, Action.CANCEL)
    assert gate.recorded()[-1] == ("cancelled", None)


def test_a_cancellation_that_is_not_in_doubt_expires_without_a_look_up(tmp_path: Path) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: (429, {})
    request = gate.a_request(seconds=60)
    gate.take(request, Action.CANCEL)
    gate.wait(61)
    said = len(gate.said)
    gate.take(request, Action.CANCEL)
    assert (reasons(gate), len(gate.said)) == (["cancel_expired"], said)


@pytest.mark.parametrize("repeated", ["order", "request"])
def test_a_repeated_request_repeats_its_event(tmp_path: Path, repeated: str) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: CANCELLED
    gate.take_cancel()
    order, request = gate.an_order(seconds=7200), gate.a_request()

    def again() -> list[dict[str, Any]]:
        gate.take(order) if repeated == "order" else gate.take(request, Action.CANCEL)
        return gate.repeated()

    assert again() == []  # an unpublished event is not repeated
    assert gate.publish_events() == ["accepted", "cancelled"]
    said, told = len(gate.said), again()
    assert [(each["type"], each["position"]) for each in told] == [
        ("order.accepted", 1),
        ("order.cancelled", 2),
    ]
    assert again() == told
    assert (len(gate.said), gate.publish_events()) == (said, ["accepted", "cancelled"])


@pytest.mark.parametrize("repeated", ["order", "request"])
def test_an_event_that_cannot_be_repeated_now_is_repeated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: str
) -> None:
    gate = accepted(tmp_path)
    gate.pos = lambda _: CANCELLED
    gate.take_cancel()
    gate.publish_events()
    record, action = gate.an_order(seconds=7200), Action.SUBMIT
    if repeated == "request":
        record, action = gate.a_request(), Action.CANCEL
    away = OperationalError("select", {}, Exception("the database is away"))
    with monkeypatch.context() as patch:
        patch.setattr(gate.repeating, "ends", Mock(side_effect=away))
        decided = gate.take(record, action)
    assert decided.again is not None
    assert gate.repeated() == []
    gate.take(record, action)
    assert [each["type"] for each in gate.repeated()] == ["order.accepted", "order.cancelled"]


def test_a_request_for_a_terminal_order_repeats_the_orders_event(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (422, {"error": {"code": "sold_out", "message": "no"}}))
    gate.take(gate.an_order())
    gate.publish_events()
    for _ in range(2):
        gate.take_cancel()
        [told] = gate.repeated()
        assert (told["type"], told["reason"]["code"]) == ("order.rejected", "sold_out")
    assert gate.recorded() == [("rejected", "sold_out")]


def test_a_pruned_event_is_recorded_again_under_its_id(tmp_path: Path) -> None:
    gate = accepted(tmp_path)
    gate.publish_events()
    [(before,)] = gate.rows("select event_id from events")
    with gate.database.begin() as connection:
        connection.exec_driver_sql("delete from events")
    gate.take(gate.an_order())
    assert gate.rows("select event_id, type, external_id from events") == [
        (before, "accepted", "pos-1")
    ]
    assert gate.repeated() == []
    gate.publish_events()
    assert gate.rows("select position from events") == [(2,)]


def test_a_repeated_invalid_order_repeats_its_event(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    bad = gate.an_order(total=8.5)
    gate.take(bad)
    gate.publish_events()
    gate.take(bad)
    [told] = gate.repeated()
    assert (told["type"], told["position"]) == ("order.failed", 1)


def test_an_order_that_arrives_after_its_cancel_request_is_cancelled(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take_cancel()
    gate.take(gate.an_order())
    gate.take_cancel(seconds=600)
    assert gate.row_state(action="cancel") == "cancelled"
    assert (gate.said, gate.recorded()) == ([], [("cancelled", None)])


def test_a_request_that_is_recorded_first_stops_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was unavailable between its claim of the request and that of the order."""
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    claim = gate.ledger.claim

    def away(key: Key, **named: Any) -> Any:
        if key.action is Action.SUBMIT:
            raise LedgerUnavailable("away")
        return claim(key, **named)

    request = gate.a_request(seconds=600)
    with monkeypatch.context() as patch:
        patch.setattr(gate.ledger, "claim", away)
        gate.take(request, Action.CANCEL)
    decided = gate.take(gate.an_order())
    assert (decided.outcome.reason and decided.outcome.reason.code) == "cancelling"
    assert (gate.row_state(), gate.row_state(action="cancel")) == ("new", "new")
    gate.take(request, Action.CANCEL)
    gate.take(gate.an_order())
    assert (gate.said, gate.recorded()) == ([], [("cancelled", None)])


def test_a_cancel_request_keeps_the_reason_of_an_order_that_needs_an_operator(
    tmp_path: Path,
) -> None:
    """The reason tells the operator what to do."""
    gate = Gate(tmp_path, lambda _: NoValidReply("cut", "the reply ends too early"))
    order = gate.an_order(seconds=7200)
    gate.take(order)
    moved = Merchant.parse({"id": "m", "base_url": "https://elsewhere.example.com"})
    MerchantStore(gate.database).put([moved])
    gate.wait(LOOK)
    gate.take(order)
    for _ in range(2):
        query = "select state, reason_code from orders where action = 'submit'"
        assert gate.rows(query) == [("in_doubt", "moved")]
        gate.take_cancel(seconds=600)


END_OF_THE_CALENDAR = "9999-12-31T23:59:59.9999999Z"


def test_a_request_may_have_no_deadline(tmp_path: Path) -> None:
    """.NET's DateTime.MaxValue: as a float it is in the year 10000, after Python's last date."""
    gate = accepted(tmp_path)
    for_ever = {**gate.a_request(), "deliver_by": END_OF_THE_CALENDAR}
    short = gate.a_request(seconds=60)
    gate.take(for_ever, Action.CANCEL)
    gate.take(short, Action.CANCEL)
    gate.wait(61)
    late = gate.take(short, Action.CANCEL)
    assert late.again is not None
    record, _ = wire.read(late.again.body)
    assert record["deliver_by"].startswith("9999-12-31T23:59:59")
    assert (gate.dead(), gate.row_state(action="cancel")) == ([], "new")
    gate.pos = lambda _: CANCELLED
    gate.take(record, Action.CANCEL)
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]


@pytest.mark.parametrize("until", [END_OF_THE_CALENDAR, "9999-12-31T23:59:59-14:00"])
def test_an_order_may_have_no_deadline(tmp_path: Path, until: str) -> None:
    """And its row does not extend its message's deadline for ever."""
    gate = Gate(tmp_path, lambda _: AWAY)
    order = gate.an_order()
    gate.take({**order, "deliver_by": until})
    first = gate.take(order)
    assert first.again is not None
    record, _ = wire.read(first.again.body)
    assert record["deliver_by"].startswith("9999-12-31T23:59:59")
    gate.pos = lambda _: ACCEPTED
    gate.take(record)
    assert gate.recorded() == [("accepted", None)]


def died_with(gate: Gate, deaths: int, action: str = "cancel") -> None:
    with gate.database.begin() as connection:
        connection.exec_driver_sql(f"update orders set deaths = {deaths} where action = '{action}'")


@pytest.mark.parametrize("is_open", [False, True], ids=["accepted", "in doubt"])
def test_a_poison_request_needs_an_operator(tmp_path: Path, is_open: bool) -> None:
    """And the backend has an event that an accepted order was not cancelled."""
    gate = Gate(tmp_path, lambda _: AWAY) if is_open else accepted(tmp_path)
    if is_open:
        gate.take(gate.an_order(seconds=7200))
    gate.pos = lambda _: AWAY
    gate.take_cancel(seconds=600)
    assert gate.row_state(action="cancel") == "new"
    died_with(gate, 3)
    said, before = len(gate.said), gate.row_state()
    gate.take_cancel(seconds=600)
    assert len(gate.said) == said
    assert gate.dead() == ["poison"]
    assert (gate.row_state(), gate.row_state(action="cancel")) == (before, "failed")
    assert reasons(gate) == ([] if is_open else ["poison"])
    gate.pos = lambda _: CANCELLED  # a request with a later deadline is attempted
    gate.take_cancel(seconds=1200)
    assert gate.recorded()[-1] == ("cancelled", None)


@pytest.mark.parametrize("suspected", Action)
@pytest.mark.parametrize("may_call", [True, False])
def test_a_suspects_request_that_waits_for_its_turn_is_in_no_worker_s_hands(
    tmp_path: Path, suspected: Action, may_call: bool
) -> None:
    """Neither its row nor its order's, whichever is suspected; else each would have a death more."""
    gate = Gate(tmp_path, lambda _: AWAY)
    poison = gate.an_order("p1", seconds=7200)
    for each in (poison, gate.an_order(seconds=7200)):
        gate.take(each)
    gate.take_cancel(seconds=600)
    with gate.database.begin() as connection:
        of_those = f"order_id = 'p1' or action = '{suspected}'"
        connection.exec_driver_sql(f"update orders set deaths = 2 where {of_those}")
    seen: list[Any] = []

    def pos(_: Any) -> Any:
        if not seen:
            request, said = gate.a_request(seconds=600), len(gate.said)
            decided = gate.take(request, Action.CANCEL, may_call=may_call)
            assert len(gate.said) == said
            seen.append(decided.outcome.reason and decided.outcome.reason.code)
            seen.append(decided.again is not None)
            seen.append(gate.rows("select order_id from orders where owner is not null"))
        return AWAY

    gate.pos = pos
    gate.take(poison)
    assert seen == ["suspect", True, [("p1",)]]
    gate.pos = lambda _: CANCELLED
    gate.take_cancel(seconds=600)
    assert gate.recorded()[-1][0] == "cancelled"


def test_a_suspected_request_for_a_suspected_order_is_attempted(tmp_path: Path) -> None:
    """It is alone already when it comes to its order."""
    gate = Gate(tmp_path, lambda _: AWAY)
    gate.take(gate.an_order(seconds=7200))
    gate.take_cancel(seconds=600)
    with gate.database.begin() as connection:
        connection.exec_driver_sql("update orders set deaths = 2")
    gate.pos = lambda _: CANCELLED
    for _ in range(2):
        gate.take_cancel(seconds=600)
    assert gate.recorded()[-1][0] == "cancelled"


@pytest.mark.parametrize("guarantee", [Guarantee.KEYED, Guarantee.QUERYABLE])
def test_an_order_is_not_sent_after_a_worker_died_cancelling_it(
    tmp_path: Path, guarantee: Guarantee
) -> None:
    """However late: the POS may have cancelled it, and no attempt of the request came since."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    gate.promise(guarantee)
    order = gate.an_order(seconds=7200)
    gate.take(order)
    gate.wait(100)
    gate.take_cancel(seconds=60)
    with gate.database.begin() as connection:
        connection.exec_driver_sql(
            "update orders set owner = 'dead-1-aaa-1', state = 'sending', doubt_since = null "
            "where action = 'cancel'"
        )
    gate.wait(61)
    gate.said.clear()
    gate.pos = lambda request: (404, {}) if request.method == "GET" else ACCEPTED
    gate.take(order)
    assert {method for method, _ in gate.said} == {"GET"}


def test_a_request_that_waits_for_its_turn_has_made_no_attempt(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: AWAY)
    gate.take(gate.an_order(seconds=7200))
    gate.take_cancel(seconds=600)
    died_with(gate, 2, "submit")
    query = "select attempts, attempt_history from orders where action = 'cancel'"
    before = gate.rows(query)
    with gate.caller._suspects:
        decided = gate.take_cancel(seconds=600)
    assert decided.outcome.reason is not None
    assert decided.outcome.reason.code == "suspect"
    assert gate.rows(query) == before
    assert gate.rows("select reason_code from orders where action = 'cancel'") == [("suspect",)]


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("resolve", [True, False])
def test_what_waits_for_its_turn_to_be_looked_up_is_still_to_be_looked_up(
    tmp_path: Path, action: Action, resolve: bool
) -> None:
    """A backend's own header says nothing of that: its first message was not tried yet."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    order = gate.an_order(seconds=60)
    gate.take(order)
    gate.take_cancel(seconds=60)
    gate.wait(61)
    with gate.database.begin() as connection:
        connection.exec_driver_sql("update orders set deaths = 2")
    with gate.caller._suspects:
        record = order if action is Action.SUBMIT else gate.a_request(seconds=-1)
        decided = gate.take(record, action, **{wire.RESOLVE: resolve, wire.ATTEMPTS: 1})
        first = gate.take(record, action, **{wire.RESOLVE: resolve})
    for again, keeps in ((decided.again, resolve), (first.again, False)):
        assert again is not None
        assert again.headers[wire.RESOLVE] is keeps


@pytest.mark.parametrize("written", [0, 1], ids=["none", "the order"])
def test_a_request_ends_after_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A request that had ended would leave its order to be sent: its redelivery claims it no more."""
    gate = Gate(tmp_path, lambda _: AWAY)
    gate.take(gate.an_order())
    gate.pos = lambda _: CANCELLED
    finish, rows = gate.ledger.finish, [True] * written

    def finish_some(*entry: Any, **named: Any) -> bool:
        if not rows:
            raise LedgerUnavailable("away")
        return rows.pop() and finish(*entry, **named)

    with monkeypatch.context() as patch, pytest.raises(LedgerUnavailable):
        patch.setattr(gate.ledger, "finish", finish_some)
        gate.take_cancel()
    assert gate.row_state(action="cancel") == "sending"
    gate.take_cancel()
    assert (gate.row_state(), gate.row_state(action="cancel")) == ("cancelled", "cancelled")
    assert gate.recorded() == [("cancelled", None)]


def test_an_internal_error_ends_the_request_as_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = accepted(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(gate.directory, "get", lambda _: 1 / 0)
        gate.take_cancel()
    assert gate.recorded()[-1] == ("accepted", "not_cancelled")
    assert reasons(gate) == ["internal_error"]
    assert gate.dead() == ["internal_error"]


def test_a_request_is_retried_before_its_deadline_whatever_retry_after_says(
    tmp_path: Path,
) -> None:
    gate = accepted(tmp_path)

    def exchange(_request: Any, *, fence: Any, **_: Any) -> Reply:
        fence()
        return Reply(429, {"retry-after": "3600"}, b"")

    gate.caller.exchange = exchange  # type: ignore[method-assign]
    again = gate.take_cancel(seconds=600).again
    assert again is not None
    assert again.delay == 600 - LAST_ATTEMPT


def rows_of(gate: Gate) -> list[Any]:
    columns = "action, state, attempts, doubt_since, pending, deliver_by, reason_code"
    return [tuple(row) for row in gate.rows(f"select {columns} from orders order by action")]


@pytest.mark.parametrize("answer", [ACCEPTED, (202, {"status": "pending", "id": "1"}), AWAY])
def test_without_a_call_an_order_that_its_pos_may_have_is_unchanged(
    tmp_path: Path, answer: Any
) -> None:
    gate = Gate(tmp_path, lambda _: answer)
    gate.take(gate.an_order())
    request = gate.a_request(seconds=600)
    gate.pos = lambda _: AWAY
    gate.take(request, Action.CANCEL)
    before, said = rows_of(gate), list(gate.said)
    stored = list(gate.stored)
    decided = gate.take(request, Action.CANCEL, may_call=False)
    assert (decided.needs_pos, decided.messages) == (True, ())
    assert (rows_of(gate), gate.said, gate.stored) == (before, said, stored)
    gate.pos = lambda _: CANCELLED
    assert not gate.take(request, Action.CANCEL).needs_pos
    assert gate.recorded()[-1] == ("cancelled", None)


@pytest.mark.parametrize("answer", [None, (429, {}), (422, {})])
def test_without_a_call_an_order_that_was_not_sent_is_cancelled_or_keeps_its_outcome(
    tmp_path: Path, answer: Any
) -> None:
    gate = Gate(tmp_path, lambda _: answer)
    if answer is not None:
        gate.take(gate.an_order())
    said = list(gate.said)
    decided = gate.take(gate.a_request(), Action.CANCEL, may_call=False)
    assert not decided.needs_pos
    gate.take(gate.an_order())
    assert gate.said == said
    ended = ("rejected", "rejected") if answer == (422, {}) else ("cancelled", None)
    assert gate.recorded()[-1][0] == ended[0]
    assert gate.row_state(action="cancel") in ("cancelled", "rejected")


def test_without_a_call_an_expired_request_ends(tmp_path: Path) -> None:
    gate = accepted(tmp_path)
    assert not gate.take(gate.a_request(seconds=-1), Action.CANCEL, may_call=False).needs_pos
    assert reasons(gate) == ["cancel_expired"]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_order_that_its_pos_has_rejected_since_is_told_as_cancelled(
    tmp_path: Path, is_late: bool
) -> None:
    """Whether the reply to the cancellation says so, or a look-up after its reply was lost."""
    gate = accepted(tmp_path)
    request = gate.a_request(seconds=60)
    if is_late:
        gate.pos = lambda _: NoValidReply("cut_short", "lost")
        gate.take(request, Action.CANCEL)
        gate.wait(600)
    gate.pos = lambda _: (200, {"status": "rejected", "id": "pos-1"})
    gate.take(request, Action.CANCEL)
    assert gate.said[-1][0] == ("GET" if is_late else "POST")
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]


def test_an_adapter_knows_the_pos_s_id_of_an_order_that_it_cancels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, known_as = accepted(tmp_path), []
    adapter = gate.adapters["rest"]

    def cancel(order: Any, *_: Any) -> Outcome:
        known_as.append(order.external_id)
        return Outcome(Kind.CANCELLED)

    monkeypatch.setattr(adapter, "cancel", cancel)
    gate.take_cancel()
    assert known_as == ["pos-1"]


def test_an_undo_that_its_pos_has_answered_in_part_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancel(order: Any, merchant: Merchant, send: Any) -> Outcome:
        send(Request("POST", f"{merchant.base_url}/refunds"))
        return RestAdapter().cancel(order, merchant, send)

    gate = accepted(tmp_path)
    monkeypatch.setattr(gate.adapters["rest"], "cancel", cancel)
    away = NotSent("connect", "refused")
    gate.pos = lambda request: (200, {}) if request.url.endswith("/refunds") else away
    request = gate.a_request(seconds=20)
    for _ in range(2):  # the second after the request's deadline
        gate.take(request, Action.CANCEL)
        gate.wait(40)
    assert gate.recorded() == [("accepted", None)]
    gate.pos = lambda _: CANCELLED
    gate.take(request, Action.CANCEL)
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]
