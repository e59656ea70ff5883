"""Many at once on the command line: which are meant, the question, progress, and how to go on."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from pos_gateway.administration.bulk.store import BulkStore
from pos_gateway.broker import topology, wire
from pos_gateway.broker.publisher import Publisher
from pos_gateway.cli import bulk
from pos_gateway.database.schema import bulk_runs, merchants, orders
from pos_gateway.ledger.states import Entry, Key, State
from tests.bulk.lab import an_order, dead_letter, publish
from tests.cli.books import Books, Letters
from tests.cli.conftest import Program

Make = Callable[..., dict[str, Any]]
HOUR = 3_600.0
FAST = ("--rate", "1000")


def letter(letters: Letters, order_id: str, *, code: str = "url", merchant_id: str = "m-1", ago: float = 0) -> None:  # fmt: skip
    """A letter that was dead-lettered seconds ago."""
    at = time.time() - ago
    publish(letters.url, [dead_letter(an_order(order_id, merchant_id), code=code, at=at)])


def a_merchant(books: Books, merchant_id: str, provider: str | None) -> None:
    row = {"id": merchant_id, "provider": provider, "adapter": "rest", "base_url": "https://x.y"}
    with books.engine.begin() as connection:
        now = datetime.now(UTC)
        connection.execute(insert(merchants).values(auth={}, paused=False, updated_at=now, **row))


def a_cancel_request(letters: Letters, order_id: str) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    request = {"order_id": order_id, "merchant_id": "m-1", "deliver_by": until.isoformat()}
    message = wire.cancel_message(order_id, json.dumps(request).encode(), routing_key="orders")
    publisher = Publisher(letters.url)
    publisher.publish(wire.dead_letter(message, code="url", reason="x"))
    publisher.close()


@pytest.fixture
def many(books: Books, letters: Letters) -> None:
    """Letters of two providers, two reasons, and three ages."""
    for merchant_id, provider in (("m-1", "square"), ("m-2", "toast"), ("m-3", None)):
        a_merchant(books, merchant_id, provider)
    letter(letters, "a", ago=5 * HOUR)
    letter(letters, "b", ago=2 * HOUR, merchant_id="m-2")
    letter(letters, "c", ago=2 * HOUR, code="token")
    letter(letters, "d", ago=60, merchant_id="m-3")
    letter(letters, "e", ago=60, merchant_id="m-2", code="token")
    a_cancel_request(letters, "f")


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("narrowed", "meant"),
    [
        (("--reason", "token"), "ce"),
        (("--reason", "token", "--reason", "url"), "abcdef"),
        (("--merchant", "m-2"), "be"),
        (("--provider", "square"), "acf"),
        (("--provider", "square", "--provider", "toast"), "abcef"),
        (("--provider", "no-such"), ""),
        (("--since", "3h"), "bcdef"),
        (("--until", "1h"), "abc"),
        (("--since", "3h", "--until", "1h"), "bc"),
        (("--only", "cancel-requests"), "f"),
        (("--only", "orders", "--provider", "square"), "ac"),
        (("--provider", "toast", "--since", "1h"), "e"),
    ],
)
def test_letters_are_meant_by_reason_merchant_provider_time_and_kind(
    connected: Program, letters: Letters, narrowed: tuple[str, ...], meant: str
) -> None:
    done = connected.invoke("dlq", "list", "--json", *narrowed)
    assert "".join(json.loads(line)["id"] for line in done.stdout.splitlines()) == meant
    done = connected.invoke("dlq", "replay", "--dry-run", "--json", *narrowed)
    assert "".join(json.loads(line)["id"] for line in done.stdout.splitlines()) == meant
    done = connected.invoke("dlq", "discard", "--open", "--yes", *FAST, *narrowed)
    assert done.stdout == f"{len(meant)} discarded\n"
    assert sorted(letters.numbers()) == sorted({*"abcdef"} - {*meant})


@pytest.mark.usefixtures("many")
def test_letters_are_counted_in_groups(connected: Program) -> None:
    done = connected.invoke("dlq", "count", "--json")
    groups = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(each["reason"], each["provider"]): each["letters"] for each in groups}
    assert found == {
        ("url", "square"): 2,
        ("url", "toast"): 1,
        ("url", None): 1,
        ("token", "square"): 1,
        ("token", "toast"): 1,
    }
    assert groups[0]["letters"] == 2
    assert groups[0]["oldest"] < groups[0]["newest"]
    done = connected.invoke("dlq", "count", "--by", "merchant", "--by", "hour", "--limit", "1")
    heading, first = (line.split("\t") for line in done.stdout.splitlines())
    assert heading == ["MERCHANT", "HOUR", "LETTERS", "OLDEST", "NEWEST"]
    assert first[1].endswith(":00:00Z")
    assert "groups; --limit N shows N" in done.stderr


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person is at the keyboard."""
    monkeypatch.setattr(bulk, "_is_asked", lambda: True)


