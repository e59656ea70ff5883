"""The worker that is started without flags: fast, patched, and without modules it does not need.

Each trap is shown with plain Celery, then shown closed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.worker import slim_celery as light_celery
from testkit.servers.process import free_port
from tests.orders import an_order
from tests.telemetry.lab import Samples, get
from tests.worker.lab import GREEN, GREEN_COMMAND, PATIENCE, ROOT, Lab, by_type


def test_without_flags_the_worker_is_green_and_has_200_slots(lab: Lab) -> None:
    """The trap: Celery's default is one process per core."""
    port, merchants = free_port(), [f"m{n}" for n in range(200)]
    lab.open_merchants(*merchants, request_timeout=120)  # the most there is
    for merchant in merchants:
        lab.submit(merchant, f"first-{merchant}")
    with lab.worker(as_typed=True, metrics_port=port) as worker:
        assert len(lab.events(200)) == 200  # the merchants are known to be quick: light
        lab.merchants.profile("m*", {"kind": "hang"})
        for merchant in merchants:
            lab.submit(merchant, f"slow-{merchant}")
        # The last slots are reserved for the lightest merchants, whichever those are.
        lab.merchants.wait_until(in_flight=180)
        lab.merchants.profile("m*", {"kind": "accept"}, release=True)
        command = psutil.Process(worker.process.pid).cmdline()
        started = command[command.index("-P") :]  # after flags of Python itself
        assert sorted(started) == sorted(GREEN_COMMAND[1:]), "the other tests start another worker"
        slots = Samples(get(port, "/metrics")[1]).of("pos_gateway_slots")
        assert sum(slots.values()) == 200
        assert len(lab.events(200)) == 200
    assert lab.merchants.summary()["max_in_flight"] <= 200


def test_without_flags_the_worker_is_not_capped_at_ten_orders_a_second(lab: Lab) -> None:
    """The trap: Celery's gossip makes its loop wait 0.1 s after every message.

    At ten a second 200 orders take twenty seconds.
    """
    assert placed_one_by_one_while_it_runs(lab) < 10


def test_task_events_do_not_slow_the_worker(lab: Lab) -> None:
    assert placed_one_by_one_while_it_runs(lab, "-E") < 10


def test_the_worker_loads_no_module_that_it_does_not_need() -> None:
    """The terminal's are 16 MiB of each worker, cryptography's 7 of one without a key."""
    loaded = set(after_loading("import pos_gateway.gcelery, sys; print(*sys.modules)").split())
    assert {"celery.bin.worker", "kombu.serialization", "structlog"} <= loaded
    assert {"pos_gateway.worker.consumer", "sqlalchemy", "pydantic"} <= loaded
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"click_repl", "prompt_toolkit", *light_celery.HIDDEN}
    assert not packages & {
        "alembic",
        "cryptography",
        "opentelemetry",
        "redis",
    }  # until settings ask
    assert not packages & {"fastapi", "jinja2", "starlette", "uvicorn", "uvloop"}  # the server's
    assert not packages & {"aiohttp", "requests", "urllib3"}


def test_modules_that_were_left_out_can_be_imported_later() -> None:
    names = ["click_repl", *light_celery.HIDDEN]
    after_loading(f"import {', '.join(names)}; click_repl.repl")


def after_loading(code: str) -> str:
    """What this code prints in a worker's process, which must print no warning."""
    load = (
        "from gevent import monkey; monkey.patch_all(); "
        f"from pos_gateway.worker import slim_celery as light_celery; light_celery.load(); {code}"
    )
    command = [sys.executable, "-c", load]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def placed_one_by_one_while_it_runs(lab: Lab, *flags: str) -> float:
    """Seconds from the first to the last of 200 orders' arrival at their merchants."""
    lab.open_merchants("fast-1", max_concurrency=100)
    lab.merchants.profile("fast-*", {"kind": "accept", "latency": 0})
    lab.submit("fast-1", "first")
    with lab.worker(*flags):
        lab.merchants.wait_until(creates=1)
        lab.submit("fast-1", *[f"o{n}" for n in range(200)])
        assert len(by_type(lab.events(201))["order.accepted"]) == 201
    arrived = [at for _, _, at in lab.merchants.arrivals()][1:]
    return max(arrived) - min(arrived)


