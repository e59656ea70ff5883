"""Workers that claim the same orders at the same moment."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Key, LeasedElsewhere, State
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from testkit.patience import PATIENCE
from tests.ledger.lab import Rows, Worker, claimed, without_event

ROOT = Path(__file__).resolve().parents[2]
Workers = Callable[..., Worker]


def race(ledger_url: str, orders: list[Key], workers: int, callers: int) -> Counter[Key]:
    """Have this many callers in each of this many workers claim all of these orders at once."""
    won: Counter[Key] = Counter()
    lock, start = threading.Lock(), threading.Barrier(workers * callers)
    engines = [open_database(ledger_url) for _ in range(workers)]
    ledgers = [Ledger(engine, clock=SYSTEM_CLOCK) for engine in engines]
    wrong: list[Any] = []

    def call(ledger: Ledger, turn: int) -> None:
        start.wait(PATIENCE)
        for n in range(len(orders)):
            key = orders[(n + turn * 7) % len(orders)]
            result = ledger.claim(key, send=True)
            with lock:
                if isinstance(result, Claim):
                    won[key] += 1
                elif not isinstance(result, LeasedElsewhere):
                    wrong.append(result)

    for ledger in ledgers:
        ledger.start()
    threads = [
        threading.Thread(target=call, args=[ledger, turn], daemon=True)
        for ledger in ledgers
        for turn in range(callers)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
        assert not each.is_alive()
    assert wrong == []
    for ledger, engine in zip(ledgers, engines, strict=True):
        ledger.close()
        engine.dispose()
    return won


def test_exactly_one_of_many_claims_gets_a_fresh_order(ledger_url: str) -> None:
    orders = [Key("m", f"o{n}") for n in range(100)]
    won = race(ledger_url, orders, workers=3, callers=3)
    assert won == dict.fromkeys(orders, 1)


def test_exactly_one_of_many_claims_gets_a_retried_order(
    ledger_url: str, worker: Workers, rows: Rows
) -> None:
    orders = [Key("m", f"o{n}") for n in range(100)]
    one = worker()
    for key in orders:
        one.finish(
            claimed(one.claim(key, send=True)), without_event(State.IN_DOUBT, doubt_since=1.0)
        )
    won = race(ledger_url, orders, workers=3, callers=3)
    assert won == dict.fromkeys(orders, 1)
    assert {row.epoch for row in rows.orders()} == {2}


def test_exactly_one_of_many_take_overs_gets_each_order(
    ledger_url: str, worker: Workers, rows: Rows
) -> None:
    orders = [Key("m", f"o{n}") for n in range(100)]
    one = worker()
    for key in orders:
        claimed(one.claim(key, send=True))
    one.close()
    won = race(ledger_url, orders, workers=3, callers=3)
    assert won == dict.fromkeys(orders, 1)
    assert {(row.epoch, row.deaths) for row in rows.orders()} == {
        (2, 0)
    }  # it stopped, and did not die


def test_exactly_one_of_two_processes_gets_each_order(ledger_url: str, engine: Engine) -> None:
    """Both claim hundreds, and finish theirs; the ledger's rows have the owner of each."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ledger.racer", ledger_url, "200"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    won: Counter[str] = Counter()
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in processes:
        said, _ = each.communicate(timeout=PATIENCE)
        assert each.returncode == 0
        won.update(said.split())
    assert won == {f"o{n}": 1 for n in range(200)}
    rows = Rows(engine)
    assert {(row.state, row.epoch, row.deaths) for row in rows.orders()} == {("accepted", 1, 0)}
    assert len(rows.events()) == 200
