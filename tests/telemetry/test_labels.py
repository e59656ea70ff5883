"""Names that others choose."""

from pos_gateway.telemetry.labels import NONE, OTHER, Names


def test_the_first_keep_their_names_and_the_others_are_one() -> None:
    name = Names(2)
    assert [name(each) for each in ("a", "b", "c", "a", "d", "b")] == [
        "a",
        "b",
        OTHER,
        "a",
        OTHER,
        "b",
    ]


def test_one_that_says_nothing_takes_no_place() -> None:
    name = Names(1)
    assert [name(each) for each in (None, "", "a", "b")] == [NONE, NONE, "a", OTHER]


def test_ever_more_of_them_take_no_more_memory() -> None:
    name = Names(50)
    assert len({name(f"provider-{n}") for n in range(10_000)}) == 51
    assert len(name._named) == 50
