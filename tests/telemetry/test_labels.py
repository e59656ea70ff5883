"""Label values that merchants choose."""

from pos_gateway.telemetry.metrics import NONE, OTHER, Names


def test_the_first_values_keep_their_names_and_the_others_share_one() -> None:
    name = Names(2)
    assert [name[each] for each in "abcadb"] == ["a", "b", OTHER, "a", OTHER, "b"]


def test_an_empty_value_takes_no_place() -> None:
    name = Names(1)
    assert [name[each] for each in (None, "", "a", "b")] == [NONE, NONE, "a", OTHER]


def test_the_values_take_bounded_memory() -> None:
    name = Names(50)
    assert len({name[f"provider-{n}"] for n in range(10_000)}) == 51
    assert len(name) == 50
