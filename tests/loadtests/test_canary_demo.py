"""The rehearsal of the move: its table, and the whole of it once, in short."""

import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests
from rich.console import Console

from loadtests.canary import __main__ as canary
from loadtests.canary import rehearsal
from loadtests.canary.orders import Step, table
from loadtests.canary.picture import NEW, OLD, Delivered, picture
from loadtests.canary.rehearsal import Rehearsal, open_merchants
from pos_gateway.database.engine import open_database
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.faults.adapters import QueryableAdapter
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from tests.schema import make_tables

STEPS = ("0 %", "10 %", "50 %", "canary killed", "100 %", "moved back")


def test_a_row_has_what_a_step_did_to_the_orders_of_both_sides() -> None:
    times = [number / 100 for number in range(1, 101)]
    steps = [Step("0 %", 12.34, None, ""), Step("50 %", 5.0, 4.0, "hold")]
    seconds = {("0 %", False): times, ("50 %", False): [0.1], ("50 %", True): times[::-1]}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table(steps, seconds))
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["0", "%", "100", "0.50", "0.99", "12.3", "0", "-", "-", "-"] in rows
    assert ["50", "%", "1", "0.10", "0.10", "5.0", "100", "0.50", "0.99", "4.0", "hold"] in rows


def test_the_picture_has_each_order_at_its_time_and_on_its_side() -> None:
    orders = [
        Delivered(100.0, False, 10.0),
        Delivered(130.0, True, 0.5),
        Delivered(130.0, True, 1.0),
    ]
    drawn = ElementTree.fromstring(picture(orders, [("0 %", 100.0), ("<50 %>", 120.0)], "Done."))
    shapes = [each.attrib for each in drawn.iter() if float(each.get("height", 0)) or each.get("r")]
    bars = [each for each in shapes if each.get("height") in ("70.0", "140.0")]
    assert [(each["fill"], each["height"]) for each in bars] == [(OLD, "70.0"), (NEW, "140.0")]
    dots = [each for each in shapes if "r" in each]
    assert [(each["fill"], each["cy"]) for each in dots] == [(OLD, "306.0"), (NEW, "346.0")]
    assert float(bars[0]["x"]) < float(bars[1]["x"])
    assert {"0 %", "<50 %>", "Done."} <= {each.text for each in drawn.iter()}


def test_orders_of_some_merchants_are_made_twice_if_they_are_sent_twice(database_url: str) -> None:
    database = open_database(database_url)
    make_tables(database)
    store = MerchantStore(database)
    with SimulatedMerchants() as merchants:
        ids = open_merchants(merchants, store)
        for each in ("shop-0", "slow-0"):
            for _ in range(2):
                with suppress(requests.Timeout):  # made as it is read
                    url, key = f"{merchants.base_url(each)}/orders", {"Idempotency-Key": "o-1"}
                    requests.post(url, json={}, headers=key, timeout=0.1)
        merchants.wait_until(requests=4)
        assert [each["merchant"] for each in merchants.doubled()] == ["slow-0"]
    known = store.get(ids)
    assert {each for each in ids if known[each].adapter == QueryableAdapter.name} == {
        each for each in ids if each.startswith("slow-")
    }
    database.dispose()


def test_the_rehearsal_ends_by_itself_and_accounts_for_every_order(
    rabbitmq: RabbitMQ,
    postgresql: PostgreSQL,
    forked: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """On the servers that the tests share, and with fewer processes and orders than as it is."""
    rabbitmq.start()
    postgresql.start()
    monkeypatch.setattr(canary, "RabbitMQ", lambda: nullcontext(rabbitmq))
    monkeypatch.setattr(canary, "PostgreSQL", lambda: nullcontext(postgresql))
    monkeypatch.setattr(Rehearsal, "PROCESSES", 4)
    monkeypatch.setattr(Rehearsal, "RATE", 8.0)
    monkeypatch.setattr(rehearsal, "WARM_UP", 0.5)
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = canary.main(["--short", "--picture", str(tmp_path / "move.svg")])
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    assert code == 0, out + err
    assert "orders were accepted: none was lost, none was made twice." in out
    assert "Traceback" not in err
    assert all(f"\n{step}: " in out for step in STEPS)
    drawn = (tmp_path / "move.svg").read_text()
    assert all(f">{step}</text>" in drawn for step in (*STEPS, "0"))
    assert "none was made twice.</text>" in drawn
