"""``pos-gateway orders`` and ``cancel``: what people see of orders, and decide by hand."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from pos_gateway.broker import topology
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import OrderChanged
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.states import (
    Action,
    AttemptHistory,
    CallRecord,
    Claim,
    Entry,
    Key,
    State,
)
from pos_gateway.runtime.vault import new_key
from tests.cli.books import WHY, Books, Letters
from tests.cli.conftest import Program

DAY = 86_400.0


def soon(seconds: float) -> dict[str, str]:
    """Fields of an order that has these seconds left, or none any more."""
    now = datetime.now(UTC)
    return {
        "placed_at": (now - timedelta(days=90)).isoformat(),
        "deliver_by": (now + timedelta(seconds=seconds)).isoformat(),
    }


def listed(program: Program, *arguments: str) -> list[str]:
    done = program.invoke("orders", "list", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line)["order_id"] for line in done.stdout.splitlines()]


def test_orders_are_listed_and_narrowed_down(program: Program, any_books: Books) -> None:
    now = time.time()
    any_books.order("old", State.ACCEPTED, at=now - 7200)
    any_books.order("new", State.FAILED, at=now - 60)
    any_books.order("other", State.ACCEPTED, at=now - 3600, merchant_id="m-2")
    doubtful = any_books.in_doubt("doubtful")
    any_books.cancellation(doubtful, State.NEW)
    assert listed(program) == ["doubtful", "new", "other", "old"]
    assert listed(program, "--state", "in_doubt") == ["doubtful"]
    assert listed(program, "--state", "failed", "--state", "in_doubt") == ["doubtful", "new"]
    assert listed(program, "--merchant", "m-2") == ["other"]
    assert listed(program, "--order", "new") == ["new"]
    assert listed(program, "--older-than", "90m") == ["old"]
    assert listed(program, "--newer-than", "90m", "--limit", "2") == ["doubtful", "new"]
    done = program.invoke("orders", "list", "--limit", "1")
    heading, row = (line.split("\t") for line in done.stdout.splitlines())
    assert row[:6] == ["doubtful", "m-1", "in_doubt", "new", "1", "timeout"]
    assert heading[:6] == ["ORDER", "MERCHANT", "STATE", "CANCEL", "ATTEMPTS", "REASON"]
    assert "there are more than these 1" in done.stderr


def test_all_that_is_known_of_an_order_is_shown(program: Program, any_books: Books) -> None:
    key = any_books.in_doubt("o-1", customer={"name": "Quackenbush"}, notes="ring twice")
    any_books.cancellation(key, State.EXPIRED)
    any_books.order_admin.note(key, operator="kim", what="looked", details="at it")
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    assert record["order"]["state"] == "in_doubt"
    assert record["cancellation"]["state"] == "expired"
    assert [event["type"] for event in record["events"]] == ["order.in_doubt"]
    assert record["audit"][0]["what"] == "looked"
    assert record["content"]["items"][0]["name"] == "Soup"
    assert record["content"]["customer"] == record["content"]["notes"] == "********"
    revealed = json.loads(program.invoke("orders", "show", "o-1", "--json", "--reveal").stdout)
    assert revealed["content"]["customer"] == {"name": "Quackenbush"}
    assert revealed["audit"][-1] == {
        "at": revealed["audit"][-1]["at"],
        "operator": "kim",
        "what": "orders.reveal",
        "details": "orders show",
    }
    text = program.invoke("orders", "show", "o-1").stdout
    assert "Quackenbush" not in text
    assert "looked\tat it" in text


def test_the_steps_at_the_pos_are_shown(program: Program, books: Books) -> None:
    key = books.in_doubt("o-1")
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    assert (record["steps"], record["at_pos"], record["advice"]) == ([], None, None)
    books.in_step(key, "0 pay", external_id="K-77")
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    since = record["order"]["in_doubt_since"]
    assert record["steps"] == [
        {"name": "create", "state": "taken", "since": None},
        {"name": "pay", "state": "in_doubt", "since": since},
    ]
    assert record["at_pos"].startswith("At the POS as K-77: create. Whether pay is there")
    text = program.invoke("orders", "show", "o-1").stdout
    assert "create\ttaken\t" in text
    assert f"pay\tin_doubt\t{since}" in text
    assert "The POS is asked for it until an hour after deliver_by" in text
    books.in_step(key, "0 -create", reason_code="not_undone")
    text = program.invoke("orders", "show", "o-1").stdout
    assert "The POS has not undone create.\nTo end it, have the merchant cancel it there" in text


def test_what_was_adapted_for_the_pos_is_shown(program: Program, books: Books) -> None:
    key = books.in_doubt("o-1")
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    assert (record["adapted"], record["adapted_more"]) == ([], 0)
    assert "FIELD\tAS" not in program.invoke("orders", "show", "o-1").stdout
    fields = [{"field": "delivery.address", "as": "note"}, {"field": "utensils", "as": "tab_name"}]
    with books.engine.begin() as connection:
        said = json.dumps({"adapted": fields, "adapted_more": 1200})
        connection.execute(update(orders).values(adapted=said))
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    assert (record["adapted"], record["adapted_more"]) == (fields, 1200)
    text = program.invoke("orders", "show", "o-1").stdout
    assert "FIELD\tAS\ndelivery.address\tnote\nutensils\ttab_name\n" in text
    assert "further adapted fields: 1,200\n" in text
    books.cancellation(key, State.NEW)
    assert "delivery.address\tnote" in program.invoke("orders", "show", "o-1").stdout


def test_nothing_is_revealed_without_a_line_in_the_audit(program: Program, books: Books) -> None:
    books.in_doubt("o-1", customer={"name": "Quackenbush"})
    reveal = ("orders", "show", "o-1", "--reveal")
    unnamed = program.invoke(*reveal, USER="")
    assert (unnamed.exit_code, "--reveal needs --as NAME" in unnamed.stderr) == (2, True)
    assert program.invoke("orders", "show", "o-1", USER="").exit_code == 0
    with books.order_admin._engine.begin() as connection:  # as on a standby: it can be read alone
        connection.execute(
            text("create trigger t before insert on audit begin select raise(fail, 'full'); end")
        )
    refused = program.invoke(*reveal)
    assert refused.exit_code == 1
    assert "nothing is revealed: the audit's line cannot be written: full" in refused.stderr
    assert "Quackenbush" not in unnamed.output + refused.output


def test_the_last_attempts_are_shown(program: Program, books: Books) -> None:
    claim, call = books.claimed("o-1"), CallRecord(0.25, 0.5, 0.125, None, 1.5, "timeout")
    retry = Entry(State.NEW, time.time(), 1, reason=WHY, outcome=Kind.RETRY, call=call)
    assert books.ledger.finish(claim, retry)
    key = books.order("o-1", State.PENDING, history=AttemptHistory(pending=True), reason=None)
    books.cancellation(key, State.EXPIRED)
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    first, *_ = record["attempt_history"]
    assert {**first, "at": ""} == {
        "at": "",
        "action": "submit",
        "did": "send",
        "waited_seconds": 0.25,
        "claim_seconds": 0.5,
        "connect_seconds": 0.125,
        "first_byte_seconds": None,
        "seconds": 1.5,
        "came": "timeout",
        "outcome": "retry",
        "reason": "timeout",
        "message": "no reply in time",
        "worker": books.ledger.lease.id,
    }
    assert [each["action"] for each in record["attempt_history"]] == ["submit", "cancel"]
    text = program.invoke("orders", "show", "o-1").stdout
    assert "AT\tACTION\tDID\tSECONDS\tCAME\tOUTCOME\tREASON\tWORKER" in text
    assert "submit\tsend\t1.5\ttimeout\tretry\ttimeout" in text


def test_a_poses_own_words_in_an_attempt_are_masked(program: Program, books: Books) -> None:
    words = Reason("sold_out", "no Quackenbush")
    key = books.order("o-1", State.REJECTED, reason=words)
    cancel = Key(key.merchant_id, key.order_id, Action.CANCEL)
    claim = books.ledger.claim(cancel, send=False)
    assert isinstance(claim, Claim)
    call = CallRecord(None, 0.0, 0.0, 0.5, 0.5, 409)  # refused, and retried
    retry = Entry(State.NEW, time.time(), 1, reason=words, outcome=Kind.RETRY, call=call)
    assert books.ledger.finish(claim, retry)
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    said = [(each["reason"], each["message"]) for each in record["attempt_history"]]
    assert said == [(MASK, MASK)] * 2
    revealed = json.loads(program.invoke("orders", "show", "o-1", "--json", "--reveal").stdout)
    assert [each["message"] for each in revealed["attempt_history"]] == ["no Quackenbush"] * 2


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.REJECTED, "Quackenbush"),
        (State.ACCEPTED, "not_cancelled"),
        (State.REJECTED, "sold_out"),
    ],
)
def test_the_poses_own_words_are_masked(
    program: Program, books: Books, state: State, code: str
) -> None:
    books.order("o-1", state, reason=Reason(code, "no Quackenbush"))
    for arguments in (("list",), ("list", "--json"), ("show", "o-1"), ("show", "o-1", "--json")):
        assert "Quackenbush" not in program.invoke("orders", *arguments).output
    record = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)
    assert record["order"]["reason_message"] == MASK
    [event] = record["events"]
    assert (event["reason"], event["message"]) == (MASK, MASK)
    revealed = json.loads(program.invoke("orders", "show", "o-1", "--json", "--reveal").stdout)
    assert revealed["order"]["reason_message"] == "no Quackenbush"
    [event] = revealed["events"]
    assert (event["reason"], event["message"]) == (code, "no Quackenbush")


def test_what_the_gateway_says_itself_is_shown(program: Program, books: Books) -> None:
    books.order("o-1", State.FAILED, reason=Reason("http_401", "the POS answered 401"))
    [event] = json.loads(program.invoke("orders", "show", "o-1", "--json").stdout)["events"]
    assert (event["reason"], event["message"]) == ("http_401", "the POS answered 401")


def test_an_order_sealed_under_an_unknown_key_is_shown_without_its_content(
    program: Program, database_url: str, order: Callable[..., dict[str, Any]]
) -> None:
    books = Books(database_url, order, new_key())
    books.in_doubt("o-1")
    shown = program.invoke("orders", "show", "o-1").stdout
    assert "which POS_GATEWAY_SECRET_KEY has not" in shown
    books.close()


def test_an_unknown_order_is_a_sentence(program: Program, books: Books) -> None:
    for command in (("show",), ("resolve", "--accepted")):
        done = program.invoke("orders", *command, "no-such")
        assert done.exit_code == 1
    assert (
        "pos-gateway: the ledger knows no order 'no-such'"
        in program.invoke("orders", "show", "no-such").stderr
    )


def test_an_id_that_several_merchants_have_asks_for_the_merchant(
    connected: Program, books: Books
) -> None:
    books.in_doubt("o-1")
    books.in_doubt("o-1", merchant_id="m-2")
    done = connected.invoke("orders", "resolve", "o-1", "--accepted")
    assert done.exit_code == 1
    assert "several merchants have an order 'o-1'" in done.stderr
    assert "--merchant" in done.stderr
    assert connected.invoke("orders", "show", "o-1", "--merchant", "m-2").exit_code == 0


def test_an_order_that_the_pos_has_ends_accepted_and_the_backend_is_told(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    key = any_books.in_doubt("o-1")
    done = connected.invoke("orders", "resolve", "o-1", "--accepted", "--external-id", "K-7")
    assert (done.exit_code, done.stdout) == (
        0,
        "order 'o-1' of merchant 'm-1' is accepted; the event is recorded\n",
    )
    after = any_books.now(key)
    assert (after.state, after.external_id, after.doubt_since) == (State.ACCEPTED, "K-7", None)
    assert any_books.told(key) == ["in_doubt", "accepted"]
    assert any_books.audit(key) == [("kim", "orders.resolve.accepted")]
    [_, event] = any_books.order_admin.events(key)
    assert (event["type"], event["external_id"]) == ("accepted", "K-7")
    assert event["reason_code"] == "resolved"
    # A message that comes late finds how it ended.
    assert not isinstance(any_books.ledger.claim(key, send=True), Claim)


def test_an_order_that_was_not_sent_is_new_without_doubt_and_on_the_queue(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    key = any_books.in_doubt("o-1")
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent", "--as", "sam")
    assert "is on the queue again" in done.stdout
    after = any_books.now(key)
    assert (after.state, after.doubt_since, after.owner) == (State.NEW, None, None)
    assert any_books.audit(key) == [("sam", "orders.resolve.not_sent")]
    assert any_books.told(key) == ["in_doubt"]
    [[[order], _, _]] = letters.bodies("orders")
    assert order["order_id"] == "o-1"
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    assert not claim.history.may_be_there


def test_an_order_that_workers_died_of_begins_anew_when_an_operator_says_it_was_not_sent(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    """Else it would be set aside as poison again before anybody sends it."""
    key = any_books.in_doubt("o-1")
    with any_books.engine.begin() as connection:
        connection.execute(update(orders).values(deaths=3))
    assert any_books.now(key).deaths == 3
    connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert any_books.now(key).deaths == 0
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    assert claim.history.deaths == 0


def test_it_goes_to_the_canary_if_its_merchant_is_in_it(
    connected: Program, books: Books, letters: Letters
) -> None:
    books.in_doubt("o-1")
    connected.invoke("orders", "resolve", "o-1", "--not-sent", POS_GATEWAY_CANARY_PERCENT="100")
    assert letters.numbers(topology.CANARY_KEY) == ["o-1"]


def test_an_order_that_is_too_late_expires_unless_it_is_given_new_time(
    connected: Program, books: Books, letters: Letters
) -> None:
    late, given = books.in_doubt("late", **soon(-60)), books.in_doubt("given", **soon(-60))
    done = connected.invoke("orders", "resolve", "late", "--not-sent")
    assert "has expired" in done.stdout
    assert books.now(late).state is State.EXPIRED
    assert books.told(late) == ["in_doubt", "expired"]
    assert letters.numbers() == ["late"]
    connected.invoke("orders", "resolve", "given", "--not-sent", "--for", "30m")
    after = books.now(given)
    assert after.state is State.NEW
    assert after.deliver_by is not None
    assert 1700 < after.deliver_by - time.time() <= 1800
    assert "deliver_by" in books.order_admin.audit(given)[0]["details"]
    [[[order], _, _]] = letters.bodies("orders")
    assert datetime.fromisoformat(order["deliver_by"]).timestamp() == pytest.approx(
        after.deliver_by
    )
    kept = books.order_admin.order_json(given)
    assert kept is not None
    assert json.loads(kept)["deliver_by"] == order["deliver_by"]


@pytest.mark.parametrize("state", [s for s in State if s is not State.IN_DOUBT and not s.is_leased])
def test_what_is_not_in_doubt_is_not_resolved(
    connected: Program, books: Books, letters: Letters, state: State
) -> None:
    key = books.order("o-1", state)
    before = books.now(key)
    for decision in ("--accepted", "--not-sent"):
        done = connected.invoke("orders", "resolve", "o-1", decision)
        assert done.exit_code == 1
        assert f"is not in doubt: it is {state}" in done.stderr
    assert books.now(key) == before
    assert books.audit(key) == []
    assert letters.on("orders") == letters.on("order-events") == []


def test_what_a_worker_has_in_its_hands_is_left_to_it_until_it_is_dead(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    key = any_books.claimed("o-1").key
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert done.exit_code == 1
    assert "has order 'o-1' of merchant 'm-1' at this moment" in done.stderr
    any_books.worker_dies()
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert done.exit_code == 1
    assert "ask the merchant again" in done.stderr  # the next worker may send it before
    assert connected.invoke("orders", "resolve", "o-1", "--accepted").exit_code == 0
    assert any_books.now(key).state is State.ACCEPTED


def test_a_decision_that_was_broken_off_is_carried_out_by_the_same_command(
    connected: Program, books: Books, letters: Letters
) -> None:
    there, not_there = books.in_doubt("there"), books.in_doubt("not-there")
    for _ in range(2):
        assert connected.invoke("orders", "resolve", "there", "--accepted").exit_code == 0
        assert connected.invoke("orders", "resolve", "not-there", "--not-sent").exit_code == 0
    assert books.told(there) == ["in_doubt", "accepted"]
    assert letters.numbers("orders") == ["not-there"] * 2
    # The commit of the second line confirms what was only read.
    assert books.audit(there) == [("kim", "orders.resolve.accepted")] * 2
    assert books.audit(not_there) == [("kim", "orders.resolve.not_sent")] * 2


def test_an_external_id_that_comes_too_late_is_not_passed_over(
    connected: Program, books: Books, letters: Letters
) -> None:
    key = books.in_doubt("o-1")
    assert connected.invoke("orders", "resolve", "o-1", "--accepted").exit_code == 0
    done = connected.invoke("orders", "resolve", "o-1", "--accepted", "--external-id", "K-7")
    assert done.exit_code == 1
    assert "accepted already, with the external id none; 'K-7' was not written" in done.stderr
    assert books.now(key).external_id is None
    books.in_doubt("o-2")
    for _ in range(2):  # the same one is
        said = ("orders", "resolve", "o-2", "--accepted", "--external-id", "K-7")
        assert connected.invoke(*said).exit_code == 0


def test_an_external_id_of_another_order_is_refused_by_name(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    """A callback about it, or a cancel request, would be about either guest's order."""
    one, other = any_books.in_doubt("o-1"), any_books.in_doubt("o-2")
    elsewhere = any_books.in_doubt("o-2", merchant_id="m-2")
    said = ("orders", "resolve", "--accepted", "--external-id", "K-7")
    assert connected.invoke(*said, one.order_id).exit_code == 0
    refused = connected.invoke(*said, other.order_id, "--merchant", "m-1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "'K-7' is the external id of order 'o-1' of merchant 'm-1' already" in refused.stderr
    assert any_books.now(other).state is State.IN_DOUBT
    assert connected.invoke(*said, "o-2", "--merchant", "m-2").exit_code == 0
    assert any_books.now(elsewhere).external_id == "K-7"


@pytest.mark.parametrize("text", ["", "a\x1b[31m", "a\nb", " a", "a\u202eb", "x" * 257])
def test_an_external_id_is_one_short_line(program: Program, text: str) -> None:
    done = program.invoke("orders", "resolve", "o-1", "--accepted", "--external-id", text)
    assert done.exit_code == 2
    assert "--external-id has 1 to 256 characters" in " ".join(done.stderr.split())


def test_an_order_that_has_expired_by_a_decision_is_not_given_time_by_another(
    connected: Program, books: Books, letters: Letters
) -> None:
    key = books.in_doubt("o-1", **soon(-60))
    assert "has expired" in connected.invoke("orders", "resolve", "o-1", "--not-sent").stdout
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent", "--for", "30m")
    assert done.exit_code == 1
    assert "has expired already" in done.stderr and "dlq replay" in done.stderr
    assert letters.numbers() == ["o-1"]
    assert books.now(key).state is State.EXPIRED


def test_new_time_that_is_given_by_a_second_decision_is_in_the_ledger_too(
    connected: Program, books: Books, letters: Letters
) -> None:
    key = books.in_doubt("o-1")
    connected.invoke("orders", "resolve", "o-1", "--not-sent", "--for", "30m")
    connected.invoke("orders", "resolve", "o-1", "--not-sent", "--for", "3h")
    [[sent], _, _] = letters.bodies("orders")[-1]
    after = books.now(key)
    assert after.deliver_by is not None and after.deliver_by > time.time() + 10_000
    assert datetime.fromisoformat(sent["deliver_by"]).timestamp() == pytest.approx(after.deliver_by)
    assert (after.state, after.reopened) == (State.NEW, 1)


@pytest.mark.parametrize("wish", [State.NEW, State.EXPIRED, State.FAILED])
def test_an_order_with_a_cancel_request_is_not_sent(
    connected: Program, books: Books, letters: Letters, wish: State
) -> None:
    """Also if the request had expired: the backend does not want it any more."""
    key = books.in_doubt("o-1")
    books.cancellation(key, wish)
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent", "--for", "30m")
    assert "is cancelled, as a cancel request asks" in done.stdout
    assert books.told(key) == ["in_doubt", "cancelled"]
    assert letters.numbers("orders") == []


def test_an_order_that_was_made_at_its_pos_in_part_is_not_sent_again(
    connected: Program, books: Books, letters: Letters
) -> None:
    """Its payment would be a second one, or its key find the order that was undone."""
    key = books.in_doubt("o-1")
    books.in_step(key, "0 pay")
    for _ in range(2):
        done = connected.invoke("orders", "resolve", "o-1", "--not-sent", "--for", "30m")
        assert "is not sent again, and is cancelled, since its POS keeps its id" in done.stdout
    assert books.told(key) == ["in_doubt", "cancelled"]
    assert (letters.numbers("orders"), letters.numbers()) == ([], [])


def test_an_order_that_its_pos_cancelled_after_a_step_is_not_in_doubt(
    connected: Program, books: Books
) -> None:
    key = books.order("o-1", State.CANCELLED)
    books.in_step(key, "0 pay")
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is not in doubt: it is cancelled" in done.stderr
    assert books.audit(key) == []


def test_an_order_that_is_sent_after_a_decision_is_told_in_doubt_anew(
    connected: Program, books: Books, letters: Letters
) -> None:
    key = books.in_doubt("o-1")
    connected.invoke("orders", "resolve", "o-1", "--not-sent")
    after = books.now(key)
    assert (after.reopened, after.last_event) == (1, None)


def test_an_order_that_a_worker_may_send_again_is_not_said_to_be_missing(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    """The merchant was asked before that. Once it is told as in doubt, it is only asked for."""
    claim = any_books.claimed("o-1")
    doubt = Entry(State.IN_DOUBT, time.time(), attempts=1, doubt_since=time.time())
    assert any_books.ledger.finish(claim, doubt)
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert done.exit_code == 1
    assert "a worker that gets its message still finds out, and may send it again" in done.stderr
    assert "pos-gateway dlq replay o-1" in done.stderr
    any_books.cancellation(claim.key, State.EXPIRED)
    assert connected.invoke("orders", "resolve", "o-1", "--not-sent").exit_code == 1
    assert (any_books.now(claim.key).state, letters.on("orders")) == (State.IN_DOUBT, [])
    assert connected.invoke("orders", "resolve", "o-1", "--accepted").exit_code == 0


def test_an_order_that_no_key_opens_cannot_be_sent_and_that_is_a_sentence(
    connected: Program, database_url: str, order: Callable[..., dict[str, Any]]
) -> None:
    books = Books(database_url, order, new_key())
    key = books.in_doubt("o-1")
    done = connected.invoke("orders", "resolve", "o-1", "--not-sent")
    assert done.exit_code == 1
    assert "which POS_GATEWAY_SECRET_KEY has not" in done.stderr
    assert books.now(key).state is State.IN_DOUBT
    books.close()


@pytest.mark.parametrize(
    ("decision", "is_unwanted"),
    [("--accepted", False), ("--not-sent", False), ("--not-sent", True)],
)
def test_a_decision_is_about_the_order_as_it_was_when_the_merchant_was_asked(
    connected: Program, any_books: Books, decision: str, is_unwanted: bool
) -> None:
    """Sent again after that by a replay or an earlier decision, it may be there now."""
    key = any_books.in_doubt("o-1")
    if is_unwanted:
        any_books.cancellation(key, State.EXPIRED)
    [seen] = map(json.loads, connected.invoke("orders", "list", "--json").stdout.splitlines())
    since = seen["updated_at"]
    earlier = "2026-01-01T12:00:00Z"
    done = connected.invoke("orders", "resolve", "o-1", decision, "--since", earlier)
    assert done.exit_code == 1
    assert f"SINCE is {since} now; ask the merchant again" in done.stderr
    assert any_books.now(key).state is State.IN_DOUBT
    for _ in range(2):  # the same command again, broken off or not
        done = connected.invoke("orders", "resolve", "o-1", decision, "--since", since)
        assert done.exit_code == 0


def test_nothing_is_sent_again_while_there_is_no_queue(program: Program, books: Books) -> None:
    key = books.in_doubt("o-1")
    done = program.invoke("orders", "resolve", "o-1", "--not-sent")
    assert done.exit_code == 1
    assert "cannot reach the broker" in done.stderr
    assert books.now(key).state is State.IN_DOUBT


def test_of_two_who_decide_at_once_one_is_told_to_look_again(any_books: Books) -> None:
    key = any_books.in_doubt("o-1")
    seen = any_books.now(key)
    entry = Entry(State.NEW, time.time(), attempts=1)
    say = {"operator": "kim", "what": "x", "details": ""}
    any_books.order_admin.change(seen, entry, **say)
    with pytest.raises(OrderChanged, match="look at it again"):
        any_books.order_admin.change(seen, entry, **say)
    assert len(any_books.audit(key)) == 1


def test_an_order_that_is_in_doubt_again_is_not_as_it_was_seen(any_books: Books) -> None:
    """A worker has had it meanwhile, and may have sent it."""
    key = any_books.in_doubt("o-1")
    seen = any_books.now(key)
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    doubt = Entry(State.IN_DOUBT, time.time(), attempts=2, doubt_since=time.time())
    assert any_books.ledger.finish(claim, doubt)
    with pytest.raises(OrderChanged):
        any_books.order_admin.change(seen, doubt, operator="kim", what="x", details="")


def test_a_worker_that_was_faster_keeps_the_order(any_books: Books) -> None:
    key = any_books.in_doubt("o-1")
    seen = any_books.now(key)
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    entry = Entry(State.NEW, time.time(), attempts=1)
    with pytest.raises(OrderChanged):
        any_books.order_admin.change(seen, entry, operator="kim", what="x", details="")
    assert any_books.ledger.finish(claim, Entry(State.ACCEPTED, time.time(), attempts=2))
    assert any_books.audit(key) == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "--accepted or --not-sent"),
        (["--accepted", "--for", "30m"], "are for an order that is --not-sent"),
        (["--not-sent", "--external-id", "7"], "is for an order that is --accepted"),
        (["--not-sent", "--for", "soon"], "90s, 30m, 2h or 7d"),
        (["--not-sent", "--deliver-by", "2026-01-01T12:00:00"], "no time with its offset"),
        (["--not-sent", "--deliver-by", "209911280120000Z"], "no time with its offset"),
        (["--not-sent", "--deliver-by", "2026-01-01T12:00:00Z"], "is not in the future"),
        (["--not-sent", "--for", "1m", "--deliver-by", "2099-01-01T12:00:00Z"], "give one of them"),
        (["--not-sent", "--as", ""], "a name has"),
    ],
)
def test_a_decision_that_makes_no_sense_is_refused(
    program: Program, arguments: list[str], why: str
) -> None:
    done = program.invoke("orders", "resolve", "o-1", *arguments)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())


