"""Orders over HTTP, while servers, workers, the broker and the database are killed in turn.

``HTTP=20000`` has 20,000 orders, as ``make soak-http`` does.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import requests

from pos_gateway.database.engine import open_database
from pos_gateway.http_client import HttpOrderClient
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import free_port
from testkit.servers.rabbitmq import RabbitMQ
from tests.faults.lab import FaultLab
from tests.orders import an_order
from tests.worker.lab import PATIENCE, WorkerProcess

ORDERS = int(os.environ.get("HTTP", "500"))
#: Backends' threads, and orders between two kills.
THREADS, EVERY = 8, max(100, ORDERS // 40)


class HttpServer:
    """``pos-gateway serve`` on one port, however often it is killed."""

    def __init__(self, lab: FaultLab, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "server.log").open("ab")
        self._environment = {
            **os.environ,
            "POS_GATEWAY_BROKER_URL": lab.broker_url,
            "POS_GATEWAY_DATABASE_URL": lab.database_url,
            "POS_GATEWAY_METRICS_PORT": "0",
        }
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "pos_gateway", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(command, env=self._environment, stderr=self._log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if requests.get(self.url + "/readyz", timeout=5).ok:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.05)
        raise AssertionError("the server is not ready")


def test_every_order_that_was_taken_ends_once_whatever_is_killed(
    lab: FaultLab, rabbitmq: RabbitMQ, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    poses = lab.open_poses(3, request_timeout=5.0)
    engine = open_database(lab.database_url)
    token = TokenStore(engine).create("backend", Role.BACKEND, operator="test")
    engine.dispose()
    chance = random.Random(1)
    with ExitStack() as stack:
        server = HttpServer(lab, tmp_path)
        stack.callback(server.kill)
        server.wait()
        client = stack.enter_context(HttpOrderClient(server.url, token, timeout=5))
        lab.backend.submit_over(client)
        workers: list[WorkerProcess] = [stack.enter_context(lab.worker()) for _ in range(2)]
        numbers = iter(range(ORDERS))
        turn = threading.Lock()

        def post() -> None:
            while True:
                with turn:
                    number = next(numbers, None)
                if number is None:
                    return
                lab.backend.place(an_order(f"h{number}", poses[number % len(poses)]))

        posting = [threading.Thread(target=post, daemon=True) for _ in range(THREADS)]
        for each in posting:
            each.start()
        kills = 0
        for mark in range(EVERY, ORDERS, EVERY):
            while len(lab.backend.placed) < mark:
                assert any(each.is_alive() for each in posting)
                time.sleep(0.01)
            what = ("server", "worker", "broker", "database")[kills % 4]
            kills += 1
            time.sleep(chance.random() * 0.2)  # somewhere in the midst of it
            if what == "server":
                server.kill()
                server.start()
            elif what == "worker":
                workers.pop(0).send(signal.SIGKILL)
                workers.append(stack.enter_context(lab.worker()))
            elif what == "broker":
                rabbitmq.kill()
                rabbitmq.start()
            else:
                postgresql.kill()
                postgresql.start()
        for each in posting:
            each.join(10 * PATIENCE)
        assert len(lab.backend.placed) == ORDERS
        lab.settle()
    verdict = lab.verdict()
    assert verdict.broken == [], str(verdict)
    assert kills >= 4
