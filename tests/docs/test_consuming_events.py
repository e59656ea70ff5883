"""The consumer in docs/consuming-events.md does what the page says, also after crashes."""

import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "consumer.py"


def message(position: int) -> Message:
    """An event as it is published: two of each order."""
    row = Row(
        id=position,
        position=position,
        event_id=f"id-{position}",
        kind="pending" if position % 2 else "accepted",
        merchant_id="m-1",
        order_id=f"o-{(position + 1) // 2}",
        occurred_at=1_800_000_000.0,
        external_id=None,
        reason_code=None,
        reason_message=None,
        attempts=1,
        body=None,
        payload='{"total":1}',
        provider=None,
        adapter="rest",
    )
    return Hydration(Payloads(Vault())).message(row)


def event(position: int, event_id: str | None = None) -> dict[str, Any]:
    """The same as a consumer receives it."""
    decoded: dict[str, Any] = json.loads(message(position).body)
    return decoded if event_id is None else {**decoded, "id": event_id}


def positions(applied: Iterable[dict[str, Any]]) -> list[int]:
    return [each["position"] for each in applied]


@pytest.fixture
def consumer() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("consumer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "backend.db")


@pytest.fixture
def inbox(consumer: ModuleType, file: str) -> Any:
    return consumer.Inbox(file)


def test_the_page_has_the_whole_consumer() -> None:
    page = (ROOT / "docs" / "consuming-events.md").read_text()
    shown = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert shown[1] == EXAMPLE.read_text()


def test_an_event_is_applied_once_and_in_order(inbox: Any) -> None:
    came = [1, 2, 1, 4, 5, 2, 4, 3, 3, 4, 5, 6]
    assert [positions(inbox.take(event(each))) for each in came] == [
        *([1], [2], [], [], [], [], [], [3, 4, 5], [], [], [], [6])
    ]


def test_an_event_repeated_under_another_position_is_not_applied_again(inbox: Any) -> None:
    inbox.take(event(1))
    assert inbox.take(event(2, "id-1")) == []
    assert positions(inbox.take(event(3))) == [3]


def test_an_event_that_one_consumer_gets_too_early_is_applied_by_the_other(
    consumer: ModuleType, file: str
) -> None:
    one, two = consumer.Inbox(file), consumer.Inbox(file)
    assert positions(one.take(event(1))) == [1]
    assert positions(two.take(event(3))) == []
    assert positions(one.take(event(2))) == [2, 3]
    assert positions(two.take(event(2))) == []
    assert positions(two.take(event(4))) == [4]


def test_the_consumer_starts_at_the_given_position_and_goes_on_from_there(
    consumer: ModuleType, file: str
) -> None:
    inbox = consumer.Inbox(file, 5001)
    assert positions(inbox.take(event(4999))) == []
    assert positions(inbox.take(event(5001))) == [5001]
    assert positions(consumer.Inbox(file, 5001).take(event(5002))) == [5002]


def test_a_failed_event_is_rolled_back(
    inbox: Any, consumer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = consumer.apply

    def failing(database: sqlite3.Connection, each: dict[str, Any]) -> None:
        apply(database, each)
        if each["position"] == 2:
            raise ZeroDivisionError

    inbox.take(event(2))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(consumer, "apply", failing)
        inbox.take(event(1))
    assert positions(inbox.take(event(1))) == [1, 2]
    [(changes,)] = inbox._database.execute("select changes from orders").fetchall()
    assert changes == 2


def test_a_persistent_gap_is_reported_until_it_is_replayed(
    inbox: Any,
    consumer: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    monkeypatch.setattr(consumer.time, "monotonic", lambda: now[0])
    backend = consumer.Backend(None, inbox)

    def said(at: float) -> str:
        now[0] = at
        backend.on_iteration()
        return capsys.readouterr().err

    for position in (1, 4, 6):
        inbox.take(event(position))
    assert [said(0), said(59)] == ["", ""]
    assert "positions 2 to 3 are missing" in said(60)
    assert said(61) == ""
    assert "events replay --from 2 --to 3 --queue order-events" in said(120)
    inbox.take(event(2))
    assert said(121) == ""
    assert positions(inbox.take(event(3))) == [3, 4]
    assert [said(122), said(181)] == ["", ""]
    assert "positions 5 to 5 are missing" in said(182)
    inbox.take(event(5))
    assert said(1000) == ""


def test_a_position_with_another_event_stops_the_consumer(inbox: Any) -> None:
    inbox.take(event(1))
    with pytest.raises(SystemExit, match="position 1 comes with another id than before"):
        inbox.take(event(1, "another"))


@contextmanager
def running(broker_url: str, file: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), broker_url, file],
        stdout=subprocess.PIPE,
        text=True,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[str]", enough: Callable[[int], bool]) -> None:
    """Read the positions that it prints as applied, until enough."""
    assert process.stdout is not None
    for line in process.stdout:
        if enough(int(line.split()[0])):
            return
    raise AssertionError("it ended by itself")


def test_a_consumer_killed_repeatedly_applies_each_event_once_in_order(
    broker_url: str, file: str
) -> None:
    """The queue has duplicates, and events before earlier ones."""
    last = 300
    came: list[int] = []
    for first in range(1, last, 10):
        came += [first, first + 1, first + 5, first + 3, *range(first + 1, first + 10)]
        came += range(max(1, first - 15), first + 3)
    publisher = Publisher(broker_url)
    assert publisher.publish_batch([message(each) for each in came], on_trouble=print) == len(came)
    publisher.close()
    for killed_at in (40, 90, 200, last):
        with running(broker_url, file) as process:
            read_until(process, lambda position, at=killed_at: position >= at)  # type: ignore[misc]
    database = sqlite3.connect(file)
    assert database.execute("select count(*), max(position) from applied").fetchone() == (
        last,
        last,
    )
    assert database.execute("select count(*) from held").fetchone() == (0,)
    found = database.execute("select distinct status, changes from orders").fetchall()
    assert found == [("order.accepted", 2)]
    assert database.execute("select count(*) from orders").fetchone() == (last // 2,)
    database.close()
