"""What came from outside reaches no terminal as anything but text, and no message stops a command."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.cli.text import json_text, printable
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.states import State
from pos_gateway.runtime.clock import shown
from testkit.hostile_text import is_shown
from tests.cli.books import Books, Letters
from tests.cli.conftest import Program

#: Clears the screen, in C0 and in C1; ends a line; deletes; turns the text around; is half a character
#: in a header; is what PostgreSQL keeps in no text.
HOSTILE = "a\x1b[2J\x9b2J\r\x7f\u202eb\u2066\u200f\u2028c\U000e0041\x00"

Make = Callable[..., dict[str, Any]]


def is_harmless(output: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in output)


_TEXT = st.text(st.characters(codec=None), max_size=8)


@given(_TEXT, _TEXT, st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}]))
def test_json_is_harmless_and_the_same_value(name: str, text: str, layout: dict[str, Any]) -> None:
    value = {name: [text, {"n": 1, text: None}]}
    written = json_text(value, **layout)
    assert is_harmless(written)
    written.encode()  # also with half a character
    assert json.loads(written) == json.loads(json.dumps(value))


@given(_TEXT)
@example("a\x1b[2J\u202e\u200db")
def test_a_line_is_one_and_harmless(text: str) -> None:
    assert is_shown(printable(text))


@pytest.mark.parametrize(
    "word",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    ],
)
def test_a_line_has_words_as_they_are_written(word: str) -> None:
    assert printable(word) == word


@pytest.mark.parametrize("flags", [(), ("--json",), ("--reveal",), ("--reveal", "--json")])
def test_no_command_that_shows_orders_lets_it_through(
    program: Program, books: Books, flags: tuple[str, ...]
) -> None:
    hostile = {"customer": {"name": HOSTILE}, "notes": HOSTILE, "extra": {HOSTILE: HOSTILE}}
    item = {"sku": HOSTILE, "name": HOSTILE, "quantity": 1, "unit_price": 1, "notes": HOSTILE}
    books.order("o-1", State.REJECTED, reason=Reason(HOSTILE, HOSTILE), items=[item], **hostile)
    listing = [flag for flag in flags if flag != "--reveal"]
    for arguments in (("orders", "show", "o-1", *flags), ("orders", "list", *listing)):
        done = program.invoke(*arguments)
        assert done.exit_code == 0
        assert is_harmless(done.output)


def test_no_letter_stops_a_command_or_reaches_the_terminal(
    connected: Program, books: Books, letters: Letters, order: Make
) -> None:
    headers = {"task": wire.SUBMIT_ORDER, "x-reason": f"\ud800{HOSTILE}", "x-reason-code": "bad"}
    body = json.dumps([[order("o-1", notes=HOSTILE, currency=HOSTILE)], {}, {}]).encode()
    letters.raw(body, headers, "o-1")
    letters.raw(b"[" * 400 + HOSTILE.encode() + b"]" * 400, headers, "o-2")
    letters.raw(b"[" * 900 + b"]" * 900, headers, "o-3")
    for arguments in (
        ("list",),
        ("list", "--json"),
        *(
            ("show", each, *flags)
            for each in ("o-1", "o-2", "o-3")
            for flags in ((), ("--reveal",), ("--reveal", "--json"))
        ),
        ("replay", "--all"),
        ("replay", "--all", "--json"),
    ):
        done = connected.invoke("dead", *arguments)
        assert is_harmless(done.output), arguments
    done = connected.invoke("dead", "discard", "--all", "--yes")
    assert (done.exit_code, done.output) == (0, "3 discarded\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("orders", "prune", "--older-than", "999999d"),
        ("events", "prune", "--older-than", "999999d"),
        ("orders", "list", "--older-than", "36501d"),
        ("orders", "list", "--limit", str(10**20)),
        ("orders", "list", "--limit", "9" * 5000),
        ("events", "tail", "--limit", str(10**20)),
        ("events", "replay", "--from", str(10**20), "--to", str(10**21)),
        ("dead", "list", "--limit", str(10**20)),
        ("orders", "show", "\udcff"),
        ("orders", "list", "--merchant", "m\udcff"),
        ("merchants", "show", "\udcff"),
        ("merchants", "pause", "m", "\udcff"),
        ("dead", "discard", "\udcff"),
        ("cancel", "\udcff", "--merchant", "m"),
    ],
)
def test_a_mistake_of_an_operators_is_a_sentence(
    migrated: Program, arguments: tuple[str, ...]
) -> None:
    done = migrated.invoke(*arguments)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert is_harmless(done.output)


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z"])
def test_an_order_that_is_good_beyond_the_calendar_is_listed(
    program: Program, books: Books, moment: str
) -> None:
    books.order("o-1", State.FAILED, deliver_by=moment)
    for arguments in (("orders", "list"), ("orders", "show", "o-1")):
        assert "o-1" in program.invoke(*arguments).stdout


@pytest.mark.parametrize("at", [1_795_000_000_000.0, -1e18, float("inf"), float("nan")])
def test_a_time_that_no_calendar_has_is_not_shown(at: float) -> None:
    assert shown(at) is None


@pytest.fixture(params=["UTC0", "<+0530>-05:30", "<-08>+08"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the operator is."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("time_zone")
def test_when_a_letter_was_set_aside_is_the_same_wherever_the_operator_is() -> None:
    died = datetime(2026, 11, 20, 7, 26, 16, tzinfo=UTC)
    naive = died.replace(tzinfo=None)  # as the AMQP library gives it

    def at(timestamp: object, **headers: object) -> float | None:
        properties = {"message_id": "o-1", "timestamp": timestamp}
        message = SimpleNamespace(
            body=b"", headers=headers, properties=properties, delivery_tag=1, channel=None
        )
        return DeadLetter.of(message).at

    assert at(None, **{"x-death": [{"time": naive}]}) == died.timestamp()
    assert at(naive) == at(int(died.timestamp())) == died.timestamp()
