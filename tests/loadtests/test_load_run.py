"""A load for real: locust, a worker, servers; and what slows the test's own parts is noticed.

Nothing here asserts on how fast anything was, and on how late only where a test made it so.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest
from kombu import Connection

from loadtests.bench.candidate import OURS
from loadtests.bench.gauge import LEFT
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer
from loadtests.bench.worker import Worker
from loadtests.bench.world import world
from loadtests.load import __main__ as load
from loadtests.load.run import play
from loadtests.load.scenario import LoadScenario
from loadtests.load.verdict import Word, judge
from pos_gateway.broker import topology
from pos_gateway.demo.record import RunRecord
from testkit.patience import PATIENCE
from testkit.servers.rabbitmq import RabbitMQ

ROOT = Path(__file__).resolve().parents[2]

#: Whatever else runs on the machine, the test's own parts are not too late for it.
EASY = """
description = "Little, and much patience."
seconds = 4
deliver_within = 60
backends = 3
tolerance = 3.0
[arrivals]
shape = "lunch-peak"
rate = 10
peak = 40
[merchants.healthy]
number = 10
weight = 8
latency = { lognormal = [0.05, 0.3] }
objectives = { pos_p99 = 10.0, accepted = 1.0 }
[merchants.closed]
number = 1
weight = 1
behaviour = "reject"
"""


#: They lose every other reply: sent again unasked, half of the orders are made twice.
KEYLESS = """
[merchants.keyless]
number = 5
weight = 2
keyed = false
[merchants.keyless.behaviour]
create = [{ kind = "accept" }, { kind = "reset", makes_order = true }]
lookups = { kind = "accept" }
"""


def an_easy_one(tmp_path: Path, **changes: str) -> Path:
    path = tmp_path / "easy.toml"
    text = EASY
    for name, value in changes.items():
        text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
    path.write_text(text)
    return path


@contextmanager
def slowed(*programs: str) -> Iterator[None]:
    """Stop our children of these names again and again, one after the other.

    In between all of them run: what comes to one that was stopped with the other is late by neither.
    """
    over = threading.Event()

    def slow() -> None:
        while not over.wait(0.1):
            for process in psutil.Process().children():
                with suppress(psutil.NoSuchProcess):
                    if set(programs) & set(process.cmdline()):
                        over.wait(0.2)
                        process.send_signal(signal.SIGSTOP)
                        time.sleep(0.2)  # the fault itself
                        process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.usefixtures("forked")
def test_a_whole_run_is_judged_and_told_on_one_page(
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the servers that the tests share: two more would cost as much as the run."""
    monkeypatch.setattr(load, "RabbitMQ", lambda: nullcontext(servers.rabbitmq))
    monkeypatch.setattr(load, "PostgreSQL", lambda: nullcontext(servers.postgresql))
    monkeypatch.setattr(load, "keep_off_the_workers_core", lambda: None)  # of this process, too
    path, report = an_easy_one(tmp_path), tmp_path / "report.html"
    path.write_text(path.read_text() + KEYLESS)
    scenario = LoadScenario.read(str(path))
    due = [order for backend in range(3) for order in scenario.orders(f"0/{backend}")]
    code = load.main([str(path), "--report", str(report)])
    said, complaints = capsys.readouterr()
    assert code == 0, said + complaints
    wanted = r"(\d+) sent = (\d+) accepted \+ (\d+) rejected\. 0 missing, 0 made twice"
    [(sent, accepted, rejected)] = re.findall(wanted, said)
    assert int(sent) == int(accepted) + int(rejected) == len(due)
    assert re.search(r"^\| healthy +\| +(\d+) \| +\1 \|", said, re.MULTILINE)
    assert said.rstrip().endswith("easy: Every objective was met.")
    page = report.read_text()
    assert f"{sent} sent = {accepted} accepted" in page
    assert page.count("<svg") == 11


@pytest.mark.usefixtures("forked")
def test_a_run_whose_producer_and_simulator_were_slowed_is_none(
    servers: Servers, tmp_path: Path
) -> None:
    # Replies that take so long are on their way whenever the simulator is stopped.
    slow = "{ lognormal = [0.3, 0.3] }"
    scenario = LoadScenario.read(str(an_easy_one(tmp_path, tolerance="0.1", latency=slow)))
    with slowed("locust", "pos_gateway.simulated_merchants"):
        run = play(servers, scenario)

    verdict = judge(run)

    assert {"producer", "simulator"} <= {each.what for each in verdict.spoilt}
    assert verdict.word is Word.NO_RESULT
    assert all(each.met for each in verdict.accounts)
    assert len(run.samples) > 3
    figures = {name for each in run.samples for name in each.figures}
    assert figures >= {
        *(f"slots.{state}" for state in ("free", "light", "heavy", "silent")),
        *(f"waiting.{reason}" for reason in ("slot", "merchant")),
        *(f"connections.{state}" for state in ("leased", "available", "pending")),
        *("parked_orders", "queue_messages.orders", "queue_messages.order-events"),
        *("queue_age_seconds.orders", "event_loop_lag_seconds_bucket.+Inf"),
    }
    assert run.record.unseen == 0
    assert run.readings[-1].used[LEFT] > run.readings[0].used[LEFT]