@pytest.mark.usefixtures("asked")
def test_a_preview_says_how_many_and_why_not_the_others_and_a_no_does_nothing(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    for number in range(5):
        letter(letters, f"o-{number}")
    books.order("o-0", State.ACCEPTED)
    books.order("o-1", State.ACCEPTED)
    books.order("o-2", State.FAILED)
    books.in_doubt("o-3")
    done = connected.invoke("dlq", "replay", "--reason", "url", stdin="n\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[:3] == [
        "5 letters: 2 would be replayed, 3 refused",
        "  2 because it is accepted; discard the letter (o-0, o-1)",
        "  1 because it is in doubt: ask the merchant, then resolve it (pos-gateway orders resolve) (o-3)",
    ]
    assert "replay 2 now? [y/N]" in done.stderr
    assert done.stderr.endswith("nothing was done\n")
    assert len(letters.numbers()) == 5
    assert connected.invoke("runs", "list", "--json").stdout == ""


@pytest.mark.usefixtures("asked")
def test_a_yes_does_what_was_confirmed(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    for number in range(3):
        letter(letters, f"o-{number}")
    refused = books.order("o-0", State.ACCEPTED)
    done = connected.invoke("dlq", "replay", "--reason", "url", *FAST, stdin="y\n")
    assert (done.exit_code, done.stdout) == (1, "2 replayed, 1 refused\n")
    assert sorted(letters.numbers("orders")) == ["o-1", "o-2"]
    assert (letters.numbers(), books.audit(refused)) == (["o-0"], [])
    [record] = [json.loads(line) for line in connected.invoke("runs", "list", "--json").stdout.splitlines()]  # fmt: skip
    assert (record["operator"], record["action"], record["state"]) == ("kim", "dlq.replay", "done")
    assert (record["done"], record["refused"], record["left"]) == (2, 1, 0)
    [line] = books.order_admin.audit(Key("m-1", "o-1"))
    assert line["details"].startswith(f"run {record['run']}; url: ")
    shown = connected.invoke("runs", "show", str(record["run"]))
    assert "1\tit is accepted; discard the letter\to-0" in shown.stdout


def test_a_script_says_yes(connected: Program, books: Books, letters: Letters) -> None:
    letter(letters, "o-1")
    done = connected.invoke("dlq", "replay", "--reason", "url")
    assert done.exit_code == 2
    assert "say --yes to have it done, or --dry-run" in done.stderr
    assert letters.numbers() == ["o-1"]
    done = connected.invoke("dlq", "replay", "--reason", "url", "--yes", "--json")
    [result] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.exit_code, result) == (
        0,
        {"id": "o-1", "order_id": "o-1", "merchant_id": "m-1", "result": "replayed", "why": None},
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dlq", "replay"), "give the IDs of letters, or --all, or which with --reason"),
        (("dlq", "replay", "--since", "1h", "--until", "2h"), "--until is not after --since"),
        (
            ("dlq", "replay", "--since", "soon"),
            "'soon' is no time with its offset; 2h (ago), or 20",
        ),
        (("dlq", "replay", "--resume", "1", "--reason", "url"), "give no others"),
        (("dlq", "replay", "--rate", "0", "--all"), "--rate"),
        (("dlq", "discard", "o-1", "--json"), "for letters that the options select"),
        (("orders", "resolve", "--not-sent"), "give an ORDER_ID, or --all"),
        (("orders", "resolve", "--accepted", "--all", "--external-id", "k"), "are for one order"),
        (("orders", "resolve", "o-1", "--accepted", "--all"), "no options for many orders"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    program: Program, arguments: tuple[str, ...], said: str
) -> None:
    done = program.invoke(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_new_time_counts_from_each_letters_turn(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    for number in range(2):
        letter(letters, f"o-{number}")
    began = datetime.now(UTC)
    done = connected.invoke("dlq", "replay", "--all", "--for", "30m", "--rate", "1")
    assert done.exit_code == 0
    given = [datetime.fromisoformat(body[0][0]["deliver_by"]) for body in letters.bodies("orders")]
    assert given[0] >= began + timedelta(minutes=30)
    assert given[1] > given[0]


def interrupted(connected: Program, letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose process died after its second letter."""
    for number in range(4):
        letter(letters, f"o-{number}")
    publishing, ended = Publisher.publish, BulkStore.end
    seen: list[Any] = []

    class Killed(BaseException):
        pass

    def kill(publisher: Any, message: Any) -> None:
        publishing(publisher, message)
        seen.append(message)
        if len(seen) == 2:
            raise Killed

    def dead(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", kill)
        patch.setattr(BulkStore, "end", dead)
        with pytest.raises(Killed):
            connected.invoke("dlq", "replay", "--all", *FAST)
    assert BulkStore.end is ended


def test_a_run_whose_process_died_is_named_and_resumed(
    connected: Program, books: Books, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(connected, letters, monkeypatch)
    busy = connected.invoke("dlq", "replay", "--all", "--as", "sam")
    assert busy.exit_code == 1
    assert "run 1 of kim (dlq.replay, 1 of 4 done) is at work on them" in busy.stderr
    assert "pos-gateway runs stop 1" in busy.stderr
    with books.engine.begin() as connection:
        connection.execute(update(bulk_runs).values(lease_until=0.0))
    listed = connected.invoke("runs", "list").stdout.splitlines()[1].split("\t")
    assert listed[:8] == ["1", "kim", "dlq.replay", "interrupted", "1", "0", "0", "3"]
    wrong = connected.invoke("dlq", "discard", "--resume", "1")
    assert (wrong.exit_code, "not one of this command's" in wrong.stderr) == (1, True)
    done = connected.invoke("dlq", "replay", "--resume", "1", "--as", "sam")
    assert (done.exit_code, done.stdout) == (0, "4 replayed, 0 refused\n")
    assert letters.numbers() == []
    assert sorted(letters.numbers("orders")) == ["o-0", "o-1", "o-1", "o-2", "o-3"]
    again = connected.invoke("runs", "resume", "1")
    assert (again.exit_code, "there is nothing left to resume" in again.stderr) == (1, True)


def test_a_run_that_another_operator_stops_says_by_whom_and_how_to_go_on(
    connected: Program, books: Books, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        letter(letters, f"o-{number}")
    publishing = Publisher.publish

    def stops(publisher: Any, message: Any) -> None:
        publishing(publisher, message)
        BulkStore(books.engine).stop(1, operator="sam")

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", stops)
        done = connected.invoke("dlq", "replay", "--all")
    assert (done.exit_code, done.stdout) == (1, "1 replayed, 0 refused\n")
    assert "run 1 was stopped by sam with 2 of 3 left" in done.stderr
    assert "pos-gateway runs resume 1" in done.stderr
    assert connected.invoke("runs", "resume", "1").exit_code == 0
    stopped = connected.invoke("runs", "stop", "1")
    assert stopped.stdout == "run 1 is done: 3 done, 0 refused, 0 left\n"


def test_orders_in_doubt_are_decided_on_together(
    connected: Program, any_books: Books, letters: Letters
) -> None:
    keys = [any_books.in_doubt(f"o-{number}") for number in range(3)]
    other = any_books.in_doubt("o-9", merchant_id="m-9")
    not_left = any_books.order("o-8", State.NEW)
    done = connected.invoke("orders", "resolve", "--not-sent", "--merchant", "m-1", "--yes", *FAST)
    assert (done.exit_code, done.stdout) == (0, "3 sent again or ended, 0 refused\n")
    assert [any_books.now(key).state for key in keys] == [State.NEW] * 3
    assert [any_books.audit(key) for key in keys] == [[("kim", "orders.resolve.not_sent")]] * 3
    assert sorted(letters.numbers("orders")) == ["o-0", "o-1", "o-2"]
    done = connected.invoke("orders", "resolve", "--accepted", "--all", "--yes", "--json")
    assert [json.loads(line)["result"] for line in done.stdout.splitlines()] == ["accepted"]
    assert any_books.now(other).state is State.ACCEPTED
    assert any_books.told(other)[-1] == "accepted"
    assert any_books.now(not_left).state is State.NEW


def test_an_order_that_changes_after_the_preview_is_refused(
    connected: Program, books: Books, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has sent it again meanwhile: the merchant's answer is about what came before."""
    keys = [books.in_doubt(f"o-{number}") for number in range(2)]
    take = BulkStore.take

    def changes(store: BulkStore, *arguments: Any, **named: Any) -> Any:
        with books.engine.begin() as connection:
            of_it = orders.c.order_id == "o-1"
            connection.execute(update(orders).where(of_it).values(epoch=orders.c.epoch + 1))
        return take(store, *arguments, **named)

    monkeypatch.setattr(BulkStore, "take", changes)
    done = connected.invoke("orders", "resolve", "--accepted", "--all", "--yes", *FAST)
    assert (done.exit_code, done.stdout) == (1, "1 accepted, 1 refused\n")
    assert "o-1: something has happened to it since the preview" in done.stderr
    assert [books.now(key).state for key in keys] == [State.ACCEPTED, State.IN_DOUBT]


@pytest.mark.parametrize(
    ("narrowed", "meant"),
    [
        (("--reason", "blind"), ["old"]),
        (("--older-than", "1h"), ["old"]),
        (("--newer-than", "1h"), ["new"]),
        (("--provider", "square"), ["new"]),
        (("--limit", "1", "--all"), ["old"]),
    ],
)
def test_orders_in_doubt_are_meant_by_reason_provider_and_age(
    connected: Program, books: Books, narrowed: tuple[str, ...], meant: list[str]
) -> None:
    a_merchant(books, "m-1", "square")
    books.in_doubt("new")
    old = books.in_doubt("old", merchant_id="m-2")
    with books.engine.begin() as connection:
        of_it = orders.c.order_id == old.order_id
        since = time.time() - 2 * HOUR
        values = {"doubt_since": since, "updated_at": since, "reason_code": "blind"}
        connection.execute(update(orders).where(of_it).values(values))
    done = connected.invoke("orders", "resolve", "--accepted", "--dry-run", "--json", *narrowed)
    assert [json.loads(line)["order_id"] for line in done.stdout.splitlines()] == meant


def test_an_order_in_doubt_that_is_not_left_to_an_operator_is_refused_in_the_preview(
    connected: Program, books: Books
) -> None:
    claim, now = books.claimed("o-1"), time.time()
    assert books.ledger.finish(claim, Entry(State.IN_DOUBT, now, 1, doubt_since=now))
    done = connected.invoke("orders", "resolve", "--not-sent", "--all", "--dry-run")
    assert (done.exit_code, done.stdout) == (1, "0 would be sent again or ended, 1 refused\n")
    assert "1 because it is not left to you yet" in done.stderr


def test_a_decision_whose_message_was_not_published_is_repeated_on_resuming(
    connected: Program, books: Books, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died between the two."""
    key = books.in_doubt("o-1")

    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", kill)
        patch.setattr(BulkStore, "end", kill)
        with pytest.raises(Killed):
            connected.invoke("orders", "resolve", "--not-sent", "--all", "--yes")
    assert (books.now(key).state, letters.numbers("orders")) == (State.NEW, [])
    with books.engine.begin() as connection:
        connection.execute(update(bulk_runs).values(lease_until=0.0))
    done = connected.invoke("orders", "resolve", "--resume", "1")
    assert (done.exit_code, done.stdout) == (0, "1 sent again or ended, 0 refused\n")
    assert letters.numbers("orders") == ["o-1"]
    assert letters.numbers(topology.DEAD_KEY) == []
