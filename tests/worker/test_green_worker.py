"""The worker that is started with no flag at all: fast, patched, and asked for nothing else.

Each trap is shown with plain Celery, then shown closed.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from kombu import Connection

from loadtests.merchants.client import SimulatedMerchants
from tests.worker.lab import ROOT, Lab, by_type


def test_without_flags_it_is_the_green_worker_with_200_slots(lab: Lab) -> None:
    """The trap: Celery's defaults are as many processes as cores."""
    lab.open_merchants(*[f"m{n}" for n in range(40)])
    lab.merchants.profile("m*", {"kind": "accept", "latency": 3})
    for n in range(40):
        lab.submit(f"m{n}", *[f"o{n}-{i}" for i in range(6)])
    with lab.worker():
        lab.merchants.wait_until(in_flight=200, timeout=30)
        assert len(lab.events(240)) == 240
    assert lab.merchants.summary()["max_in_flight"] == 200


def test_without_flags_it_is_not_capped_at_ten_orders_a_second(lab: Lab) -> None:
    """The trap: Celery's gossip makes its loop wait 0.1 s after every message.

    At ten a second 600 orders take a minute; the events' own times tell the rate.
    """
    lab.open_merchants("fast-1", "fast-2", max_concurrency=100)
    lab.merchants.profile("fast-*", {"kind": "accept", "latency": 0})
    for n in range(300):
        lab.submit("fast-1", f"a{n}")
        lab.submit("fast-2", f"b{n}")
    with lab.worker():
        assert len(by_type(lab.events(600))["order.accepted"]) == 600
    arrived = [at for _, _, at in lab.merchants.arrivals()]
    assert max(arrived) - min(arrived) < 30


def test_sending_task_events_does_not_slow_it_either(lab: Lab) -> None:
    lab.open_merchants("fast-1", max_concurrency=100)
    lab.merchants.profile("fast-*", {"kind": "accept", "latency": 0})
    lab.submit("fast-1", *[f"o{n}" for n in range(400)])
    with lab.worker("-E"):
        assert len(lab.events(400)) == 400
    arrived = [at for _, _, at in lab.merchants.arrivals()]
    assert max(arrived) - min(arrived) < 30


