"""The search of orders, the page of one order, and what an operator does with it."""

import html
import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import insert, update

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.database.schema import events, orders, submissions
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.outcome import Lifecycle, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.states import AttemptHistory, CallRecord, Claim, Entry, Key, State
from pos_gateway.server.page.links import link
from pos_gateway.server.page.views import order_reading
from pos_gateway.tokens.token import Role
from testkit.faults.adapters import BlindAdapter
from testkit.hostile_records import order_with
from testkit.hostile_text import MARKUP
from testkit.steps.adapters import PrintedAdapter
from tests.cli.books import Books
from tests.page.lab import Browser, Desk, Reply
from tests.server.lab import migrated, order

WHY = "the merchant was asked"
#: A customer's, in each place that has them.
NAME, PHONE, NOTES, ADDRESS = "Quackenbush", "+49 30 555 0199", "ring twice", "7 Elm Street"
QUOTES = "no delivery to Quackenbush"


def personal(**fields: Any) -> dict[str, Any]:
    """An order's fields with personal data."""
    return {
        "customer": {"name": NAME, "phone": PHONE},
        "notes": NOTES,
        "fulfillment": {"address": ADDRESS},
        "items": [
            {
                "sku": "s1",
                "name": "Soup",
                "quantity": 2,
                "unit_price": 500,
                "notes": "for Quackenbush",
                "modifiers": [{"name": "write: happy birthday, Quackenbush", "unit_price": 50}],
            }
        ],
        "total": 1100,
        **fields,
    }


@pytest.fixture
def books(page: Desk, database_url: str) -> Iterator[Books]:
    found = Books(database_url, order, None)
    yield found
    found.close()


def path_of(key: Key, act: str = "") -> str:
    return link("/merchants/{}/orders/{}", key.merchant_id, key.order_id) + act