def test_plain_celery_has_the_trap(lab: Lab) -> None:
    """If this fails, Celery has fixed it, and our own loop may go."""
    lab.merchants.profile("fast-*", {"kind": "accept", "latency": 0})

    def place(*order_ids: str) -> None:
        for order_id in order_ids:
            body = json.dumps([[an_order(order_id)], {}, {}]).encode()
            lab.publish_raw(body, {"task": "plain.submit_order", "id": order_id})

    place("first")
    environment = {
        **os.environ,
        "PLAIN_BROKER_URL": lab.broker_url,
        "PLAIN_MERCHANTS_URL": lab.merchants.base_url("").rstrip("/"),
    }
    command = ["-m", "celery", "-A", "loadtests.baselines.plain_celery", "worker"]
    worker = subprocess.Popen(
        [sys.executable, *command, "-P", "gevent", "-c", "200"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        # What waits at the start is read before the loop begins; what comes later is not.
        lab.merchants.wait_until(creates=1)
        place(*[f"o{n}" for n in range(40)])
        lab.merchants.wait_until(creates=41)
    finally:
        worker.kill()
        worker.wait()
    arrived = [at for _, _, at in lab.merchants.arrivals()][1:]
    assert max(arrived) - min(arrived) > 2  # 40 of them at ten a second take four


@pytest.mark.parametrize("flags", [(), ("-P", "gevent")], ids=" ".join)
def test_modules_are_patched_before_other_imports_with_and_without_the_pools_name(
    flags: tuple[str, ...], broker_url: str, database_url: str, tmp_path: Path
) -> None:
    """The traps: patching after ssl was imported makes TLS recurse; a name bound before patching
    (``from time import sleep``) would stop every green thread."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import atexit, sys
def tell():
    if "celery.worker.consumer.consumer" in sys.modules:
        import kombu.utils.functional, celery.worker.consumer.consumer as consumer
        kinds = {kombu.utils.functional.sleep.__module__, consumer.sleep.__module__}
        sys.stderr.write(f"sleep is of {kinds}\\n")
atexit.register(tell)
"""
    )
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = ca.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    with SimulatedMerchants(
        tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"
    ) as merchants:
        lab = Lab(broker_url, database_url, merchants, tmp_path)
        lab.open_merchants("fast-1")
        lab.submit("fast-1", *[f"o{n}" for n in range(20)])
        with lab.worker(
            *flags,
            as_typed=True,
            environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            ca_file=tmp_path / "ca.pem",
        ) as worker:
            told = by_type(lab.events(20))
        lab.close()
    assert len(told["order.accepted"]) == 20
    assert "MonkeyPatchWarning" not in worker.log
    assert "RecursionError" not in worker.log
    assert "sleep is of {'gevent.hub'}" in worker.log


def test_the_short_app_name_starts_the_same_worker(lab: Lab) -> None:
    lab.open_merchants("slow-1", max_concurrency=50)
    lab.merchants.profile("slow-1", {"kind": "accept", "latency": 1})
    lab.submit("slow-1", *[f"o{n}" for n in range(50)])
    with lab.worker(app="gcelery"):
        lab.merchants.wait_until(merchant_id="slow-1", in_flight=50)
        assert len(lab.events(50)) == 50


def test_sighup_starts_a_worker_without_a_terminal_again(lab: Lab) -> None:
    """What Celery promises: a lost session under ``nohup``, or systemd's reload, ends no worker."""
    lab.open_merchants("m")
    with lab.worker(as_typed=True) as worker:
        lab.submit("m", "o1")
        assert len(lab.events(1)) == 1
        worker.send(signal.SIGHUP)
        worker.wait_until(lambda: worker.log.count("[queues]") == 2, "a second start")
        lab.submit("m", "o2")
        assert len(lab.events(1)) == 1


def test_explicit_flags_override_the_defaults(lab: Lab) -> None:
    """So does the pool's name with the long flag, which is patched for in time, too."""
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    lab.submit("m", *[f"o{n}" for n in range(20)])
    flags = ("--pool=gevent", "-c", "7", "-Q", "orders", "-n", "w1@%h")
    with lab.worker(*flags, as_typed=True) as worker:
        assert len(lab.events(20)) == 20
    assert lab.merchants.summary()["max_in_flight"] == 7
    assert "MonkeyPatchWarning" not in worker.log


def test_the_synchronous_worker_delivers_the_same_orders_and_keeps_deadlines(lab: Lab) -> None:
    lab.open_merchants("fast-1", "reject-1")
    lab.open_merchants("hang-1", request_timeout=0.5)
    lab.submit("fast-1", *[f"o{n}" for n in range(20)])
    lab.submit("reject-1", "r1")
    lab.submit("no-such", "n1")
    task = {"task": "pos_gateway.submit_order", "id": "x"}
    lab.publish_raw(b'{"a":1}', task)
    marked = b"\xef\xbb\xbf" + json.dumps([[an_order("marked")], {}, {}]).encode()
    lab.publish_raw(marked, task, content_type="text/plain", content_encoding="utf-16")
    with lab.worker("-P", "prefork", "-c", "2", app="pos_gateway", as_typed=True):
        told = by_type(lab.events(23))
        dead = lab.dead_letters(2)
        lab.submit("hang-1", "h1", seconds=8)  # its child processes have started by now
        [late] = lab.events(1)
    assert late["type"] == "order.in_doubt"
    assert len(told["order.accepted"]) == 21
    assert told["order.rejected"] == ["r1"]
    assert told["order.failed"] == ["n1"]
    assert {d["headers"]["x-reason-code"] for d in dead} == {"unknown_merchant", "invalid_message"}
    assert lab.merchants.summary()["max_in_flight"] <= 2


@pytest.mark.parametrize("app", ["pos_gateway", "pos_gateway.gcelery"])
def test_the_synchronous_worker_stands_streams_that_its_caller_has_closed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, app: str
) -> None:
    started = lab._started

    def without_streams(command: list[str], *rest: Any) -> Any:
        return started(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *command], *rest)

    monkeypatch.setattr(lab, "_started", without_streams)
    lab.open_merchants("m")
    lab.submit("m", "o1")
    with lab.worker("-P", "prefork", "-c", "1", app=app, as_typed=True) as worker:
        lab.events(1)
        numbers = Path(f"/proc/{worker.process.pid}/fd")
        files = {(numbers / number).readlink() for number in "012"}
    assert files == {Path("/dev/null")}  # no connection has the number of a stream


