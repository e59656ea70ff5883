"""``pos-gateway dlq``: what was set aside, looked at without being taken, replayed, discarded."""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from pos_gateway.broker import dead_letter_queue as queue
from pos_gateway.broker import topology, wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import Action, AttemptHistory, Claim, Entry, State
from tests.cli.books import Books, Letters
from tests.cli.conftest import Program
from tests.worker.lab import a_bundle

Make = Callable[..., dict[str, Any]]

#: Letters that are many; with ten thousand it is the same, and takes longer.
MANY = 2_000
NAME, PHONE = "Quackenbush", "4915550142857"
CUSTOMER = {"customer": {"name": NAME, "phone": PHONE}, "notes": f"for {NAME}"}
TASK = {"task": wire.SUBMIT_ORDER, "id": "x"}
#: What a worker could not read, as it sets it aside.
UNREAD = {"x-content-type": "application/json"}


def late(seconds: float = 60) -> dict[str, str]:
    """Fields of an order that came too late."""
    now = datetime.now(UTC)
    return {
        "placed_at": (now - timedelta(days=1)).isoformat(),
        "deliver_by": (now - timedelta(seconds=seconds)).isoformat(),
    }


def listed(program: Program, *arguments: str) -> list[dict[str, Any]]:
    done = program.invoke("dead", "list", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_letters_are_listed_and_stay_in_their_order_however_often(
    connected: Program, letters: Letters, order: Make
) -> None:
    """Also those behind the limit, and when not all are looked at."""
    ids = [f"o-{n}" for n in range(100)]
    for order_id in ids:
        letters.order(order(order_id))
    for limit in ("100", "10", "3", "100"):
        assert [each["id"] for each in listed(connected, "--limit", limit)] == ids[: int(limit)]
    done = connected.invoke("dead", "list", "--limit", "2")
    heading, first, _ = (line.split("\t") for line in done.stdout.splitlines())
    assert heading == ["ID", "MERCHANT", "AGE", "CODE", "REASON"]
    assert first[:2] == ["o-0", "m-1"]
    assert first[3:] == ["unknown_merchant", "that is unknown_merchant"]
    assert "there are 100; --limit N shows N" in done.stderr
    assert letters.numbers() == ids


def test_thousands_of_letters_are_looked_through_and_are_all_back_in_their_order(
    broker_url: str, order: Make
) -> None:
    with Connection(broker_url) as connection:
        topology.declare(connection)
        producer = connection.Producer()
        body = json.dumps([[order("o")], {}, {}]).encode()
        for number in range(MANY):
            producer.publish(
                body,
                exchange="orders",
                routing_key=topology.DEAD_KEY,
                headers=TASK,
                message_id=str(number),
                content_type="application/json",
            )
        dead = topology.dead_queue.bind(connection.channel())
        while dead.queue_declare(passive=True).message_count < MANY:
            pass  # published without confirms
        for _ in range(2):
            with DeadLetterQueue(broker_url) as letters:
                assert [int(letter.id) for letter in letters] == list(range(MANY))


def test_nothing_that_is_in_an_order_is_listed_or_shown_unless_it_is_asked_for(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    letters.order(order("good", **CUSTOMER))
    letters.order(order("wrong", total=PHONE, currency=NAME, **CUSTOMER), code="invalid_order")
    no_order = json.dumps({"for": NAME}).encode()
    letters.raw(no_order, {"x-reason-code": "invalid_message", **UNREAD, "who": NAME}, "none")
    letters.raw(b"\xff" + NAME.encode(), {"x-reason-code": "undecodable", **UNREAD}, "bytes")
    everything = [("list",), ("list", "--json"), ("replay", "--all", "--dry-run")]
    ids = ("good", "wrong", "none", "bytes")
    everything += [("show", each, *how) for each in ids for how in ((), ("--json",))]
    for command in everything:
        done = connected.invoke("dead", *command)
        assert NAME not in done.stdout + done.stderr, command
        assert PHONE not in done.stdout + done.stderr, command
    shown = json.loads(connected.invoke("dead", "show", "good", "--json").stdout)
    assert shown["body"]["items"][0]["name"] == "Soup"
    assert shown["body"]["customer"] == "********"
    for letter_id in ids:
        reveal = ("dead", "show", letter_id, "--reveal", "--reason", "why")
        assert NAME in connected.invoke(*reveal).stdout, letter_id
    lines = connected.invoke("audit", "--what", "dead.reveal", "--json").stdout.splitlines()
    assert [(each["order_id"], each["reason"]) for each in map(json.loads, lines)] == [
        ("good", "why"),
        ("wrong", "why"),
        (None, "why"),
        (None, "why"),
    ]
    unnamed = connected.invoke("dead", "show", "good", "--reveal", USER="")
    assert (unnamed.exit_code, NAME in unnamed.output) == (2, False)
    assert letters.numbers() == list(ids)


def test_letters_are_found_by_reason_and_merchant(
    connected: Program, letters: Letters, order: Make
) -> None:
    letters.order(order("a"))
    letters.order(order("b", merchant_id="m-2"), code="certificate")
    letters.order(order("c", merchant_id="m-2"))
    assert [each["id"] for each in listed(connected, "--reason", "certificate")] == ["b"]
    assert [each["id"] for each in listed(connected, "--merchant", "m-2")] == ["b", "c"]
    assert listed(connected, "--reason", "certificate", "--merchant", "m-1") == []
    done = connected.invoke("dead", "show", "no-such")
    assert (done.exit_code, done.stderr) == (
        1,
        "pos-gateway: no such letter has the id 'no-such'\n",
    )


def test_an_order_whose_sender_gave_it_an_expiration_is_named_and_replayed_without(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    """RabbitMQ has moved it, and no worker has ever seen it: there is no event."""
    body = wire.body_of(json.dumps(order("o-1")).encode())
    with Connection(letters.url) as connection:
        connection.Producer().publish(
            body,
            exchange="orders",
            routing_key=topology.ORDERS_KEY,
            headers=TASK,
            message_id="o-1",
            content_type="application/json",
            content_encoding="utf-8",
            expiration=0.001,
        )
    while not letters.numbers():
        pass  # it is on its way
    [letter] = listed(connected)
    assert (letter["id"], letter["code"]) == ("o-1", "message_ttl")
    done = connected.invoke("dead", "replay", "--all", "--reason", "message_ttl")
    assert (done.exit_code, done.stdout) == (0, "1 replayed, 0 refused\n")
    [back] = letters.on(topology.ORDERS_KEY)
    assert (back.body.encode(), back.headers["id"]) == (body, "o-1")
    assert "expiration" not in back.properties


@pytest.mark.parametrize(
    ("last", "code"), [("delivery_limit", "delivery_limit"), ("expired", "message_ttl")]
)
def test_why_rabbitmq_moved_a_message_is_not_that_it_had_been_delayed(last: str, code: str) -> None:
    deaths = [
        {"reason": last, "queue": "orders"},
        {"reason": "expired", "queue": "celery_delayed_3"},
    ]
    headers = {**TASK, "x-first-death-reason": "expired", "x-death": deaths}
    message = SimpleNamespace(
        body=b"", headers=headers, properties={}, delivery_tag=1, channel=None
    )
    assert DeadLetter.of(message).code == code


def test_a_queue_that_is_not_there_yet_is_empty(connected: Program) -> None:
    assert listed(connected) == []


def test_a_broker_that_is_down_is_one_sentence(program: Program, books: Books) -> None:
    for command in (("list",), ("show", "x"), ("discard", "x"), ("replay", "x")):
        done = program.invoke("dead", *command)
        assert done.exit_code == 1
        assert done.stderr.startswith("pos-gateway: cannot reach the broker at amqp://")


@pytest.mark.parametrize("state", [State.FAILED, State.EXPIRED])
def test_an_order_that_has_ended_is_opened_again_and_is_on_the_queue(
    connected: Program, any_books: Books, letters: Letters, order: Make, state: State
) -> None:
    key = any_books.order("o-1", state)
    with any_books.engine.begin() as connection:
        connection.execute(orders.update().values(deaths=3))
    letters.order(order("o-1"))
    done = connected.invoke("dead", "replay", "o-1")
    assert (done.exit_code, done.stdout) == (0, "1 replayed, 0 refused\n")
    after = any_books.now(key)
    assert (after.state, after.reopened, after.attempts, after.deaths) == (State.NEW, 1, 0, 0)
    assert after.last_event is None
    assert any_books.audit(key) == [("kim", "dead.replay")]
    assert "unknown_merchant" in any_books.order_admin.audit(key)[0]["details"]
    assert letters.numbers() == []
    assert letters.numbers("orders") == ["o-1"]
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    assert replace(claim.history, deliver_by=None) == AttemptHistory(reopened=1)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (State.ACCEPTED, "it is accepted"),
        (State.REJECTED, "it is rejected"),
        (State.CANCELLED, "it is cancelled"),
        (
            State.IN_DOUBT,
            "it is in doubt: ask the merchant, then resolve it (pos-gateway orders resolve o-1",
        ),
    ],
)
def test_an_order_that_the_pos_has_or_may_have_is_refused(
    connected: Program, books: Books, letters: Letters, order: Make, state: State, why: str
) -> None:
    key = books.order("o-1", state)
    before = books.now(key)
    letters.order(order("o-1"))
    done = connected.invoke("dead", "replay", "o-1")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"o-1: {why}")
    assert books.now(key) == before
    assert books.audit(key) == []
    assert (letters.numbers(), letters.numbers("orders")) == (["o-1"], [])


