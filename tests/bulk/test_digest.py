"""A letter's digest: how a run knows a letter again."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pos_gateway.administration.bulk.letters import mark_of
from pos_gateway.broker.dead_letter import DeadLetter

LETTER = DeadLetter("o-1", "o-1", "m-1", "url", "x", 1.0, {"task": "t"}, b"body", 1, None)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "o-2"},
        {"code": None},
        {"reason": "y"},
        {"at": 2.0},
        {"at": None},
        {"body": b"other"},
        {"headers": {"task": "u"}},
        {"headers": {}},
    ],
)
def test_other_letters_have_other_digests(change: dict[str, object]) -> None:
    assert mark_of(replace(LETTER, **change)) != mark_of(LETTER)  # type: ignore[arg-type]


def test_the_digest_is_the_same_however_often_it_is_delivered() -> None:
    """RabbitMQ counts deliveries in headers, and each delivery has another tag."""
    again = {"task": "t", "x-delivery-count": 3, "x-acquired-count": 4}
    assert mark_of(replace(LETTER, headers=again, tag=9, channel=object())) == mark_of(LETTER)


def test_a_digest_of_text_that_is_no_unicode() -> None:
    assert len(mark_of(replace(LETTER, reason="\udc80", code="\U0001f355"))) == 32


def test_a_foreign_messages_reason_is_bounded() -> None:
    """A header may have 100,000 characters, and lists keep tens of thousands of letters."""
    headers = {"x-reason-code": "c" * 100_000, "x-reason": "r\n" * 50_000}
    message = SimpleNamespace(
        body=b"", headers=headers, properties={}, delivery_tag=1, channel=None
    )
    letter = DeadLetter.of(message)
    assert letter.code == "c" * 128 and letter.reason == ("r " * 500).strip()
    died = {"x-first-death-reason": "d" * 100_000}
    assert DeadLetter.of(SimpleNamespace(**{**vars(message), "headers": died})).code == "d" * 128
