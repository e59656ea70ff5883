"""Facts of an order at its POS: what an order's row keeps of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.domain.errors import InvalidFacts
from pos_gateway.domain.facts import FACTS_LIMIT, Facts, facts_json, read_facts

_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,23}", fullmatch=True)
_VALUES = st.text(max_size=40) | st.integers(-(2**63), 2**63 - 1)


@given(st.dictionaries(_NAMES, _VALUES, max_size=6))
def test_facts_are_read_as_they_were_written(facts: Facts) -> None:
    text = facts_json(facts)
    assert text.isascii()
    assert read_facts(text) == facts
    assert facts_json(dict(reversed(facts.items()))) == text


@pytest.mark.parametrize("text", ["caf\xe9", "\x00", "\ud800", '"}{\\', "\u2028"])
def test_any_text_of_a_pos_can_be_stored(text: str) -> None:
    stored = facts_json({"pos_id": text}).encode()
    assert read_facts(stored.decode()) == {"pos_id": text}


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"Total": 1}, "facts: a name should be 1 to 24 characters .* .got 'Total'."),
        ({"": 1}, "facts: a name"),
        ({"n" * 25: 1}, "facts: a name"),
        ({7: 1}, "facts: a name"),
        ({"total": 17.0}, "facts.total: should be text or a whole number .got 17.0."),
        ({"paid": True}, "facts.paid: should be text or a whole number .got True."),
        ({"lines": ["x"]}, "facts.lines: should be text or a whole number"),
        ({"note": None}, "facts.note: should be text or a whole number"),
        ({"total": 2**63}, "facts.total: should be a whole number of 64 bits$"),
        ({"total": 10**5000}, "facts.total: should be a whole number of 64 bits$"),
    ],
)
def test_a_wrong_fact_is_named(facts: Any, problem: str) -> None:
    with pytest.raises(InvalidFacts, match=problem):
        facts_json(facts)


def test_facts_that_are_too_long_name_the_longest() -> None:
    room = FACTS_LIMIT - len('{"id":"7","note":""}')
    assert len(facts_json({"id": "7", "note": "x" * room})) == FACTS_LIMIT
    with pytest.raises(
        InvalidFacts, match="2049 bytes as JSON, at most 2048 are kept: shorten note"
    ):
        facts_json({"id": "7", "note": "x" * (room + 1)})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "facts: are not JSON"),
        ("[" * 100_000, "facts: are not JSON"),
        ("[]", "facts: should be a JSON object"),
        ('{"total":1e3}', "facts.total: should be text or a whole number"),
    ],
)
def test_a_text_that_has_no_facts_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidFacts, match=problem):
        read_facts(text)