def words(reply: Reply) -> str:
    """The page's text."""
    text = re.sub(r"<(script|style).*?</\1>", " ", reply.text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def shown(browser: Browser, key: Key) -> str:
    reply = browser.get(path_of(key))
    assert reply.status == 200, reply.text
    return words(reply)


def act(browser: Browser, key: Key, name: str, **fields: str) -> Reply:
    """Submit an action's form."""
    path = path_of(key, f"/{name}")
    reply = browser.get(path)
    assert reply.status == 200, reply.text
    return browser.submit(reply.form(path), **{"reason": WHY, **fields})


def queued(queue: str = "orders") -> list[dict[str, Any]]:
    """The bodies on a queue of the memory broker, which are removed."""
    with Connection("memory://") as connection:
        channel, found = connection.channel(), []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(json.loads(message.body)[0][0])
        return found


@pytest.fixture
def broker() -> Iterator[None]:
    """The memory broker without earlier tests' messages."""
    with Connection("memory://") as connection:
        for queue in ("orders", "orders.dead"):
            connection.channel().queue_declare(queue)
            connection.channel().queue_purge(queue)
    yield


# Every state.


@pytest.mark.parametrize(
    ("state", "title", "next_"),
    [
        (State.NEW, "waits", "It is tried until"),
        (State.PENDING, "pending", "The POS has it, and has not decided."),
        (State.IN_DOUBT, "in doubt", "left to you: ask the merchant"),
        (State.ACCEPTED, "accepted", "The POS has it."),
        (State.REJECTED, "rejected", "The POS has refused it."),
        (State.CANCELLED, "cancelled", "It is cancelled."),
        (State.EXPIRED, "expired", "in the dead letters"),
        (State.FAILED, "failed", "in the dead letters"),
    ],
)
def test_every_state_is_in_words(
    page: Desk, books: Books, state: State, title: str, next_: str
) -> None:
    history = AttemptHistory(doubt_since=time.time()) if state is State.IN_DOUBT else None
    key = books.order("o-1", state, history=history)
    books.publish()
    for browser in (page.operator(), page.operator(Role.VIEWER, "vic")):
        text = shown(browser, key)
        assert f" {title} " in text
        assert next_ in text
        if state not in (State.NEW,):
            assert f"Event: order.{state}" in text
            assert "position 1" in text


def test_what_was_adapted_for_the_pos_is_shown_masked_or_not(page: Desk, books: Books) -> None:
    key, viewer = books.order("o-1", State.ACCEPTED), page.operator(Role.VIEWER, "vic")
    assert "Adapted for its POS" not in shown(viewer, key)
    fields = [{"field": "delivery.address", "as": "note"}, {"field": "utensils", "as": "tab_name"}]
    said = json.dumps({"adapted": fields, "adapted_more": 2})
    with books.engine.begin() as connection:
        connection.execute(update(orders).values(adapted=said))
    listed = "Adapted for its POS delivery.address note utensils tab_name … and 2 more fields"
    assert listed in shown(viewer, key)
    browser = page.operator()
    revealed = browser.get(act(browser, key, "reveal").headers["location"])
    assert "shown once" in words(revealed)
    assert listed in words(revealed)


def test_one_in_flight_says_which_worker_has_it_and_one_whose_worker_died_what_follows(
    page: Desk, books: Books
) -> None:
    claim = books.claimed("o-1")
    claimed = books.claimed("o-2", send=False)
    browser = page.operator()
    assert f"The worker {claim.owner} may send it" in shown(browser, claim.key)
    assert f"The worker {claim.owner} has it in its hands" in shown(browser, claimed.key)
    books.worker_dies()
    page.site._page_live._last.clear()
    assert "In doubt since" in (text := shown(browser, claim.key))
    assert "The worker that had it is gone." in text
    assert "that worker's lease is gone" in shown(browser, claimed.key)


def test_one_that_has_only_come_over_http_has_a_page(page: Desk, books: Books) -> None:
    row = {"merchant_id": "m1", "order_id": "o-1", "digest": "d", "submitted_at": time.time() - 30}
    with books.engine.begin() as connection:
        connection.execute(insert(submissions).values(row))
    text = shown(page.operator(), Key("m1", "o-1"))
    assert " submitted " in text
    assert "no worker has had it in its hands yet" in text
    assert "No merchant has this id" in text
    assert "The order itself is not kept" in text
    assert act(page.operator(name="kay"), Key("m1", "o-1"), "cancel").status == 303


def test_a_cancel_request_without_its_order_has_a_page(page: Desk, books: Books) -> None:
    books.cancellation(Key("m1", "o-1"), State.NEW, deliver_by=time.time() + 60)
    text = shown(page.operator(), Key("m1", "o-1"))
    assert "Only a cancel request is known" in text
    assert "A cancel request is open until" in text


@pytest.mark.parametrize(
    "path",
    ["/merchants/m1/orders/nothing", "/merchants/m1/orders/" + "x" * 200, "/merchants/m1/orders/=.."],
)  # fmt: skip
@pytest.mark.parametrize("act", ["", "/cancel", "/resolve", "/extend", "/replay", "/reveal"])
def test_an_unknown_order_is_a_404_in_html(page: Desk, path: str, act: str) -> None:
    reply = page.operator().get(path + act)
    assert (reply.status, reply.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "No order" in reply.text


@pytest.mark.parametrize("state", [State.NEW, State.PENDING])
def test_an_overdue_order_says_where_its_message_may_be(
    page: Desk, books: Books, state: State
) -> None:
    late = datetime.now(UTC) - timedelta(minutes=5)
    placed = (late - timedelta(minutes=5)).isoformat()
    history = AttemptHistory(pending=state is State.PENDING)
    key = books.order("o-1", state, history=history, placed_at=placed, deliver_by=late.isoformat())
    text = shown(page.operator(), key)
    assert "its message has not come back" in text
    assert "Replay it" in text


def test_a_doubt_for_a_person_says_that_only_the_merchant_can_be_asked(
    page: Desk, books: Books
) -> None:
    for reason, says in (
        ("blind", "asked by a person alone"),
        ("moved", "names another POS"),
        ("not_undone", "the POS did not undo it"),
        ("other", "ask whether its food is made. Ask the merchant, then resolve it."),
    ):
        key = books.in_doubt(f"o-{reason}", reason=Reason(reason, "why"), deliver_by=_soon())
        assert says in shown(page.operator(name=reason), key)


def test_a_doubt_of_which_the_pos_is_asked_no_more_is_not_looked_up_by_itself(
    page: Desk, books: Books
) -> None:
    reasons = "price_mismatch invalid_reply payment_required text_too_long facts poison"
    for number, reason in enumerate(reasons.split()):
        key = books.in_doubt(f"o-{number}", reason=Reason(reason, "why"))
        text = shown(page.operator(name=reason), key)
        assert "by itself" not in text
        assert "Ask the merchant, then resolve it." in text
        assert ("no valid reply came" in text) is (reason == "poison")
    key = books.in_doubt("o-9", reason=Reason("invalid_reply", "why"), deliver_by=_soon())
    text = shown(page.operator(), key)
    assert "looked up again by itself" in text
    assert "no valid reply came. The POS has it, or not." in text


@pytest.mark.parametrize(("adapter", "step"), [(BlindAdapter(), ""), (PrintedAdapter(), "0 print")])
def test_what_a_blind_pos_has_is_not_said_to_be_known(
    page: Desk, books: Books, monkeypatch: pytest.MonkeyPatch, adapter: Adapter, step: str
) -> None:
    """Its reply was garbage: an operator who takes the order for accepted may lose it."""
    monkeypatch.setattr(order_reading, "_adapters", lambda: {"square": adapter})
    key = books.in_doubt(reason=Reason("invalid_reply", "why"))
    books.in_step(key, step)
    text = shown(page.operator(), key)
    assert (
        "This POS can be asked by a person alone: its API has no look-up. Ask the merchant" in text
    )
    assert "not what was sent" not in text
    assert (
        "no valid reply came" if not step else "Whether print is there, too, is not known"
    ) in text


def _soon() -> str:
    return (datetime.now(UTC) + timedelta(seconds=20)).isoformat()


def test_the_steps_at_the_pos_are_in_words(page: Desk, books: Books) -> None:
    browser = page.operator()
    key = books.in_doubt("o-1")
    books.in_step(key, "0 pay", external_id="K-77")
    text = shown(browser, key)
    assert "Steps at the POS create taken pay in doubt, since" in text
    assert "At the POS as K-77: create. Whether pay is there, too, is not known" in text
    assert "is looked up again by itself" in text
    books.in_step(key, "0 pay", reason_code="moved")
    page.site._page_live._last.clear()
    text = shown(browser, key)
    assert "names another POS than the one that may have it" in text
    assert "Ask the merchant. If the merchant makes it all the same" in text
    books.in_step(key, "0 -create", reason_code="not_undone")
    page.site._page_live._last.clear()
    text = shown(browser, key)
    assert "Steps at the POS create not undone, since" in text
    assert "The POS has not undone create." in text
    assert "it is not sent again, and ends as cancelled" in text
    form = words(browser.get(path_of(key, "/resolve")))
    assert "Its POS has had it: it is not sent again." in form
    assert "It ends as cancelled, since its POS keeps its id." in form
    assert "its POS did not undo it, and no worker tries again" in words(
        browser.get(path_of(key, "/cancel"))
    )
    pending = books.order("o-2", State.PENDING, history=AttemptHistory(pending=True))
    books.in_step(pending, "0 -create")
    text = shown(browser, pending)
    assert "The step create is being undone." in text
    form = words(browser.get(path_of(pending, "/cancel")))
    assert "it is being undone at its POS already" in form
    assert "Cancel it" not in text
    assert "Give it more time" not in text
    expired = books.order("o-3", State.EXPIRED)
    books.in_step(expired, "")
    text = shown(browser, expired)
    assert "It was made at its POS and undone there" in text
    assert "Replay it" not in text


def test_the_life_has_attempts_with_stages_events_with_positions_and_what_operators_did(
    page: Desk, books: Books
) -> None:
    claim, call = books.claimed("o-1"), CallRecord(0.012, 0.003, 0.04, 0.45, 0.5, 201)
    row = {"merchant_id": "m1", "order_id": "o-1", "digest": "d", "submitted_at": time.time() - 90}
    with books.engine.begin() as connection:
        connection.execute(insert(submissions).values(row))
    from pos_gateway.domain.outcome import Kind

    event = dehydrated(claim.key, Kind.ACCEPTED)
    entry = Entry(State.ACCEPTED, time.time(), 1, external_id="K-77", event=event, call=call)
    assert books.ledger.finish(claim, entry)
    preparing = dehydrated(claim.key, Lifecycle.PREPARING)
    with books.engine.begin() as connection:
        connection.execute(
            insert(events).values(
                event_id=preparing.id, type="preparing", merchant_id="m1", order_id="o-1",
                occurred_at=time.time(), attempts=1,
            )
        )  # fmt: skip
    books.publish()
    books.order_admin.note(claim.key, operator="kim", what="orders.looked", details="at it")
    reply = page.operator().get(path_of(claim.key))
    text = words(reply)
    for said in (
        "Submitted over HTTP", "Sent to the POS: accepted", "waited in the worker 12 ms", "claim 3 ms",
        "connect 40 ms", "first byte 450 ms", "whole call 500 ms", "came 201", claim.owner,
        "Event: order.accepted", "position 1", "The POS says by a callback: order.preparing",
        "position 2", "kim: orders.looked", "details at it", "nothing for 1 min", "K-77",
    ):  # fmt: skip
        assert said in text, said
    assert text.index("Submitted over HTTP") < text.index("Event: order.accepted")
    assert '<svg class="life"' in reply.text
    assert reply.text.count('<rect class="s-') == 5
    viewer = words(page.operator(Role.VIEWER, "vic").get(path_of(claim.key)))
    assert "kim: orders.looked" in viewer
    assert "details at it" not in viewer


def test_items_and_totals_are_a_table_in_the_currencys_own_unit(page: Desk, books: Books) -> None:
    key = books.order("o-1", State.ACCEPTED, **personal(tip=150))
    text = shown(page.operator(), key)
    for said in (
        "Soup",
        "s1",
        "5.00 EUR",
        "0.50 EUR",
        "11.00 EUR",
        "Tip 1.50 EUR",
        "Total 11.00 EUR",
    ):
        assert said in text, said
    key = books.order("o-2", State.ACCEPTED, currency="JPY")
    assert "500 JPY" in shown(page.operator(name="kay"), key)
    key = books.order("o-3", State.ACCEPTED, currency="KWD", total=1)
    assert "0.001 KWD" in shown(page.operator(name="joe"), key)


def test_an_order_has_its_page_on_either_database(any_database: str, with_trial: None) -> None:
    from tests.page.lab import desk

    with desk(any_database) as page:
        books = Books(any_database, order, None)
        doubtful, failed = books.in_doubt("o-1"), books.order("o-2", State.FAILED)
        books.publish()
        browser = page.operator()
        assert "position 1" in shown(browser, doubtful)
        assert "position 2" in shown(browser, failed)
        reply = act(browser, doubtful, "resolve", answer="accepted")
        text = words(browser.get(reply.headers["location"]))  # at once as it is now
        assert "kim: orders.resolve.accepted" in text
        assert "An operator resolved it so." in text
        assert WHY in text
        assert WHY not in shown(page.operator(Role.VIEWER, "vic"), doubtful)
        books.close()


# Masking.


def personal_books(books: Books) -> list[Key]:
    """Orders whose every part may quote the customer."""
    refused = Reason("refused", QUOTES)
    keys = [
        books.order(f"o-{state}", state, reason=refused, **personal())
        for state in (State.REJECTED, State.CANCELLED)
    ]
    claim, call = (
        books.claimed("o-attempt", **personal()),
        CallRecord(0.01, 0.01, 0.01, 0.1, 0.2, 422),
    )
    from pos_gateway.domain.outcome import Kind

    event = dehydrated(claim.key, Kind.REJECTED)
    entry = Entry(State.REJECTED, time.time(), 1, reason=refused, event=event, call=call)
    assert books.ledger.finish(claim, entry)
    books.publish()
    return [*keys, claim.key]


SECRETS = ("quackenbush", "555 0199", "5550199", "ring twice", "elm street", "birthday")


def test_an_order_is_found_by_its_id_at_the_pos_with_its_reason(page: Desk, books: Books) -> None:
    key = books.order("o-1", State.FAILED, reason=Reason("http_401", "unauthorized"))
    books.order("o-2", State.REJECTED, reason=Reason("no_cake", "for Quackenbush"))
    with page.site.database.begin() as connection:
        change = update(orders).where(orders.c.order_id == "o-1")
        connection.execute(change.values(external_id="sq-77"))
    browser = page.operator()
    found = browser.get("/orders?order=sq-77").text
    assert path_of(key) in found and "o-2" not in found
    assert "http_401" in found
    assert "No order matches" in browser.get("/orders?order=sq-7").text  # a part is of our ids
    assert "no_cake" not in browser.get("/orders").text


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_no_page_or_part_has_personal_data(page: Desk, books: Books, role: Role) -> None:
    browser = page.operator(role)
    keys = personal_books(books)
    paths = [path_of(key) for key in keys] + ["/orders", f"/orders?order={keys[0].order_id}"]
    if role is Role.OPERATOR:
        acts = ("reveal", "cancel", "resolve", "extend", "replay")
        paths += [path_of(key, f"/{each}") for key in keys for each in acts]
    for path in paths:
        text = html.unescape(browser.get(path).text.lower())
        assert not [each for each in SECRETS if each in text], path
        if path in [path_of(key) for key in keys]:
            assert MASK in text


def test_a_viewer_sees_no_reasons_message_and_an_operator_the_gateways_own(
    page: Desk, books: Books
) -> None:
    key = books.order("o-1", State.FAILED, reason=Reason("http_500", "answered: for Quackenbush"))
    books.publish()
    assert "for Quackenbush" in shown(page.operator(), key)
    assert "for Quackenbush" not in page.operator(Role.VIEWER, "vic").get(path_of(key)).text


def test_a_reveal_shows_it_once_with_a_line_in_the_audit(page: Desk, books: Books) -> None:
    key = personal_books(books)[-1]
    browser, other = page.operator(), page.operator(name="kay")
    where = act(browser, key, "reveal").headers["location"]
    assert other.get(where).text.count("Quackenbush") == 0
    assert page.server.why("orders.reveal") == [("kim", WHY, "page, from 192.0.2.7")]
    [line] = [line for line in page.server.audited() if line[1] == "orders.reveal"]
    assert line[2:4] == (key.merchant_id, key.order_id)
    reply = browser.get(where)
    assert reply.headers["cache-control"] == "no-store"
    text = words(reply)
    for said in (NAME, PHONE, NOTES, ADDRESS, "happy birthday", QUOTES):
        assert said in text, said
    assert "http-equiv" not in reply.text  # nothing reloads it
    again = browser.get(where)
    assert "Quackenbush" not in again.text
    assert MASK in again.text
    assert len([line for line in page.server.audited() if line[1] == "orders.reveal"]) == 1


def test_no_other_notice_reveals(page: Desk, books: Books, broker: None) -> None:
    key, other = personal_books(books)[:2]
    browser = page.operator()
    claim = books.claimed("o-open", **personal())
    where = act(browser, claim.key, "cancel").headers["location"]
    notice = where.partition("?")[2]
    assert "Quackenbush" not in browser.get(f"{path_of(claim.key)}?{notice}").text
    notice = act(browser, key, "reveal").headers["location"].partition("?")[2]
    assert "Quackenbush" not in browser.get(f"{path_of(other)}?{notice}").text


def test_without_the_audits_line_nothing_is_revealed(
    page: Desk, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    from pos_gateway.ledger.order_admin import OrderAdmin

    key = personal_books(books)[0]

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("insert", {}, Exception("away"))

    monkeypatch.setattr(OrderAdmin, "note", fail)
    reply = act(page.operator(), key, "reveal")
    assert reply.status == 409
    assert "Quackenbush" not in reply.text


def test_a_viewer_may_neither_act_nor_see_where(page: Desk, books: Books) -> None:
    key = books.in_doubt("o-1")
    viewer, operator = page.operator(Role.VIEWER, "vic"), page.operator()
    text = viewer.get(path_of(key)).text
    for name in ("cancel", "resolve", "extend", "replay", "reveal"):
        path = path_of(key, f"/{name}")
        assert path not in text
        assert viewer.get(path).status == 403
        csrf = viewer.get("/").form("/logout").fields["csrf"]
        fields = {"csrf": csrf, "form": "f" * 16, "reason": WHY, "answer": "accepted"}
        assert viewer.post(path, fields).status == 403
    assert path_of(key, "/resolve") in operator.get(path_of(key)).text
    assert books.now(key).state is State.IN_DOUBT
    assert [line for line in page.server.audited() if line[0] == "vic"] == []


def test_a_part_is_masked_as_its_page_is(page: Desk, books: Books) -> None:
    key = personal_books(books)[-1]
    live = page.site._page_live
    for role in (Role.VIEWER, Role.OPERATOR):
        topic = live.topic("order", role, {"merchant_id": "m1", "order_id": key.order_id})
        text = html.unescape(page.runner.run(live.html(topic))).lower()
        assert MASK in text
        assert not [each for each in SECRETS if each in text]
        assert "<form" not in text
    topic = live.topic("order", Role.VIEWER, {"merchant_id": "m1", "order_id": "nothing"})
    assert "not known any more" in page.runner.run(live.html(topic))


# Actions.


def test_an_order_is_resolved_as_accepted(page: Desk, books: Books) -> None:
    key = books.in_doubt("o-1")
    browser = page.operator()
    form = words(browser.get(path_of(key, "/resolve")))
    assert "Does your POS have the order o-1" in form
    reply = act(browser, key, "resolve", answer="accepted", external_id="K-77")
    assert reply.status == 303
    now = books.now(key)
    assert (now.state, now.external_id, now.last_event) == (State.ACCEPTED, "K-77", "accepted")
    assert page.server.why("orders.resolve.accepted") == [("kim", WHY, "external id K-77")]
    page.site.audit.write()
    done = [what for _, what, *_ in page.server.audited() if what.startswith("orders.")]
    assert done == ["orders.resolve.accepted"]
    text = words(browser.get(reply.headers["location"]))
    assert "is accepted; the event is recorded" in text
    assert "An operator resolved it so." in text


def test_an_order_is_resolved_as_not_sent_and_queued_again(
    page: Desk, books: Books, broker: None
) -> None:
    key = books.in_doubt("o-1")
    reply = act(page.operator(), key, "resolve", answer="not_sent", minutes="60")
    assert reply.status == 303, words(reply)
    now = books.now(key)
    assert now.state is State.NEW
    assert now.deliver_by == pytest.approx(time.time() + 3600, abs=60)
    [message] = queued()
    assert (message["order_id"], message["merchant_id"]) == ("o-1", "m1")


def test_a_decision_whose_message_the_broker_did_not_take_is_repeated(
    page: Desk, books: Books, broker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.domain.errors import BrokerUnavailable

    def fail(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("no confirm came")

    key = books.in_doubt("o-1")
    browser = page.operator()
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", fail)
        reply = act(browser, key, "resolve", answer="not_sent")
    assert reply.status == 409
    assert "repeat the same decision" in words(reply)
    assert (books.now(key).state, queued()) == (State.NEW, [])
    form = reply.form(path_of(key, "/resolve"))
    assert browser.submit(form, answer="not_sent").status == 303
    assert [each["order_id"] for each in queued()] == ["o-1"]


def test_a_resolution_needs_an_answer_that_fits(page: Desk, books: Books) -> None:
    key = books.in_doubt("o-1")
    browser = page.operator()
    for fields, says in (
        ({"answer": ""}, "say what the merchant said"),
        ({"answer": "perhaps"}, "say what the merchant said"),
        ({"answer": "accepted", "minutes": "30"}, "New time: is for an order that the POS does not have"),
        ({"answer": "not_sent", "external_id": "K"}, "is for an order that the POS has"),
        ({"answer": "accepted", "external_id": "K" * 257}, "has 1 to 256 characters"),
        ({"answer": "accepted", "external_id": "K\u202e"}, "on one line that can be printed"),
        ({"answer": "not_sent", "minutes": "-5"}, "is no number of minutes"),
        ({"answer": "not_sent", "minutes": "1e3"}, "is no number of minutes"),
        ({"answer": "not_sent", "minutes": "99999999"}, "is no number of minutes"),
    ):  # fmt: skip
        reply = act(browser, key, "resolve", **fields)
        assert reply.status == 409
        assert says in words(reply), fields
        assert books.now(key).state is State.IN_DOUBT


def test_a_doubt_that_is_not_left_to_operators_is_not_called_unsent(
    page: Desk, books: Books, broker: None
) -> None:
    key = books.in_doubt("o-1")
    with books.engine.begin() as connection:
        connection.execute(update(orders).values(last_event=None))
    browser = page.operator()
    assert "It is not left to you yet" in words(browser.get(path_of(key, "/resolve")))
    reply = act(browser, key, "resolve", answer="not_sent")
    assert reply.status == 409
    assert "is not left to you yet" in words(reply)
    assert (books.now(key).state, queued()) == (State.IN_DOUBT, [])
    assert act(browser, key, "resolve", answer="accepted").status == 303


def test_of_two_operators_the_second_sees_what_the_first_did(page: Desk, books: Books) -> None:
    key = books.in_doubt("o-1")
    kim, kay = page.operator(), page.operator(name="kay")
    path = path_of(key, "/resolve")
    form = kay.get(path).form(path)
    assert act(kim, key, "resolve", answer="accepted", external_id="K-1").status == 303
    reply = kay.submit(form, reason=WHY, answer="not_sent")
    assert reply.status == 409
    assert "it is accepted" in words(reply)
    assert "kim, orders.resolve" in words(reply)
    assert (books.now(key).state, books.now(key).external_id) == (State.ACCEPTED, "K-1")
    assert "kim: orders.resolve.accepted" in shown(kay, key)


def test_an_order_that_changed_meanwhile_is_refused_and_not_forced(
    page: Desk, books: Books
) -> None:
    """Also if it is in doubt again: the merchant was asked about an earlier attempt."""
    key = books.in_doubt("o-1")
    browser = page.operator()
    path = path_of(key, "/resolve")
    form = browser.get(path).form(path)
    claim = books.ledger.claim(key, send=True, deliver_by=time.time() + 600)
    assert isinstance(claim, Claim)
    again = Entry(State.IN_DOUBT, time.time(), 2, doubt_since=time.time())
    assert books.ledger.finish(claim, again)
    reply = browser.submit(form, reason=WHY, answer="accepted")
    assert reply.status == 409
    assert "something has happened to this order" in words(reply).lower()
    assert books.now(key).state is State.IN_DOUBT
    assert browser.submit(reply.form(path), answer="accepted").status == 303
    assert books.now(key).state is State.ACCEPTED


def test_an_order_that_a_worker_has_is_not_resolved(page: Desk, books: Books) -> None:
    key = books.in_doubt("o-1")
    assert isinstance(books.ledger.claim(key, send=False, deliver_by=time.time() + 600), Claim)
    reply = page.operator().get(path_of(key, "/resolve"))
    assert "Not possible now: the order is not in doubt: it is claimed" in words(reply)
    assert len(reply.forms) == 1  # the logout


def test_a_cancel_request_is_published_for_its_home(page: Desk, books: Books, broker: None) -> None:
    key = books.order("o-1", State.NEW)
    browser = page.operator()
    reply = act(browser, key, "cancel", minutes="30")
    assert reply.status == 303, words(reply)
    [request] = queued()
    until = datetime.fromisoformat(request["deliver_by"])
    assert (request["order_id"], request["merchant_id"]) == ("o-1", "m1")
    assert (until - datetime.now(UTC)).total_seconds() == pytest.approx(1800, abs=60)
    [line] = [line for line in page.server.audited() if line[1] == "orders.cancel"]
    assert line[:4] == ("kim", "orders.cancel", "m1", "o-1")
    assert "is asked to be cancelled" in words(browser.get(reply.headers["location"]))


@pytest.mark.parametrize("state", [State.REJECTED, State.CANCELLED, State.EXPIRED, State.FAILED])
def test_what_has_ended_otherwise_is_not_cancelled(
    page: Desk, books: Books, broker: None, state: State
) -> None:
    key = books.order("o-1", State.NEW)
    browser = page.operator()
    path = path_of(key, "/cancel")
    form = browser.get(path).form(path)
    claim = books.ledger.claim(key, send=False, deliver_by=time.time() + 600)
    assert isinstance(claim, Claim)
    assert books.ledger.finish(claim, Entry(state, time.time(), 1))
    reply = browser.submit(form, reason=WHY)
    assert (reply.status, queued()) == (409, [])
    assert "It is " in words(reply)


def test_a_cancel_request_that_the_broker_does_not_take_says_so(
    page: Desk, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.domain.errors import BrokerUnavailable

    def fail(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("no confirm came")

    monkeypatch.setattr(Publisher, "publish", fail)
    reply = act(page.operator(), books.order("o-1", State.NEW), "cancel")
    assert reply.status == 409
    assert "to ask twice is harmless" in words(reply)


def test_an_order_gets_more_time(page: Desk, books: Books) -> None:
    key = books.order("o-1", State.NEW, **personal())
    browser = page.operator()
    reply = act(browser, key, "extend", minutes="120")
    assert reply.status == 303, words(reply)
    now = books.now(key)
    assert (now.state, now.reason_code) == (State.NEW, "timeout")
    assert now.deliver_by == pytest.approx(time.time() + 7200, abs=60)
    kept = json.loads(books.order_admin.order_json(key) or b"")
    assert datetime.fromisoformat(kept["deliver_by"]).timestamp() == now.deliver_by
    assert kept["customer"]["name"] == NAME
    assert "has time until" in words(browser.get(reply.headers["location"]))
    reply = act(browser, key, "extend", minutes="5")
    assert reply.status == 409
    assert "a later moment extends it" in words(reply)


def test_no_time_is_given_to_what_needs_none(page: Desk, books: Books) -> None:
    browser = page.operator()
    in_doubt, done = books.in_doubt("o-1"), books.order("o-2", State.ACCEPTED)
    failed, in_flight = books.order("o-3", State.FAILED), books.claimed("o-4").key
    cancelled = books.order("o-5", State.NEW)
    books.cancellation(cancelled, State.NEW)
    for key, says in (
        (in_doubt, "it is in doubt, and cannot be given new time"),
        (done, "it is accepted, and needs no time"),
        (failed, "replay it, with new time"),
        (in_flight, "has it at this moment"),
        (cancelled, "it has a cancel request"),
    ):
        reply = browser.get(path_of(key, "/extend"))
        assert f"Not possible now: {says}" in words(reply) or says in words(reply), says
        assert len(reply.forms) == 1
        csrf = reply.form("/logout").fields["csrf"]
        fields = {"csrf": csrf, "form": key.order_id * 8, "reason": WHY, "minutes": "60"}
        before = books.now(key)
        assert browser.post(path_of(key, "/extend"), fields).status == 409
        assert books.now(key) == before


def test_what_the_pos_has_decided_is_not_replayed(page: Desk, books: Books) -> None:
    key = books.order("o-1", State.REJECTED)
    reply = page.operator().get(path_of(key, "/replay"))
    assert "the POS has decided, and it is not sent again" in words(reply)


# Ids are data.


@pytest.mark.parametrize(
    "order_id", ["a/b", "=", "=..", "...", "%2F", "?#&", "a..b", "<b>'\"", "\\"]
)
def test_a_hostile_id_reaches_its_page_and_its_actions(
    page: Desk, books: Books, broker: None, order_id: str
) -> None:
    key = books.in_doubt(order_id, merchant_id="m/=1")
    browser = page.operator()
    [path] = {
        each for each in re.findall(r'href="([^"]+)"', browser.get("/orders").text)
        if each.endswith(path_of(key).rpartition("/")[2]) and "/orders/" in each
    }  # fmt: skip
    assert path == path_of(key)
    assert order_id in shown(browser, key)
    reply = act(browser, key, "resolve", answer="accepted")
    assert reply.headers["location"].startswith(path_of(key))
    assert books.now(key).state is State.ACCEPTED


def test_hostile_text_in_an_order_is_data(page: Desk, books: Books) -> None:
    text = MARKUP["script tag"].text
    record = order_with(text, "o-1", "m1").record
    del record["order_id"]
    key = books.order("o-1", State.REJECTED, reason=Reason.of(text, text), **record)
    browser = page.operator()
    for reply in (
        browser.get(path_of(key)),
        browser.get(act(browser, key, "reveal").headers["location"]),
        browser.get(link("/orders", order=text, merchant=text)),
    ):
        assert reply.status == 200
        assert "<script data-hostile" not in reply.text


# The search.


def found(browser: Browser, **query: str) -> list[str]:
    reply = browser.get(link("/orders", **query))
    assert reply.status == 200, reply.text
    return [html.unescape(each) for each in re.findall(r'<th scope="row"[^>]*><a [^>]*><bdi class="data">([^<]*)', reply.text)]  # fmt: skip


def test_orders_are_found_the_last_changed_first(page: Desk, books: Books) -> None:
    now = time.time()
    books.order("A-1", State.ACCEPTED, at=now - 7200)
    books.order("A-2", State.FAILED, at=now - 60)
    books.order("A-10", State.ACCEPTED, at=now - 3000, merchant_id="m2")
    doubtful = books.in_doubt("B-1")
    books.cancellation(doubtful, State.NEW)
    browser = page.operator(Role.VIEWER)
    assert found(browser) == ["B-1", "A-2", "A-10", "A-1"]
    assert found(browser, order="A-1") == ["A-1"]
    assert found(browser, order="-1") == ["B-1", "A-10", "A-1"]
    assert found(browser, order="a-1") == []
    assert found(browser, order="%") == []
    assert found(browser, merchant="m2") == ["A-10"]
    assert found(browser, merchant="m1", order="A") == ["A-2", "A-1"]
    assert found(browser, state="in_doubt") == ["B-1"]
    assert found(browser, state="accepted", merchant="m1") == ["A-1"]
    assert found(browser, since="90m") == ["B-1", "A-2", "A-10"]
    assert found(browser, since="1h", state="failed") == ["A-2"]
    text = words(browser.get("/orders"))
    assert "in doubt 1" in text
    assert "accepted 2" in text
    assert "failed 1" in text
    assert "No order has exactly this id" in words(browser.get("/orders?order=-1"))
    whole = browser.get("/orders?merchant=m%2F1")
    assert words(browser.get("/merchants/m%2F1/orders")) == words(whole)


@pytest.mark.parametrize("query", ["state=nothing", "since=soon", "since=0m", "after=x", "after=[1]", "after=[[],1,2]", "after=[1" + "0" * 400 + ",\"a\",\"b\"]", "after=[NaN,\"a\",\"b\"]", "after=[1,\"\\ud800\",\"b\"]", "after=[1,\"a\",\"\\u0000\"]", "after=[1,\"a\",{}]"])  # fmt: skip
def test_a_wrong_search_says_what_is_wrong(page: Desk, query: str) -> None:
    reply = page.operator().get(f"/orders?{query}")
    assert reply.status == 422
    assert query.partition("=")[0] + ":" in words(reply).lower()


def test_pages_have_every_order_once(any_database: str, with_trial: None) -> None:
    """Also those that changed at the same moment; on either database."""
    from tests.page.lab import desk

    now = time.time()
    row = {"action": "submit", "ticket": 0, "epoch": 1, "attempts": 1, "deaths": 0}
    row |= {"pending": False, "reopened": 0, "created_at": now}
    rows = [
        {
            **row,
            "merchant_id": f"m{number % 7}",
            "order_id": f"o-{number:03}",
            "state": ("accepted", "failed", "new")[number % 3],
            "updated_at": now - number // 40,
        }
        for number in range(173)
    ]
    with desk(any_database) as page:
        with page.site.database.begin() as connection:
            connection.execute(insert(orders), rows)
        browser = page.operator(Role.VIEWER)
        for query, count in (
            (("", 173)),
            ("state=accepted", 58),
            ("merchant=m3", 25),
            ("order=o-", 173),
        ):
            path, seen = f"/orders?{query}", []
            while path:
                text = browser.get(path).text
                seen += re.findall(r'data-label="Order"><a href="([^"]+)"', text)
                more = re.search(r'rel="next" href="([^"]+)"', text)
                path = html.unescape(more[1]) if more else ""
            assert len(seen) == len(set(seen)) == count, query


def test_a_search_that_takes_too_long_says_what_to_give(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pos_gateway.database.engine import open_database
    from pos_gateway.domain.errors import AdminError
    from pos_gateway.ledger import order_search

    engine = open_database(migrated(postgres_url))
    monkeypatch.setattr(order_search, "TIMEOUT", 0.05)
    monkeypatch.setattr(
        order_search,
        "_find",
        lambda connection, *_: connection.exec_driver_sql("select pg_sleep(5)"),
    )
    with pytest.raises(AdminError, match="give the whole id of the order"):
        order_search.OrderSearch(engine).find(order_search.Wanted("x"), None, 50)
    engine.dispose()
