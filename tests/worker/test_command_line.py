"""Celery's own flags, variables and commands, which may not take orders away or contradict the settings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from celery import Celery
from celery.bin.celery import celery
from celery.concurrency.base import BasePool
from celery.concurrency.gevent import TaskPool as GreenPool

from pos_gateway.attempt import gateway
from pos_gateway.worker.command_line import contradictions, refused_command, refused_options
from pos_gateway.worker.consumer import OrderConsumer
from testkit.patience import PATIENCE
from tests.gate import Gate
from tests.worker.lab import GREEN, ROOT, Lab

QUEUES = ("orders", "orders.canary")
OURS, OTHER = "amqp://ours", "amqp://other"
SECRET = "amqp://us:secret@other"


@pytest.mark.parametrize("app", [GREEN, "pos_gateway"])
def test_no_command_of_celerys_erases_orders(lab: Lab, app: str) -> None:
    lab.open_merchants("m")
    lab.submit("m", "o1")
    with lab.worker("--purge", app=app) as worker:
        assert worker.wait() == 78
    assert "--purge (or CELERY_WORKER_PURGE): it would erase orders" in worker.log
    assert "Traceback" not in worker.log
    with lab.worker(app=app, environment={"CELERY_WORKER_PURGE": "1"}) as worker:
        assert worker.wait() == 78
    purge = subprocess.run(
        [sys.executable, "-m", "celery", "-A", app, "purge", "-f"],
        cwd=ROOT,
        env={**os.environ, "POS_GATEWAY_BROKER_URL": lab.broker_url},
        capture_output=True,
        text=True,
    )
    assert purge.returncode == 78
    assert "pos-gateway dlq discard" in purge.stderr
    assert "Traceback" not in purge.stderr
    with lab.worker():
        assert [event["order_id"] for event in lab.events(1)] == ["o1"]


def test_a_green_worker_is_not_scaled_by_celery(lab: Lab) -> None:
    """It would have 50 slots, and stand still for ever once Celery has shrunk the pool."""
    with lab.worker("--autoscale=200,50") as worker:
        assert worker.wait() == 78
    assert "--autoscale (or CELERY_WORKER_AUTOSCALE): POS_GATEWAY_SLOTS" in worker.log


@pytest.mark.parametrize(("slots", "window"), [(200, 2000), (10_000, 65_535)])
def test_the_prefetch_window_of_a_green_worker_is_the_gateways(
    slots: int, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--prefetch-multiplier=1``, as people copy it, a dead merchant's orders would be the whole window."""
    gate = Gate(tmp_path, Mock(), id="m", settings={"max_waiting": 100_000})
    monkeypatch.setattr(gateway, "current", lambda: gate)
    consumer = OrderConsumer(
        Mock(),
        pool=GreenPool(slots),
        app=Celery(set_as_current=False),
        controller=Mock(),
        initial_prefetch_count=slots,
    )
    assert consumer.initial_prefetch_count == window
    assert consumer.dispatcher is not None
    limits = consumer.dispatcher.admission.limits
    assert limits.max_waiting <= limits.max_blocked < window


@pytest.mark.parametrize("command", ["purge", "amqp", "migrate"])
def test_commands_that_take_orders_out_of_their_queues_are_refused(command: str) -> None:
    with click.Context(celery) as context:
        context.invoked_subcommand = command
        assert f"celery {command} would take orders" in str(refused_command())
        context.invoked_subcommand = "inspect"
        assert refused_command() is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"purge": True}, "--purge (or CELERY_WORKER_PURGE)"),
        ({"beat": True}, "--beat (or CELERY_WORKER_BEAT)"),
        ({"time_limit": 3.0}, "--time-limit (or CELERY_WORKER_TIME_LIMIT)"),
        ({"soft_time_limit": 3.0}, "--soft-time-limit"),
        ({"queues": ["orders", "celery"]}, "celery is no queue of orders"),
        ({"exclude_queues": ["order"]}, "order is no queue of orders"),
        ({"exclude_queues": list(QUEUES)}, "no queue is left"),
        ({"queues": ["orders"], "exclude_queues": ["orders"]}, "no queue is left"),
    ],
)
def test_options_of_a_worker_that_lose_orders_or_cannot_work_are_refused(
    options: dict[str, Any], said: str
) -> None:
    assert said in str(refused_options(options, QUEUES))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queues": ["orders.canary"]},
        {"exclude_queues": ["orders"]},
        {"autoscale": (8, 2), "pool": BasePool},
    ],
)
def test_other_options_are_celerys(options: dict[str, Any]) -> None:
    assert refused_options({"purge": False, "concurrency": 7, **options}, QUEUES) is None


