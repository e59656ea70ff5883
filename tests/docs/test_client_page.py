"""Every program on docs/client.md runs, and prints what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_order_client import queued

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


def test_the_programs_do_what_the_page_says(
    broker_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space: dict[str, Any] = {}
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    for program in programs:
        exec(program.replace("amqp://guest:guest@localhost:5672//", broker_url), space)
    shown = re.findall(r"^    (.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
    refused = re.findall(r"# prints: (.*)", PAGE)
    assert len(refused) == 2
    assert capsys.readouterr().out.splitlines() == [*refused, *shown]
    expected = ["order-1", "order-1", "order-3", "order-4", "order-5", "order-3"]
    assert queued(broker_url, "orders") == expected
    assert not space["submit"]({**space["order_of"]("late"), "deliver_by": "2020-01-01T00:00:00Z"})


def test_every_error_of_the_page_exists() -> None:
    from pos_gateway.domain import errors

    [table] = re.findall(r"\| raised .*?\n\n", PAGE, re.DOTALL)
    named = re.findall(
        r"`([A-Z]\w+)`", "".join(line.split("|")[1] for line in table.split("\n")[2:-2])
    )
    assert len(named) == 5
    last = [getattr(errors, name) for name in named][1:]
    assert all(issubclass(each, errors.PublishError) for each in last)