def test_the_trap_itself_is_there_in_plain_celery(broker_url: str) -> None:
    """If this fails, Celery has mended it, and our own loop may go."""
    program = ROOT / "tests" / "worker" / "plain.py"
    command = [sys.executable, "-m", "celery", "-A", "tests.worker.plain", "-b", broker_url]
    subprocess.run([sys.executable, str(program), broker_url, "40"], check=True, cwd=ROOT)
    worker = subprocess.Popen(
        [*command, "worker", "-P", "gevent", "-c", "200"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stamps = []
    try:
        with Connection(broker_url) as connection, connection.SimpleQueue("done") as done:
            for _ in range(40):
                stamps.append(done.get(timeout=60).payload)
    finally:
        worker.kill()
        worker.wait()
    assert max(stamps) - min(stamps) > 2  # 40 of them at ten a second


@pytest.mark.parametrize("flags", [(), ("-P", "gevent"), ("--pool=gevent",)], ids=" ".join)
def test_an_https_delivery_works_however_the_pool_is_named(
    flags: tuple[str, ...], broker_url: str, database_url: str, tmp_path: Path
) -> None:
    """The trap: patching after ssl was imported makes TLS recurse."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = ca.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    with SimulatedMerchants(
        tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")
    ) as merchants:
        lab = Lab(broker_url, database_url, merchants, tmp_path)
        lab.open_merchants("fast-1")
        lab.submit("fast-1", *[f"o{n}" for n in range(20)])
        with lab.worker(*flags, ca_file=tmp_path / "ca.pem") as worker:
            told = by_type(lab.events(20))
        lab.close()
    assert len(told["order.accepted"]) == 20
    assert "MonkeyPatchWarning" not in worker.log
    assert "RecursionError" not in worker.log


def test_everything_is_patched_before_anything_else_is_imported() -> None:
    """Names bound before patching (``from time import sleep``) would stop every green thread."""
    program = """
import sys, time, threading, ssl
import kombu.utils.functional, celery.worker.consumer.consumer
sys.stderr.write(str((kombu.utils.functional.sleep is time.sleep, time.sleep.__module__)))
"""
    sitecustomize = f"import atexit; atexit.register(exec, {program!r})"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; {sitecustomize}; "
            "sys.argv = ['celery', '-A', 'pos_gateway.gcelery', 'report', '--pool=gevent']; "
            "from celery.__main__ import main; main()",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "(True, 'gevent.hub')" in done.stderr, done.stderr


def test_the_short_name_at_the_top_level_is_the_same_worker(lab: Lab) -> None:
    lab.open_merchants("slow-1", max_concurrency=50)
    lab.merchants.profile("slow-1", {"kind": "accept", "latency": 1})
    lab.submit("slow-1", *[f"o{n}" for n in range(50)])
    with lab.worker(app="gcelery"):
        lab.merchants.wait_until(merchant_id="slow-1", in_flight=50, timeout=30)
        assert len(lab.events(50)) == 50


def test_flags_that_are_given_still_work(lab: Lab) -> None:
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    lab.submit("m", *[f"o{n}" for n in range(20)])
    with lab.worker("-c", "7", "-Q", "orders", "-n", "w1@%h"):
        assert len(lab.events(20)) == 20
    assert lab.merchants.summary()["max_in_flight"] == 7


def test_the_synchronous_worker_runs_the_same_orders(lab: Lab) -> None:
    lab.open_merchants("fast-1", "reject-1")
    lab.submit("fast-1", *[f"o{n}" for n in range(20)])
    lab.submit("reject-1", "r1")
    lab.submit("nobody", "n1")
    lab.publish_raw(b'{"a":1}', {"task": "pos_gateway.submit_order", "id": "x"})
    with lab.worker("-P", "prefork", "-c", "4", app="pos_gateway"):
        told = by_type(lab.events(22))
        dead = lab.dead_letters(2)
    assert len(told["order.accepted"]) == 20
    assert told["order.rejected"] == ["r1"]
    assert told["order.failed"] == ["n1"]
    assert {d["headers"]["x-reason-code"] for d in dead} == {"unknown_merchant", "invalid_message"}
    assert lab.merchants.summary()["max_in_flight"] <= 4


def test_the_synchronous_worker_keeps_the_deadline_too(lab: Lab) -> None:
    lab.open_merchants("hang-1", request_timeout=0.5)
    lab.submit("hang-1", "o1", seconds=4)
    with lab.worker("-P", "prefork", "-c", "2", app="pos_gateway"):
        [event] = lab.events(1)
    assert event["type"] == "order.in_doubt"


def test_the_heartbeat_is_short_and_nobody_can_stop_it_from_afar(lab: Lab) -> None:
    program = (
        "from pos_gateway.celery import app; c = app.conf; "
        "print(c.broker_heartbeat, c.worker_enable_remote_control, c.accept_content, "
        "c.task_acks_late, {q.queue_arguments['x-queue-type'] for q in c.task_queues})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "15 False ['json'] True {'quorum'}"


def test_it_refuses_to_start_on_a_pending_migration_and_names_the_command(
    lab: Lab, tmp_path: Path
) -> None:
    lab.database_url = f"sqlite:///{tmp_path / 'new.db'}"
    with lab.worker() as worker:
        assert worker.wait() == 78
    assert "pos-gateway db upgrade" in worker.log
    assert "Traceback" not in worker.log


def test_it_refuses_to_start_on_an_unknown_variable_and_names_the_nearest(lab: Lab) -> None:
    with lab.worker(slot=100) as worker:
        assert worker.wait() == 78
    assert "POS_GATEWAY_SLOTS" in worker.log
    assert "Traceback" not in worker.log