def test_what_is_long_over_is_removed_and_nothing_else(program: Program, any_books: Books) -> None:
    then = time.time() - 40 * DAY
    gone = any_books.order("gone", State.ACCEPTED, at=then - 30 * DAY, **soon(-69 * DAY))
    any_books.cancellation(gone, State.REJECTED, at=then - 30 * DAY)
    over = any_books.order("over", State.ACCEPTED, at=then, **soon(-39 * DAY))
    any_books.cancellation(over, State.REJECTED, at=then)
    any_books.order_admin.note(over, operator="kim", what="looked", details="")
    kept = [
        any_books.order("recent", State.ACCEPTED, at=then + 20 * DAY, **soon(-39 * DAY)),
        any_books.order("not-due", State.ACCEPTED, at=then, **soon(60)),
        any_books.order("open", State.IN_DOUBT, at=then, history=AttemptHistory(doubt_since=then), **soon(-39 * DAY)),
    ]  # fmt: skip
    wished = any_books.order("wished", State.ACCEPTED, at=then, **soon(-39 * DAY))
    any_books.cancellation(wished, State.REJECTED)
    kept.append(wished)
    any_books.publish()
    untold = any_books.order("untold", State.ACCEPTED, at=then, **soon(-39 * DAY))
    dry = program.invoke("orders", "prune", "--older-than", "30d", "--dry-run")
    # A cancel request's attempts are content, too.
    assert dry.stdout.startswith("3 orders would be emptied, 2 rows and 2 events would be removed")
    done = program.invoke("orders", "prune", "--older-than", "30d")
    assert done.stdout.startswith("3 orders emptied, 2 rows and 2 events removed"), done.stderr
    for gone in (Key("m-1", "gone"), Key("m-1", "gone", Action.CANCEL)):
        assert any_books.order_admin.one(gone) is None
    assert any_books.now(over).state is State.ACCEPTED  # and that is all
    assert any_books.order_admin.order_json(over) is None
    assert any_books.told(over) == []
    assert any_books.told(untold) == ["accepted"]
    assert any_books.audit(over) == [("kim", "looked")]
    for key in kept:
        assert any_books.now(key)
        assert any_books.order_admin.order_json(key) is not None
        assert len(any_books.told(key)) == 1
    again = program.invoke("orders", "prune", "--older-than", "30d").stdout
    assert again.startswith("0 orders emptied, 0 rows and 0 events removed")


def test_what_may_still_come_again_is_not_removed(program: Program) -> None:
    done = program.invoke("orders", "prune", "--older-than", "23h")
    assert done.exit_code == 2
    assert "must still find its order" in done.stderr


def test_a_wish_to_cancel_is_on_the_queue(connected: Program, letters: Letters) -> None:
    done = connected.invoke("cancel", "o-1", "--merchant", "m-1", "--for", "2m")
    assert done.stdout == "asked to cancel order 'o-1' of merchant 'm-1'\n"
    [message] = letters.on("orders")
    assert message.headers["task"] == "pos_gateway.cancel_order"
    [[request], _, _] = json.loads(message.body)
    assert (request["order_id"], request["merchant_id"]) == ("o-1", "m-1")
    left = datetime.fromisoformat(request["deliver_by"]) - datetime.now(UTC)
    assert timedelta(seconds=90) < left <= timedelta(minutes=2)


def test_a_wish_to_cancel_what_is_no_order_is_refused(connected: Program) -> None:
    done = connected.invoke("cancel", "o 1", "--merchant", "m-1")
    assert done.exit_code == 1
    assert "order_id" in done.stderr
