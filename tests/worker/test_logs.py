"""A real worker's log: no order waits for its reader."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.streams import Pipe
from tests.worker.lab import Lab, WorkerProcess, by_type

INFO = ("--loglevel", "INFO")
REJECT = {"kind": "reject"}


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    yield Pipe()


def lines_of(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The log's JSON lines; the rest is Celery's banner."""
    return [json.loads(line) for line in worker.log.splitlines() if line.startswith("{")]


def attempted(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == "delivery.attempted"]


def test_orders_are_delivered_while_the_log_is_not_read_and_dropped_lines_are_counted(
    lab: Lab, pipe: Pipe
) -> None:
    lab.open_merchants("gone-1", "reject-1")
    lab.merchants.profile("gone-1", {"kind": "fail", "status": 410})
    lab.merchants.profile("reject-1", REJECT)
    orders = [f"o{n}" for n in range(120)]
    with lab.worker(*INFO, stderr=pipe.writer, log_buffer=32):
        lab.wait_for_worker()
        pipe.fill()
        lab.submit("gone-1", "first")
        [failed] = lab.events(1)
        lab.submit("reject-1", *orders)
        told = by_type(lab.events_until_all_ended(orders))
        assert lab.merchants.merchant("reject-1")["requests"] == len(orders)
        pipe.give_away()
        pipe.read_until("log.dropped")
        lab.submit("reject-1", "last")
        lab.events(1)
        pipe.read_until('"last"')
    lines = pipe.read_all()
    assert failed["type"] == "order.failed"
    assert sorted(told["order.rejected"]) == sorted(orders)
    assert "merchant.gone" in [line["event"] for line in lines]  # errors are dropped last
    shown = [line["order_id"] for line in attempted(lines)]
    missing = [line["dropped_info"] for line in lines if line["event"] == "log.dropped"]
    assert len(missing) == 1
    assert len(shown) + missing[0] >= len(orders) + 2
    # The buffer keeps 32; the writer had taken up to 16 when it found the pipe full.
    assert missing[0] >= len(orders) - 32 - 16
    assert {"first", "last"} < set(shown)
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times)


def test_a_worker_stops_while_its_log_is_not_read(lab: Lab, pipe: Pipe) -> None:
    lab.open_merchants("reject-1")
    lab.merchants.profile("reject-1", REJECT)
    with lab.worker(*INFO, stderr=pipe.writer) as worker:
        lab.wait_for_worker()
        pipe.fill()
        lab.submit("reject-1", "o1")
        lab.events(1)
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("app", "flags"), [("pos_gateway.gcelery", ()), ("pos_gateway", ("-P", "prefork", "-c", "1"))]
)
def test_lines_logged_during_shutdown_are_written(
    lab: Lab, app: str, flags: tuple[str, ...]
) -> None:
    lab.open_merchants("reject-1")
    lab.merchants.profile("reject-1", {**REJECT, "latency": 1.0})
    with lab.worker(*INFO, *flags, app=app) as worker:
        lab.submit("reject-1", "o1")
        lab.merchants.wait_until(in_flight=1)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    assert [line["order_id"] for line in attempted(lines_of(worker))] == ["o1"]


def test_an_attempt_is_one_line_with_all_its_fields_of_accepted_orders_at_level_info_only(
    lab: Lab,
) -> None:
    lab.open_merchants("fast-1")
    lab.open_merchants("reject-1", provider="acme")
    lab.merchants.profile("reject-1", REJECT)
    with lab.worker(*INFO) as worker:
        lab.submit("reject-1", "o1", notes="ring twice")
        lab.events(1)
        lab.submit("reject-1", "o2")
        lab.events(1)
        lab.submit("fast-1", "o3")
        lab.events(1)
    with lab.worker() as quiet:
        lab.submit("fast-1", "o4")
        lab.events(1)
    assert attempted(lines_of(quiet)) == []
    first, second, accepted = attempted(lines_of(worker))
    assert (accepted["order_id"], accepted["outcome"]) == ("o3", "accepted")
    assert {name: first[name] for name in first if "seconds" not in name} == {
        "timestamp": first["timestamp"],
        "level": "info",
        "event": "delivery.attempted",
        "action": "submit",
        "order_id": "o1",
        "merchant_id": "reject-1",
        "provider": "acme",
        "adapter": "rest",
        "attempt": 1,
        "outcome": "rejected",
        "contact": "answered",
        "reason": None,
        "trace_id": None,
    }
    stages = ("waited", "claim", "connect", "first_byte")
    assert all(first[f"{stage}_seconds"] > 0 for stage in stages)
    assert first["first_byte_seconds"] <= first["seconds"]
    assert second["connect_seconds"] == 0  # the connection was reused


def test_celerys_lines_and_printed_lines_are_json(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        """
import threading, sys, time
def tell():
    while type(sys.stdout).__name__ != "LoggingProxy":
        time.sleep(0.01)
    print("printed by a task")
if "worker" in sys.argv or "worker" in sys.orig_argv:
    threading.Thread(target=tell, daemon=True).start()
"""
    )
    with lab.worker(*INFO, environment={"PYTHONPATH": str(tmp_path)}) as worker:
        worker.wait_for_log("printed by a task")
    said = {line["logger"]: line["message"] for line in lines_of(worker) if "logger" in line}
    assert said["celery.redirected"] == "printed by a task"
    assert said["celery.apps.worker"].endswith(" ready.")


@pytest.mark.parametrize(
    ("app", "flags"), [("pos_gateway.gcelery", ()), ("pos_gateway", ("-P", "prefork", "-c", "1"))]
)
def test_a_log_file_has_every_line(
    lab: Lab, tmp_path: Path, app: str, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "gateway.log"
    lab.open_merchants("reject-1")
    lab.merchants.profile("reject-1", REJECT)
    with lab.worker(*INFO, *flags, "--logfile", str(path), app=app) as worker:
        lab.submit("reject-1", "o1")
        lab.events(1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["order_id"] for line in attempted(lines)] == ["o1"]
    assert "celery.apps.worker" in {line.get("logger") for line in lines}
    assert attempted(lines_of(worker)) == []


def test_an_unwritable_log_file_is_reported_at_once(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "gateway.log"
    with lab.worker("--logfile", str(path)) as worker:
        assert worker.wait() == 78
    assert f"nothing can be written to the log file {path}: No such file or directory" in worker.log
