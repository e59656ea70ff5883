"""docs/writing-an-adapter.md: the names that it gives to authors of adapters are the code's."""

import re
from pathlib import Path

from pos_gateway.adapters.registry import GROUP
from pos_gateway.adapters.testing import Conformance, pos

TEXT = (Path(__file__).parents[2] / "docs" / "writing-an-adapter.md").read_text()


def test_the_entry_points_group_is_the_codes() -> None:
    assert f'entry-points."{GROUP}"' in TEXT


def test_what_an_author_gives_the_suite_has_these_names() -> None:
    """Those of the example and of the two tables."""
    suite = TEXT.partition("## The conformance suite")[2].partition("## The rules")[0]
    given = re.findall(r"^    (?:def )?(\w+)(?: =|\()", suite, re.MULTILINE)
    given += re.findall(
        r"`(\w+)(?:\(order\))?`", "".join(re.findall(r"^\| (.*?) \|", suite, re.MULTILINE))
    )
    declared = {*Conformance.__dict__, *dir(Conformance), "adapter"}
    assert {"adapter", "record", "pos", "refusals", "no_answers"} <= set(given) <= declared
    methods = re.findall(r"^\| `(\w+)\(\w+\)` \|", TEXT.partition("**3.")[0], re.MULTILINE)
    asked = (pos.CountsOrders, pos.AddsToTotals, pos.HasOtherOrders, pos.HasClock)
    assert [any(hasattr(each, name) for each in asked) for name in methods] == [True] * 4
