"""A server process of our own, and a client that says what it sends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

from pos_gateway.database.engine import open_database
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.patience import PATIENCE
from tests.planting import PLANTED, ROOT
from tests.schema import make_tables
from tests.server import preloaded
from tests.server.conformance import require_described

#: Seconds for anything that should happen at once.
SOON = PATIENCE


def order(order_id: str = "o1", merchant_id: str = "m1", **others: Any) -> dict[str, Any]:
    """A valid order."""
    now = datetime.now(UTC)
    return {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(minutes=15)).isoformat(),
        "currency": "EUR",
        "items": [{"sku": "s1", "name": "Soup", "quantity": 1, "unit_price": 500}],
        "total": 500,
        **others,
    }


def token_for(database_url: str, role: Role) -> str:
    """A new token."""
    engine = open_database(database_url)
    try:
        name = f"{role.value}-{os.urandom(4).hex()}"
        return TokenStore(engine).create(name, role, operator="test")
    finally:
        engine.dispose()


def migrated(database_url: str) -> str:
    """The same, with the schema."""
    engine = open_database(database_url)
    make_tables(engine)
    engine.dispose()
    return database_url


class Server:
    """``pos-gateway serve`` in a process, and a session that has a backend's token.

    A reply to the session that is not as the OpenAPI document has it fails.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, token: str) -> None:
        self.process = process
        self.url = url
        self.token = token
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Authorization"] = f"Bearer {token}"
        self.session.hooks["response"].append(require_described)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def post(self, path: str, content: Any = None, **others: Any) -> requests.Response:
        """Post JSON, or ``data=`` as it is."""
        if content is not None:
            others["json"] = content
        return self.session.post(self.url + path, timeout=SOON, **others)

    def get(self, path: str, timeout: float = SOON, **others: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=timeout, **others)

    def wait_until_ready(self) -> None:
        until = time.monotonic() + SOON
        while not self.get("/readyz").ok:
            assert time.monotonic() < until, "it is not ready"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(SOON)


@contextmanager
def serving(
    broker_url: str,
    database_url: str,
    log: Path,
    settings: Mapping[str, str] | None = None,
    *arguments: str,
    is_ready: bool = True,
    module: str = "pos_gateway",
) -> Iterator[Server]:
    """A server on a free port; once it is ready, or as soon as it listens.

    ``module`` is run in place of the gateway's: it adds what a test needs, and runs that.
    """
    token = token_for(database_url, Role.BACKEND)
    environment = os.environ | {
        "POS_GATEWAY_BROKER_URL": broker_url,
        "POS_GATEWAY_DATABASE_URL": database_url,
        "POS_GATEWAY_METRICS_PORT": "0",
        "PYTHONPATH": str(ROOT),
        **(settings or {}),
    }
    process = _started(module, ("serve", "--port", "0", *arguments), environment, log)
    try:
        url = _url_of(process, log)
        assert url is not None, f"it ended with {process.wait()}: {log.read_text()}"
        server = Server(process, url, token)
        if is_ready:
            server.wait_until_ready()
        yield server
    finally:
        process.kill()
        process.wait()


def _started(
    module: str, arguments: Sequence[str], environment: dict[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Forked from a process that has its modules, unless those are to have a fault."""
    if PLANTED not in os.environ:
        return preloaded.start(module, arguments, environment, log)
    command = [sys.executable, "-P", "-m", module, *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment)


def _url_of(process: "subprocess.Popen[bytes]", log: Path) -> str | None:
    """Its URL, once it listens."""
    while True:
        has_ended = process.poll() is not None
        for line in log.read_bytes().splitlines(keepends=True):
            if b"server.listening" in line and line.endswith(b"\n"):
                where = json.loads(line)
                return f"http://{where['address']}:{where['port']}"
        if has_ended:
            return None
        time.sleep(0.01)