def test_an_order_of_a_killed_process_of_the_synchronous_worker_is_taken_over(lab: Lab) -> None:
    """As soon as one of a green worker: the process's lease ends, and its POS has had one create."""
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 60})
    lab.submit("m", "o1")
    with lab.worker("-P", "prefork", "-c", "1", app="pos_gateway") as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=1)
        lab.merchants.profile("m", {"kind": "accept", "latency": 0})
        parent = psutil.Process(worker.process.pid)
        assert not [file for file in parent.open_files() if ".db" in file.path], "it was not closed"
        [child] = parent.children()
        child.kill()
        [event] = lab.events(1)
    assert (event["type"], event["order_id"]) == ("order.accepted", "o1")


def test_the_heartbeat_is_short_and_remote_control_is_off(lab: Lab) -> None:
    program = (
        "from pos_gateway.celery import app; c = app.conf; "
        "print(c.broker_heartbeat, c.worker_enable_remote_control, c.accept_content, "
        "c.task_acks_late, {q.queue_arguments['x-queue-type'] for q in c.task_queues})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "15 False ['json'] True {'quorum'}"


def test_a_worker_refuses_to_start_on_a_pending_migration_and_names_the_command(
    lab: Lab, tmp_path: Path
) -> None:
    lab.database_url = f"sqlite:///{tmp_path / 'new.db'}"
    with lab.worker() as worker:
        assert worker.wait() == 78
    assert "pos-gateway db upgrade" in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("app", [GREEN, "pos_gateway"])
def test_a_worker_refuses_to_start_in_a_thread_pool_and_names_the_supported_pools(
    lab: Lab, app: str
) -> None:
    """The ledger has one connection for one caller: threads would read each other's replies."""
    with lab.worker("-P", "threads", app=app) as worker:
        assert worker.wait() == 78
    assert "in the pool celery.concurrency.thread several orders" in worker.log
    assert "use -P prefork or -P solo" in worker.log
    assert "Traceback" not in worker.log


def test_a_green_pool_of_the_synchronous_app_is_refused(lab: Lab) -> None:
    """It would be patched late, and have as many slots as the machine has cores."""
    with lab.worker("-P", "gevent", app="pos_gateway") as worker:
        assert worker.wait() == 78
    assert "use celery -A pos_gateway.gcelery worker" in worker.log


def test_a_worker_refuses_to_start_on_an_unknown_variable_and_names_the_nearest(lab: Lab) -> None:
    with lab.worker(slot=100) as worker:
        assert worker.wait() == 78
    assert "POS_GATEWAY_SLOTS" in worker.log
    assert "Traceback" not in worker.log