@contextmanager
def locust(broker_url: str, *options: object) -> Iterator[subprocess.Popen[str]]:
    """Locust alone, as against any gateway."""
    command = [sys.executable, "-m", "locust", "--headless", "-f", "loadtests/locustfile.py"]
    with subprocess.Popen(
        [*command, *map(str, options)],
        cwd=ROOT,
        env={**os.environ, "LOCUST_BROKER_URL": broker_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def restricted(rabbitmq: RabbitMQ, broker_url: str) -> str:
    """The URL for a user who may declare queues of its own only."""
    return rabbitmq.add_user(
        *("load", broker_url),
        configure="^amq.gen-",
        write="^(orders$|amq.gen-)",
        read="^(order-events$|amq.gen-)",
    )


@pytest.mark.usefixtures("forked")
def test_locust_alone_goes_on_while_the_broker_is_frozen_and_waits_for_what_is_open(
    servers: Servers, tmp_path: Path
) -> None:
    # An outcome comes seconds after locust's users have gone.
    path = an_easy_one(tmp_path, seconds="6", latency="2.5")
    record, scenario = tmp_path / "record.json", LoadScenario.read(str(path))
    options = ("--scenario", path, "--record", record, "--no-declare")
    with (
        world(servers, scenario.merchant_ids, scenario.profiles(0.0)) as place,
        Worker(OURS.command, place.environment, place.folder) as worker,
    ):
        with Connection(place.broker_url) as connection:
            topology.declare(connection)
        wait_for_consumer(place.broker_url, worker)
        broker_url = restricted(servers.rabbitmq, place.broker_url)
        with locust(broker_url, *options) as process:
            place.merchants.wait_until(requests=1)
            servers.rabbitmq.pause()
            frozen = time.time()
            time.sleep(1)  # the fault itself
            servers.rabbitmq.resume()
            _, statistics = process.communicate(timeout=PATIENCE)
        made = place.merchants.summary()["creates"]
    assert process.returncode == 0, statistics
    seen = RunRecord.read(record)
    assert seen.outcomes["healthy"] == {"accepted": made}
    assert seen.outcomes["closed"].keys() == {"rejected"}
    assert seen.phantom == []  # the merchants were not asked
    for name in ("enqueue", "order → event"):
        assert re.search(rf"^healthy +{name} ", statistics, re.MULTILINE)
    submitted = (
        seen.began + at + late for at, late in zip(seen.late.at, seen.late.seconds, strict=True)
    )
    assert sum(frozen <= each < frozen + 1 for each in submitted) > scenario.backends


@pytest.mark.usefixtures("forked")
def test_locust_says_that_it_heard_no_more_events_and_calls_nothing_missing(
    servers: Servers, tmp_path: Path
) -> None:
    path, record = an_easy_one(tmp_path, seconds="3"), tmp_path / "record.json"
    scenario = LoadScenario.read(str(path))
    with (
        world(servers, scenario.merchant_ids, scenario.profiles(0.0)) as place,
        Worker(OURS.command, place.environment, place.folder),
        locust(place.broker_url, "--scenario", path, "--record", record) as process,
    ):
        place.merchants.wait_until(requests=1)
        servers.rabbitmq.drop_connections()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "This is no result: the events could be followed no more: " in said
    assert "orders missing" not in said
    assert RunRecord.read(record).lost.keys() == {"events"}


#: Prints whether a load that is so far, its seconds over and no user there, goes on.
TICKS = """
from types import SimpleNamespace
from loadtests.locustfile import ScenarioShape

shape, options = ScenarioShape(), SimpleNamespace(scenario="steady", seconds=1e-9)
environment = SimpleNamespace(parsed_options=options)
for state in ("ready", "spawning", "running"):
    shape.runner = SimpleNamespace(state=state, user_count=0, environment=environment)
    print(state, shape.tick() is not None)
"""


def test_a_load_that_begins_late_is_played_all_the_same() -> None:
    """Locust's users come once the broker has answered, on a slow machine seconds after the start."""
    done = subprocess.run(
        [sys.executable, "-c", TICKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.splitlines() == ["ready True", "spawning True", "running False"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "127.0.0.1:1"),
        (("--simulator", "127.0.0.1:1"), "no simulated merchants answer at 127.0.0.1:1: "),
    ],
)
def test_a_load_that_cannot_be_started_ends_with_a_sentence(
    options: tuple[str, ...], reason: str
) -> None:
    with locust("amqp://127.0.0.1:1//", *options) as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    [sentence] = [line for line in said.splitlines() if "The load cannot be started: " in line]
    assert reason in sentence
    assert "Traceback" not in said
    assert "enqueue" not in said
