"""The merchants in the canary: a share, pilots, and invalid rules."""

from datetime import UTC, datetime

import pytest

from pos_gateway.domain.errors import InvalidSplit
from pos_gateway.domain.split import MAX_PINS, Split, in_canary

MERCHANTS = [f"m{number}" for number in range(1000)]


def test_at_0_percent_no_merchant_is_in_and_at_100_percent_every_one() -> None:
    assert not any(Split(percent=0).takes(each) for each in MERCHANTS)
    assert all(Split(percent=100).takes(each) for each in MERCHANTS)


def test_a_share_is_about_that_share_of_the_merchants() -> None:
    for percent in (1, 10, 50, 90):
        inside = sum(in_canary(each, percent) for each in MERCHANTS)
        assert inside == pytest.approx(10 * percent, abs=45)


def test_a_pilot_is_in_whatever_the_percentage_is() -> None:
    split = Split(percent=10, pins=frozenset({"m-1"}))
    assert [split.takes(each) for each in ("m-8", "m-3", "m-1")] == [True, False, True]
    assert Split(pins=frozenset({"m-1"})).takes("m-1")


def test_a_written_split_is_read_back() -> None:
    at = datetime(2026, 11, 20, 7, 26, 16, tzinfo=UTC)
    split = Split().changed("kim", at, percent=12.5, pins=["a", "b"])
    assert Split.parse_json(split.to_json()) == split
    assert Split.parse_json(b'{"percent": 3, "of_a_later_version": 1}').percent == 3
    assert Split.parse_json(b"{}") == Split()


def test_unchanged_fields_stay() -> None:
    now = datetime.now(UTC)
    before = Split(percent=5, pins=frozenset({"m-1"}))
    assert before.changed("kim", now, percent=10).pins == {"m-1"}
    assert before.changed("kim", now, pins=["m-2"]).percent == 5


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"percent": -0.1}', "percent"),
        ('{"percent": 100.1}', "percent"),
        ('{"percent": "NaN"}', "percent"),
        ('{"pins": ["a b"]}', "pins[0]"),
        ('{"pins": "m-1"}', "pins"),
        (f'{{"pins": [{",".join(map(str, range(MAX_PINS + 1)))}]}}', "pins[0]"),
        ("10", "(record)"),
        ("", "(record)"),
    ],
)
def test_an_invalid_rule_names_its_field(text: str, field: str) -> None:
    with pytest.raises(InvalidSplit) as caught:
        Split.parse_json(text)
    assert caught.value.field == field


def test_the_number_of_pilots_is_bounded() -> None:
    pins = [f"m{number}" for number in range(MAX_PINS + 1)]
    now = datetime.now(UTC)
    assert len(Split().changed("kim", now, pins=pins[1:]).pins) == MAX_PINS
    with pytest.raises(InvalidSplit, match="pins"):
        Split().changed("kim", now, pins=pins)