def test_a_setting_of_celerys_on_the_command_line_is_refused() -> None:
    with click.Context(celery.commands["worker"]) as context:
        context.args = ["worker.prefetch_multiplier=1"]
        assert "worker.prefetch_multiplier: " in str(refused_options({}, QUEUES))


@pytest.mark.parametrize(
    "name",
    [
        "BROKER_URL",
        "CELERY_BROKER",
        "CELERY_BROKER_READ_URL",
        "CELERY_BROKER_URL",
        "CELERY_BROKER_WRITE_URL",
        "CELERY_CONFIG_MODULE",
        "CELERY_LOADER",
    ],
)
def test_a_variable_of_celerys_that_contradicts_is_named_and_its_value_is_not(name: str) -> None:
    [said] = contradictions(OURS, {name: OTHER})
    assert said.startswith(f"{name} ")
    assert OTHER not in said
    assert not list(contradictions(OURS, {name: ""}))


def test_the_same_broker_twice_is_no_contradiction() -> None:
    assert not list(contradictions(OURS, {"CELERY_BROKER_URL": OURS, "BROKER_URL": OURS}))


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["-b", OTHER], {}, "-b "),
        ([], {"CELERY_BROKER": OTHER}, "CELERY_BROKER "),
        ([], {"BROKER_URL": OTHER}, "BROKER_URL "),
    ],
)
def test_the_source_is_named_from_which_celerys_command_has_set_the_broker(
    arguments: list[str], variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    context = celery.make_context("celery", [*arguments, "report"], auto_envvar_prefix="CELERY")
    with context:
        copied = {**variables, "CELERY_BROKER_URL": context.params["broker"]}
        [said] = contradictions(OURS, copied)
    assert said.startswith(named)


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        ([], {"CELERY_BROKER_URL": SECRET}, "CELERY_BROKER_URL"),
        ([], {"CELERY_BROKER_READ_URL": SECRET}, "CELERY_BROKER_READ_URL"),
        (["-b", SECRET], {}, "-b"),
    ],
)
def test_a_worker_that_is_told_of_another_broker_does_not_start(
    arguments: list[str], variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    """It would be ready at a broker that has no orders. Without tables it ends in any case."""
    settings = {
        "POS_GATEWAY_BROKER_URL": OURS,
        "POS_GATEWAY_DATABASE_URL": f"sqlite:///{tmp_path / 'gateway.db'}",
    }
    worker = subprocess.run(
        [sys.executable, "-m", "celery", "-A", GREEN, *arguments, "worker"],
        cwd=ROOT,
        env={**os.environ, **settings, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    said = f"{named} names another broker than POS_GATEWAY_BROKER_URL, the only source: unset it"
    assert worker.stderr == f"pos-gateway does not start: {said}\n"
    assert worker.returncode == 78


def test_celery_multi_starts_workers(tmp_path: Path) -> None:
    """It starts processes: what patches a worker's modules would break that."""
    settings = {
        "POS_GATEWAY_BROKER_URL": OURS,
        "POS_GATEWAY_DATABASE_URL": f"sqlite:///{tmp_path / 'gateway.db'}",
    }
    files = [f"--{name}file={tmp_path / '%n'}.{name}" for name in ("pid", "log")]
    multi = subprocess.run(
        [
            *(sys.executable, "-m", "celery", "-A", GREEN),
            *("multi", "start", "w1", "w2", "--executable=/bin/echo", *files),
        ],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert multi.returncode == 0, multi.stderr
    assert multi.stdout.count("worker --detach") == 2  # as the programs say that it started
    assert "Traceback" not in multi.stderr