@pytest.mark.parametrize("died", [False, True])
def test_an_order_in_doubt_that_is_not_left_to_an_operator_is_put_on_the_queue(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    died: bool,
    subtests: pytest.Subtests,
) -> None:
    """Its only message may be this one: without it no event of it comes, and nothing resolves it."""
    rows = [
        (f"{wish}-{len(fields)}", fields, wish)
        for fields in ({}, late())
        for wish in (None, State.NEW, State.EXPIRED)
    ]
    claims = {order_id: books.claimed(order_id, **fields) for order_id, fields, _ in rows}
    if died:
        books.worker_dies()
    queued: list[str] = []
    for order_id, fields, wish in rows:
        with subtests.test(wish=wish, is_late=bool(fields)):
            claim, now = claims[order_id], time.time()
            if not died:
                assert books.ledger.finish(claim, Entry(State.IN_DOUBT, now, 1, doubt_since=now))
            if wish is not None:
                books.cancellation(claim.key, wish)
            before = books.now(claim.key)
            letters.order(order(order_id, **fields), code="delivery_limit")
            refused = connected.invoke("dead", "replay", order_id, "--for", "30m")
            assert (refused.exit_code, letters.numbers("orders")) == (1, queued)
            assert "replay it without" in refused.stderr
            assert connected.invoke("dead", "replay", order_id).exit_code == 0
            queued.append(order_id)
            assert books.now(claim.key) == before
            assert (letters.numbers(), letters.numbers("orders")) == ([], queued)


