"""Discarding a dead letter: audited before it is gone."""

from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.administration.discard import Discard
from pos_gateway.broker.dead_letter import DeadLetter


@pytest.mark.parametrize("is_away", [False, True])
def test_no_letter_is_gone_without_its_line_in_the_audit(is_away: bool) -> None:
    steps: list[str] = []

    def note(*_: Any, **named: Any) -> None:
        if is_away:
            raise ConnectionError("the database is away")
        steps.append(named["what"])

    ledger: Any = SimpleNamespace(note=note)
    letter = DeadLetter("o-1", "o-1", "m-1", "expired", "too late", 1.0, {}, b"", 1, None)
    discard = Discard(ledger, lambda each: steps.append(f"ack {each.id}"), "kim", even_open=True)
    if is_away:
        with pytest.raises(ConnectionError):
            discard.discard(letter)
    else:
        assert discard.discard(letter) is None
    assert steps == ([] if is_away else ["dead.discard", "ack o-1"])