@pytest.mark.parametrize("state", [State.NEW, State.PENDING, State.SENDING])
def test_an_order_that_is_open_is_only_put_on_the_queue(
    connected: Program, books: Books, letters: Letters, order: Make, state: State
) -> None:
    """Its message came back too often, and no worker has it any more; or one has, after all."""
    key = (
        books.claimed("o-1").key
        if state is State.SENDING
        else books.order("o-1", state, history=AttemptHistory(pending=state is State.PENDING))
    )
    before = books.now(key)
    letters.order(order("o-1"))
    assert connected.invoke("dead", "replay", "o-1").exit_code == 0
    assert books.now(key) == before
    assert books.audit(key) == [("kim", "dead.replay")]
    assert letters.numbers("orders") == ["o-1"]


def test_an_order_that_the_ledger_does_not_know_is_put_on_the_queue(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    letters.order(order("o-1"))
    assert connected.invoke("dead", "replay", "o-1").exit_code == 0
    assert letters.numbers("orders") == ["o-1"]


@pytest.mark.parametrize("state", [None, State.NEW, State.PENDING])
def test_an_open_order_that_is_late_is_put_on_the_queue_to_end_there(
    connected: Program, books: Books, letters: Letters, order: Make, state: State | None
) -> None:
    """The broker set it aside, so no event of it was told."""
    if state is not None:
        history = AttemptHistory(pending=state is State.PENDING)
        books.order("o-1", state, history=history, **late())
    letters.order(order("o-1", **late()), code="message_ttl")
    assert connected.invoke("dead", "replay", "o-1").exit_code == 0
    assert (letters.numbers(), letters.numbers("orders")) == ([], ["o-1"])


def test_an_order_that_has_ended_too_late_is_refused_unless_it_is_given_new_time(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    key = books.order("o-1", State.EXPIRED, **late())
    letters.order(order("o-1", **late()))
    done = connected.invoke("dead", "replay", "o-1")
    assert done.exit_code == 1
    assert "is over; give it new time (--for 30m)" in done.stderr
    assert books.now(key).state is State.EXPIRED
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert connected.invoke("dead", "replay", "o-1", "--deliver-by", until).exit_code == 0
    [[[sent], _, _]] = letters.bodies("orders")
    assert datetime.fromisoformat(sent["deliver_by"]) == datetime.fromisoformat(until)
    kept = books.order_admin.order_json(key)
    assert kept is not None
    assert json.loads(kept)["deliver_by"] == sent["deliver_by"]
    assert books.now(key).deliver_by == datetime.fromisoformat(until).timestamp()
    assert "deliver_by" in books.order_admin.audit(key)[0]["details"]


def test_an_order_with_a_cancel_request_is_refused(
    connected: Program, books: Books, letters: Letters, order: Make, subtests: pytest.Subtests
) -> None:
    refused: list[str] = []
    for state in (State.FAILED, State.EXPIRED):
        for wish in (State.NEW, State.CANCELLED, State.REJECTED, State.EXPIRED):
            order_id = f"{state}-{wish}"
            key = books.order(order_id, state)
            books.cancellation(key, wish)
            letters.order(order(order_id))
            refused.append(order_id)
            with subtests.test(order_id):
                done = connected.invoke("dead", "replay", order_id, "--for", "30m")
                assert (done.exit_code, books.now(key).state) == (1, state)
                assert "it has a cancel request" in done.stderr
                assert (letters.numbers(), letters.numbers("orders")) == (refused, [])


def test_an_order_that_is_cancelled_while_it_is_reopened_ends_as_cancelled(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request saw it as it had ended before, and has ended itself."""
    key = books.order("o-1", State.FAILED)
    letters.order(order("o-1"))
    change = OrderAdmin.change

    def overtaken(order_admin: Any, seen: Any, *arguments: Any, **named: Any) -> None:
        if seen.state is State.FAILED:
            books.cancellation(key, State.REJECTED)
        change(order_admin, seen, *arguments, **named)

    monkeypatch.setattr(OrderAdmin, "change", overtaken)
    done = connected.invoke("dead", "replay", "o-1")
    assert (done.exit_code, done.stdout) == (1, "0 replayed, 1 refused\n")
    assert books.now(key).state is State.CANCELLED
    assert books.told(key) == ["failed", "cancelled"]
    assert letters.numbers("orders") == []


class Killed(BaseException):
    """Nothing after it is done."""


@pytest.mark.parametrize("step", ["publish", "acknowledge"])
@pytest.mark.parametrize("state", [State.EXPIRED, State.FAILED])
def test_a_replay_that_is_killed_at_any_step_is_repaired_by_the_next_one(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    step: str,
) -> None:
    """With the new time that the order was given, although that is not said again."""
    key = books.order("o-1", state, **late())
    letters.order(order("o-1", **late()))
    owner: Any = Publisher if step == "publish" else DeadLetterQueue

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, kill)
        with pytest.raises(Killed):
            connected.invoke("dead", "replay", "o-1", "--for", "30m")
    assert books.now(key).state is State.NEW
    done = connected.invoke("dead", "replay", "o-1")
    assert (done.exit_code, done.stdout) == (0, "1 replayed, 0 refused\n")
    assert letters.numbers() == []
    [[sent], _, _] = letters.bodies("orders")[-1]
    until = books.now(key).deliver_by
    assert until is not None and until > time.time()
    assert datetime.fromisoformat(sent["deliver_by"]).timestamp() == pytest.approx(until)
    assert books.now(key).reopened == 1
    assert books.audit(key) == [("kim", "dead.replay")] * 2  # each run is


def test_a_replay_that_is_killed_as_its_order_is_cancelled_is_repaired_by_the_next_one(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the order stays NEW for ever: its request has ended, and each further replay is refused."""
    key = books.order("o-1", State.FAILED)
    letters.order(order("o-1"))
    change = OrderAdmin.change

    def killed(*arguments: Any, **named: Any) -> None:
        books.cancellation(key, State.REJECTED)
        change(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OrderAdmin, "change", killed)
        with pytest.raises(Killed):
            connected.invoke("dead", "replay", "o-1")
    assert books.now(key).state is State.NEW
    done = connected.invoke("dead", "replay", "o-1")
    assert (done.exit_code, done.stdout) == (1, "0 replayed, 1 refused\n")
    assert "it is cancelled, and order.cancelled is published" in done.stderr
    assert (books.now(key).state, books.told(key)) == (State.CANCELLED, ["failed", "cancelled"])
    assert letters.numbers("orders") == []


def test_new_time_that_an_order_cannot_have_keeps_no_other_from_being_replayed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    """This machine's clock may be behind the one that has placed the order."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    times = {"placed_at": ahead, "deliver_by": ahead + timedelta(hours=1)}
    placed = {name: moment.isoformat() for name, moment in times.items()}
    for number, fields in (("o-1", placed), ("o-2", late())):
        books.order(number, State.EXPIRED, **fields)
        letters.order(order(number, **fields))
    done = connected.invoke("dead", "replay", "--all", "--for", "30m")
    assert (done.exit_code, done.stdout) == (1, "1 replayed, 1 refused\n")
    assert "o-1: it was placed at" in done.stderr
    assert letters.numbers("orders") == ["o-2"]


def test_ctrl_c_ends_a_replay_after_the_letter_in_its_hands(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [books.order(f"o-{n}", State.FAILED) for n in range(3)]
    for key in keys:
        letters.order(order(key.order_id))
    publish = Publisher.publish

    def interrupted(publisher: Any, message: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        publish(publisher, message)

    monkeypatch.setattr(Publisher, "publish", interrupted)
    done = connected.invoke("dead", "replay", "--all")
    assert (done.exit_code, done.stdout) == (130, "1 replayed, 0 refused\n")
    assert [books.now(key).state for key in keys] == [State.NEW, State.FAILED, State.FAILED]
    assert letters.numbers("orders") == ["o-0"]
    assert letters.numbers() == ["o-1", "o-2"]
    assert [len(books.audit(key)) for key in keys] == [1, 0, 0]


@pytest.mark.parametrize("state", [State.NEW, State.PENDING])
def test_new_time_for_an_open_order_is_in_the_ledger_too(
    connected: Program, books: Books, letters: Letters, order: Make, state: State
) -> None:
    key = books.order("o-1", state, history=AttemptHistory(pending=state is State.PENDING))
    letters.order(order("o-1"))
    assert connected.invoke("dead", "replay", "o-1", "--for", "2h").exit_code == 0
    after = books.now(key)
    [[[sent], _, _]] = letters.bodies("orders")
    assert after.deliver_by is not None
    assert datetime.fromisoformat(sent["deliver_by"]).timestamp() == pytest.approx(after.deliver_by)
    assert (after.state, after.pending, after.reopened) == (state, state is State.PENDING, 0)


def test_an_order_in_a_workers_hands_is_given_no_new_time(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    key = books.claimed("o-1").key
    before = books.now(key)
    letters.order(order("o-1"))
    done = connected.invoke("dead", "replay", "o-1", "--for", "2h")
    assert done.exit_code == 1
    assert "a worker has it at this moment" in done.stderr
    assert (books.now(key), letters.numbers("orders")) == (before, [])


def no_orders(order: Make) -> list[tuple[bytes, dict[str, Any]]]:
    """Messages that are no orders; some look like one."""
    body = json.dumps([[order("o-1")], {}, {}]).encode()
    return [
        (body, {**TASK, **UNREAD, "x-reason-code": "compressed", "x-compression": "gzip"}),
        (body, {**TASK, **UNREAD, "x-reason-code": "undecodable"}),
        (body, {"task": "celery.map", "id": "x", **UNREAD, "x-reason-code": "unknown_task"}),
        (body, {"task": "celery.map", "id": "x"}),
        (body, {**TASK, "compression": "gzip"}),
        (body, {}),
        (body[:-3], TASK),
        (b"\xff" + body, TASK),
        (b"[" * 100_000, TASK),
        (b"", TASK),
        (b"[[{}], {}, {}]", TASK),
        (b"[[{}], {}, {}]", {"task": wire.CANCEL_ORDER, "id": "x"}),
        (b"[[[\n{}\n]],{},{}]", {"task": "pos_gateway.parked_orders", "id": "x", "x-orders": 3}),
    ]


def test_what_is_no_order_is_never_replayed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    bad = no_orders(order)
    for number, (body, headers) in enumerate(bad):
        letters.raw(body, headers, f"n-{number}")
    done = connected.invoke("dead", "replay", "--all")
    assert (done.exit_code, done.stdout) == (1, f"0 replayed, {len(bad)} refused\n")
    assert len(done.stderr.splitlines()) == len(bad)
    assert letters.numbers("orders") == []
    assert letters.numbers() == [f"n-{number}" for number in range(len(bad))]


def test_a_retry_that_was_too_large_for_a_worker_is_replayed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    """Its order was small enough when it came, and may have no other message."""
    connected.settings["POS_GATEWAY_MAX_ORDER_BYTES"] = "1024"
    too_large = {**TASK, **UNREAD, "x-reason-code": "too_large"}
    for order_id, headers in (("new", {}), ("retry", {wire.ATTEMPTS: 1})):
        body = wire.body_of(json.dumps(order(order_id, notes="x" * 1024)).encode())
        letters.raw(body, {**too_large, **headers}, order_id)
    done = connected.invoke("dlq", "replay", "--all")
    assert done.stdout == "1 replayed, 1 refused\n"
    assert "1024 are allowed" in done.stderr
    assert (letters.numbers("orders"), letters.numbers()) == (["retry"], ["new"])


def test_parked_orders_and_wishes_to_cancel_are_put_back_as_they_are(
    connected: Program, books: Books, letters: Letters, order: Make, broker_url: str
) -> None:
    """RabbitMQ moves them when they have come back too often."""
    publisher = Publisher(broker_url)
    bundle = a_bundle("m-1", [order("a"), order("b")])
    # An earlier release could not read it.
    bundle = replace(bundle, headers={**bundle.headers, **UNREAD})
    request = {"order_id": "o-1", "merchant_id": "m-1", "deliver_by": order()["deliver_by"]}
    cancel = wire.cancel_message("o-1", json.dumps(request).encode(), routing_key="orders")
    stale = {**request, **late()}
    for message in (bundle, cancel, wire.cancel_message("o-2", json.dumps(stale).encode(), routing_key="")):  # fmt: skip
        publisher.publish(wire.dead_letter(message, code="x", reason="x"))
    publisher.close()
    done = connected.invoke("dead", "replay", "--all")
    assert done.stdout == "2 replayed, 1 refused\n"
    assert "a request to cancel" in done.stderr
    parked, wish = letters.on("orders")
    assert parked.body.encode() == bundle.body
    assert wish.headers["task"] == wire.CANCEL_ORDER
    assert letters.numbers() == ["o-2"]


def a_wish(letters: Letters, order_id: str, until: datetime) -> None:
    """A request to cancel an order, in ``orders.dead``."""
    request = {"order_id": order_id, "merchant_id": "m-1", "deliver_by": until.isoformat()}
    headers = {"task": wire.CANCEL_ORDER, "id": order_id, "x-reason-code": "internal_error"}
    letters.raw(wire.body_of(json.dumps(request).encode()), headers, order_id)


@pytest.mark.parametrize("state", [State.FAILED, State.EXPIRED])
def test_a_request_to_cancel_that_has_ended_is_replayed_only_where_it_is_tried_again(
    connected: Program, books: Books, letters: Letters, state: State
) -> None:
    """A worker only tells the end of one again that asks for no more than before."""
    key = books.order("o-1", State.ACCEPTED)
    until = datetime.now(UTC) + timedelta(hours=1)
    books.cancellation(key, state, deliver_by=until.timestamp())
    a_wish(letters, "o-1", until)
    for time_given in ((), ("--for", "30m")):
        done = connected.invoke("dead", "replay", "o-1", *time_given)
        assert (done.exit_code, letters.numbers("orders")) == (1, [])
        assert f"has {state.value}, and is tried again only with more time" in done.stderr
    assert connected.invoke("dead", "replay", "o-1", "--for", "2h").exit_code == 0
    [[[sent], _, _]] = letters.bodies("orders")
    wish = replace(key, action=Action.CANCEL)
    by = datetime.fromisoformat(sent["deliver_by"]).timestamp()
    assert isinstance(books.ledger.claim(wish, send=False, deliver_by=by), Claim)


@pytest.mark.parametrize("state", [State.CANCELLED, State.REJECTED])
def test_a_request_to_cancel_that_was_decided_is_refused(
    connected: Program, books: Books, letters: Letters, state: State
) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    books.cancellation(books.order("o-1", State.ACCEPTED), state, deliver_by=until.timestamp())
    a_wish(letters, "o-1", until)
    done = connected.invoke("dead", "replay", "o-1", "--for", "2h")
    assert (done.exit_code, letters.numbers("orders")) == (1, [])
    assert f"{state.value}; discard the letter" in done.stderr


def test_an_order_that_was_placed_after_its_new_time_keeps_no_other_from_being_replayed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=2)
    letters.order(
        order(
            "o-1",
            placed_at=ahead.isoformat(),
            deliver_by=(ahead + timedelta(hours=1)).isoformat(),
        )
    )
    letters.order(order("o-2"))
    done = connected.invoke("dead", "replay", "--all", "--for", "30m")
    assert (done.exit_code, done.stdout) == (1, "1 replayed, 1 refused\n")
    assert f"o-1: it was placed at {ahead.isoformat()}; give it time until after" in done.stderr
    assert (letters.numbers(), letters.numbers("orders")) == (["o-1"], ["o-2"])


def test_what_is_replayed_goes_on_in_its_trace(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=y"}
    body = json.dumps([[order("o-1")], {}, {}]).encode()
    letters.raw(body, {"task": wire.SUBMIT_ORDER, "id": "o-1", **trace}, "o-1")
    assert connected.invoke("dead", "replay", "--all").exit_code == 0
    [replayed] = letters.on("orders")
    assert trace.items() <= replayed.headers.items()


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    key = books.order("o-1", State.FAILED)
    books.order("o-2", State.ACCEPTED)
    letters.order(order("o-1"))
    letters.order(order("o-2"))
    done = connected.invoke("dead", "replay", "--all", "--dry-run", "--json")
    assert done.exit_code == 1
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["id"], each["result"]) for each in results] == [
        ("o-1", "would_be_replayed"),
        ("o-2", "refused"),
    ]
    assert books.now(key).state is State.FAILED
    assert books.audit(key) == []
    assert letters.numbers() == ["o-1", "o-2"]
    assert letters.numbers("orders") == []


def test_a_number_of_one_reason_is_replayed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    for number in range(6):
        letters.order(order(f"o-{number}"), code="certificate" if number % 2 else "url")
    arguments = ("--all", "--reason", "url", "--limit", "2")
    assert connected.invoke("dead", "replay", *arguments).stdout == "2 replayed, 0 refused\n"
    assert letters.numbers("orders") == ["o-0", "o-2"]
    assert letters.numbers() == ["o-1", "o-3", "o-4", "o-5"]


def test_what_is_set_aside_meanwhile_is_left_for_the_next_time(
    connected: Program, books: Books, letters: Letters, order: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order that fails again at once would else be replayed without end."""
    note = OrderAdmin.note

    def fails_again(*arguments: Any, **named: Any) -> None:
        note(*arguments, **named)
        letters.order(order("o-1"))

    monkeypatch.setattr(OrderAdmin, "note", fails_again)
    letters.order(order("o-1"))
    assert connected.invoke("dead", "replay", "--all").stdout == "1 replayed, 0 refused\n"
    assert letters.numbers() == ["o-1"]


def test_a_replay_that_breaks_off_after_publishing_is_harmless(
    connected: Program,
    any_books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The letter is still there; replayed again, its order is on the queue twice and sent once."""
    key = any_books.order("o-1", State.FAILED)
    letters.order(order("o-1"))

    def breaks(*_: Any) -> None:
        raise BrokerUnavailable("the broker is gone")

    with monkeypatch.context() as broken:
        broken.setattr(DeadLetterQueue, "acknowledge", breaks)
        assert connected.invoke("dead", "replay", "o-1").exit_code == 1
    assert (letters.numbers(), letters.numbers("orders")) == (["o-1"], ["o-1"])
    assert connected.invoke("dead", "replay", "o-1").exit_code == 0
    assert (letters.numbers(), letters.numbers("orders")) == ([], ["o-1", "o-1"])
    assert any_books.now(key).reopened == 1
    claim = any_books.ledger.claim(key, send=True)
    assert isinstance(claim, Claim)
    assert any_books.ledger.finish(claim, Entry(State.ACCEPTED, time.time(), attempts=1))
    assert not isinstance(any_books.ledger.claim(key, send=True), Claim)


def test_a_replay_that_breaks_off_before_publishing_leaves_an_order_that_is_replayed_again(
    connected: Program, books: Books, letters: Letters, order: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = books.order("o-1", State.FAILED)
    letters.order(order("o-1"))

    def breaks(*_: Any) -> None:
        raise BrokerUnavailable("the broker is gone")

    with monkeypatch.context() as broken:
        broken.setattr(Publisher, "publish", breaks)
        assert connected.invoke("dead", "replay", "o-1").exit_code == 1
    assert (books.now(key).state, letters.numbers()) == (State.NEW, ["o-1"])
    assert connected.invoke("dead", "replay", "o-1").exit_code == 0
    assert (letters.numbers(), letters.numbers("orders")) == ([], ["o-1"])


def test_letters_are_removed_for_good_and_it_is_known_by_whom(
    connected: Program, any_books: Books, letters: Letters, order: Make
) -> None:
    key = any_books.order("o-1", State.FAILED)
    letters.order(order("o-1"))
    letters.order(order("o-2"), code="certificate")
    letters.raw(b"?", {"x-reason-code": "undecodable", **UNREAD})
    assert connected.invoke("dead", "discard", "o-1").stdout == "1 discarded\n"
    assert any_books.audit(key) == [("kim", "dead.discard")]
    assert any_books.now(key).state is State.FAILED
    [_, nameless] = listed(connected)
    assert nameless["id"].startswith("sha256:")
    assert connected.invoke("dead", "discard", nameless["id"], "--as", "sam").exit_code == 0
    assert letters.numbers() == ["o-2"]
    done = connected.invoke("dead", "discard", "--all")
    assert done.exit_code == 2
    assert "say --yes too" in done.stderr
    assert letters.numbers() == ["o-2"]
    assert connected.invoke("dead", "discard", "--all", "--yes").stdout == "1 discarded\n"
    assert letters.numbers() == []


def test_the_letter_of_an_order_that_has_not_ended_is_kept(
    connected: Program,
    any_books: Books,
    letters: Letters,
    order: Make,
    subtests: pytest.Subtests,
) -> None:
    for state in (State.NEW, State.PENDING, State.IN_DOUBT, State.SENDING):
        is_pending = state is State.PENDING
        key = (
            any_books.claimed(state).key
            if state is State.SENDING
            else any_books.order(state, state, history=AttemptHistory(pending=is_pending))
        )
        over = f"failed-beside-{state}"
        any_books.order(over, State.FAILED)
        letters.order(order(state))
        letters.order(order(over))
        with subtests.test(state.value):
            done = connected.invoke("dead", "discard", "--all", "--yes")
            assert (done.exit_code, done.stdout) == (1, "1 discarded, 1 refused\n")
            remedy = "orders resolve" if state is State.IN_DOUBT else "dlq replay"
            assert "has not ended" in done.stderr and remedy in done.stderr
            assert (letters.numbers(), any_books.audit(key)) == ([state], [])
            assert connected.invoke("dead", "discard", state, "--open").exit_code == 0
            assert (letters.numbers(), any_books.audit(key)) == ([], [("kim", "dead.discard")])


@pytest.mark.parametrize("state", [State.PENDING, State.IN_DOUBT])
def test_the_letter_of_an_order_that_its_pos_may_have_is_kept_beside_a_cancel_request(
    connected: Program, books: Books, letters: Letters, order: Make, state: State
) -> None:
    """The request may be refused; then nothing but this message has the order looked up."""
    key = books.order("o-1", state, history=AttemptHistory(pending=state is State.PENDING))
    books.cancellation(key, State.NEW, deliver_by=time.time() + 3600)
    letters.order(order("o-1"))
    done = connected.invoke("dlq", "discard", "o-1")
    assert (done.exit_code, letters.numbers()) == (1, ["o-1"])
    assert f"has not ended: it is {state.value}" in done.stderr


def test_what_the_broker_set_aside_and_the_ledger_does_not_know_is_kept(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    """It has had no event. What replay refuses as well is no use to keep."""
    ended = books.order("o-2", State.ACCEPTED)
    books.cancellation(ended, State.NEW)
    submit = {"task": wire.SUBMIT_ORDER, "id": "o-1", "x-death": [{"reason": "delivery_limit"}]}
    letters.raw(wire.body_of(json.dumps(order("o-1")).encode()), submit, "o-1")
    a_wish(letters, "o-2", datetime.now(UTC) + timedelta(hours=1))
    bundle = a_bundle("m-1", [order("o-3")])
    letters.raw(bundle.body, dict(bundle.headers), "parked")
    # Of a later release, say: its orders may be nowhere else.
    several = a_bundle("m-1", [order("o-6"), order("o-7")])
    quarantined = {**several.headers, **UNREAD, "x-reason-code": "invalid_bundle"}
    letters.raw(b"?", quarantined, "unread")
    # Only of one that begins with its ids the backend got an event.
    too_large, unread = order("o-8"), {**TASK, **UNREAD, "x-reason-code": "too_large"}
    letters.raw(wire.body_of(json.dumps(too_large).encode()), unread, "o-8")
    last_first = json.dumps(dict(reversed(order("o-9").items()))).encode()
    letters.raw(wire.body_of(last_first), unread, "o-9")
    letters.raw(b"?", TASK, "junk")
    a_wish(letters, "o-4", datetime.now(UTC) - timedelta(hours=1))
    ahead = time.time() + 3600
    books.cancellation(books.order("o-5", State.NEW), State.NEW, deliver_by=ahead)
    letters.order(order("o-5"))
    done = connected.invoke("dead", "discard", "--all", "--yes")
    assert (done.exit_code, done.stdout) == (1, "4 discarded, 5 refused\n")
    assert letters.numbers() == ["o-1", "o-2", "parked", "unread", "o-9"]
    done = connected.invoke("dead", "discard", "--all", "--yes", "--open")
    assert (done.exit_code, done.stdout) == (0, "5 discarded\n")


def test_the_letters_of_an_order_and_of_its_open_cancel_request_are_not_both_discarded(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    """Neither has an end then: the request's time is over, and its message was the last."""
    key = books.order("o-1", State.NEW)
    over = datetime.now(UTC) - timedelta(hours=1)
    books.cancellation(key, State.NEW, deliver_by=over.timestamp())
    a_wish(letters, "o-1", over)
    letters.order(order("o-1"))
    done = connected.invoke("dlq", "discard", "--all", "--yes")
    assert (done.exit_code, done.stdout) == (1, "0 discarded, 2 refused\n")
    assert "asking again ends it (pos-gateway cancel)" in done.stderr


@pytest.mark.parametrize(
    ("command", "done"), [("replay", "1 replayed, 0 refused"), ("discard", "1 discarded")]
)
def test_an_id_that_is_nobodys_is_said_and_the_others_are_dealt_with(
    connected: Program, books: Books, letters: Letters, order: Make, command: str, done: str
) -> None:
    letters.order(order("o-1"))
    ended = connected.invoke("dead", command, "no-such", "o-1")
    assert (ended.exit_code, ended.stdout) == (1, f"{done}\n")
    assert ended.stderr == "pos-gateway: no such letter has the id 'no-such'\n"
    assert letters.numbers() == []


@pytest.mark.parametrize("command", ["replay", "discard"])
def test_an_id_that_several_merchants_have_asks_for_the_merchant(
    connected: Program, books: Books, letters: Letters, order: Make, command: str
) -> None:
    for merchant_id in ("m-1", "m-2"):
        key = books.order("1001", State.FAILED, merchant_id=merchant_id)
        letters.order(order("1001", merchant_id=merchant_id))
    letters.order(order("1002"))
    done = connected.invoke("dead", command, "1001", "1002", "--limit", "1")
    assert done.exit_code == 1
    assert done.stdout in ("", "0 discarded\n")
    assert "several merchants have the id '1001': m-1, m-2;" in done.stderr
    assert "--merchant" in done.stderr
    assert letters.numbers() == ["1001", "1001", "1002"]
    assert connected.invoke("dead", command, "1001", "--merchant", "m-2").exit_code == 0
    assert [who for _, who in books.audit(key)] == [f"dead.{command}"]
    assert letters.numbers() == ["1001", "1002"]
    assert connected.invoke("dead", command, "1001", "1002").exit_code == 0
    assert letters.numbers() == []


@pytest.mark.parametrize("command", ["replay", "discard"])
@pytest.mark.parametrize("arguments", [[], ["o-1", "--all"]])
def test_letters_must_be_named(program: Program, command: str, arguments: list[str]) -> None:
    done = program.invoke("dead", command, *arguments)
    assert done.exit_code == 2
    assert "give the IDs of letters, or --all" in " ".join(done.stderr.split())


def test_an_interrupt_in_the_middle_requeues_every_letter(
    letters: Letters, order: Make, broker_url: str
) -> None:
    ids = [f"o-{n}" for n in range(100)]
    for order_id in ids:
        letters.order(order(order_id))
    with pytest.raises(KeyboardInterrupt), DeadLetterQueue(broker_url) as looked_through:
        for letter in looked_through:
            if letter.id == "o-40":
                raise KeyboardInterrupt
    assert letters.numbers(back=len(ids)) == ids


@pytest.mark.parametrize("acknowledged", [[], ["o-0", "o-4", "o-5", "o-9"]], ids=["none", "some"])
def test_letters_are_looked_through_however_many_there_are_and_are_all_back(
    letters: Letters,
    order: Make,
    broker_url: str,
    monkeypatch: pytest.MonkeyPatch,
    acknowledged: list[str],
) -> None:
    """Also where one consumer cannot have them all (65,535 at most)."""
    monkeypatch.setattr(queue, "WINDOW", 3)
    ids = [f"o-{number}" for number in range(11)]
    for order_id in ids:
        letters.order(order(order_id))
    with DeadLetterQueue(broker_url) as looked_through:
        seen = []
        for letter in looked_through:
            seen.append(letter.id)
            if letter.id in acknowledged:
                looked_through.acknowledge(letter)
    assert seen == ids
    left = letters.numbers(back=len(ids) - len(acknowledged))
    if not acknowledged:
        assert left == ids
    assert sorted(left) == sorted({*ids} - {*acknowledged})


@pytest.mark.parametrize(
    ("command", "done"),
    [
        (("list", "--json"), ["o-0", "o-1", "o-2"]),
        (("discard", "--all", "--yes"), ""),
        (("replay", "--all"), ""),
        (("replay", "o-0", "o-4", "--merchant", "m-1"), "1 replayed, 0 refused\n"),
        (("replay", "o-0"), ""),  # another one may be another merchant's
    ],
)
def test_fewer_letters_than_there_were_are_a_failure_that_says_how_many(
    connected: Program,
    books: Books,
    letters: Letters,
    order: Make,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    done: object,
) -> None:
    """Two are taken by another consumer between the broker's count and the first letter."""
    ids = [f"o-{number}" for number in range(5)]
    for order_id in reversed(ids):
        letters.order(order(order_id))
    counted, received = DeadLetterQueue._counts, DeadLetterQueue._receive
    with Connection(letters.url) as another:
        channel = another.channel()

        def counts(self: DeadLetterQueue) -> tuple[int, int]:
            number, others = counted(self)
            while number == 5 and channel.basic_get(topology.DEAD_KEY) and counted(self)[0] > 3:
                pass
            return number, others

        def receive(self: DeadLetterQueue, message: Any) -> None:
            received(self, message)
            if self._come == 3:
                self._patience = 0.2  # no more come

        monkeypatch.setattr(DeadLetterQueue, "_counts", counts)
        monkeypatch.setattr(DeadLetterQueue, "_receive", receive)
        ended = connected.invoke("dead", *command)
    printed = (
        [json.loads(each)["id"] for each in ended.stdout.splitlines()]
        if "--json" in command
        else ended.stdout
    )
    assert ended.exit_code == 1
    assert "only 3 of 5 letters came" in ended.stderr
    assert (sorted(printed) if isinstance(printed, list) else printed) == done


def test_the_queue_may_be_looked_at_any_number_of_times(
    connected: Program, letters: Letters, order: Make
) -> None:
    """RabbitMQ 4 drops a message after 20 times, unless it is told otherwise."""
    assert topology.dead_queue.queue_arguments["x-delivery-limit"] >= 1_000_000
    letters.order(order("o-1"))
    for _ in range(25):
        assert letters.numbers() == ["o-1"]
