"""A lost database that is restored from a backup: the steps of docs/backup.md, one by one."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.database.engine import open_database
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.postgresql import PostgreSQL, installed
from tests.cli import preloaded
from tests.orders import an_order
from tests.worker.lab import PATIENCE, ROOT, Lab

PAGE = (ROOT / "docs" / "backup.md").read_text()


class Backend:
    """Consumes as docs/consuming-events.md says, and remembers its submitted orders."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        path = ROOT / "docs/examples/consumer.py"
        specification = importlib.util.spec_from_file_location("consumer", path)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        self._inbox = module.Inbox(folder / "backend.db")
        self._lab = lab
        self.placed: dict[str, dict[str, Any]] = {}
        self.applied: list[dict[str, Any]] = []

    def place(self, *order_ids: str) -> None:
        for order_id in order_ids:
            self.placed[order_id] = an_order(order_id, "m")
        self.submit_again(*order_ids)

    def placed_long_ago(self, order_id: str) -> None:
        """An order whose message was lost, and that has expired by now."""
        self.placed[order_id] = an_order(order_id, "m", seconds=-0.5)

    def submit_again(self, *order_ids: str) -> None:
        for order_id in order_ids:
            self._lab.client.submit(self.placed[order_id], again=True)

    def consume(self, count: int) -> None:
        """Consume this many events; exits if a position arrives with another id than before."""
        for event in self._lab.events(count):
            self.applied += self._inbox.take(event)

    def consume_to_the_end(self) -> None:
        self.consume(self._lab.queued("order-events"))

    @property
    def last(self) -> int:
        return int(self.applied[-1]["position"])

    @property
    def without_end(self) -> list[str]:
        ended = {event["order_id"] for event in self.applied if event["type"] != "order.pending"}
        return [order_id for order_id in self.placed if order_id not in ended]


@pytest.fixture
def lab(
    broker_url: str, postgres_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[Lab]:
    simulated_merchants.reset()
    lab = Lab(broker_url, postgres_url, simulated_merchants, tmp_path)
    lab.open_merchants("m")
    yield lab
    lab.close()


@pytest.fixture
def backend(lab: Lab, tmp_path: Path) -> Backend:
    return Backend(lab, tmp_path)


def command(begins: str, url: str, folder: Path) -> list[str]:
    """A command of the page, with this database and this folder filled in."""
    [line] = re.findall(rf"^ *({begins} .*)$", PAGE, re.MULTILINE)
    line = line.replace("postgresql://USER@HOST/pos_gateway", url.replace("+psycopg", ""))
    words = str(line).replace("gateway.dump", str(folder / "gateway.dump")).split()
    return [shutil.which(words[0]) or str(installed(words[0])), *words[1:]]


def go_on_behind(position: int, url: str) -> None:
    """Step 4, as documented."""
    [statement] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert statement.count("4711") == 3
    engine = open_database(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement.replace("4711", str(position)))
    engine.dispose()


def set_back(lab: Lab, url: str, folder: Path, server: PostgreSQL) -> None:
    lab._engine.dispose()
    server.drop_database(url)
    server.database(lab._engine.url.database)
    restore = command("pg_restore", url, folder)
    subprocess.run(restore, check=True, capture_output=True)


def test_restoring_a_backup_doubles_no_order_and_loses_no_event(
    lab: Lab, backend: Backend, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    url = lab.database_url
    with lab.worker():
        backend.place("before")
        backend.consume(1)
        dump = command("pg_dump", url, tmp_path)
        subprocess.run(dump, check=True, capture_output=True)
        backend.place("consumed")
        backend.consume(1)
        backend.place("not-consumed")
        lab.wait_until_queued("order-events", 1)
    backend.place("not-sent")
    set_back(lab, url, tmp_path, postgresql)
    assert lab.ledger("m", "consumed") is None

    backend.consume_to_the_end()
    go_on_behind(backend.last, url)
    with lab.worker():
        backend.consume(1)
        assert backend.without_end == []
        # An order of the lost window once more, by mistake: this POS honours keys.
        backend.submit_again("consumed")
        backend.consume(1)
        backend.place("after")
        backend.consume(1)
    ends = {event["order_id"]: event["type"] for event in backend.applied}
    assert ends == dict.fromkeys(backend.placed, "order.accepted")
    assert [event["position"] for event in backend.applied] == [1, 2, 3, 4, 6]  # 5 repeats 2's id
    assert lab.merchants.doubled() == []


def test_without_the_fourth_step_the_backend_stops_at_the_first_repeated_position(
    lab: Lab, backend: Backend, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    url = lab.database_url
    with lab.worker():
        backend.place("before")
        backend.consume(1)
        subprocess.run(command("pg_dump", url, tmp_path), check=True)
        backend.place("consumed")
        backend.consume(1)
    set_back(lab, url, tmp_path, postgresql)
    with lab.worker():
        backend.place("after")
        with pytest.raises(SystemExit, match="set back to a backup"):
            # The first event may be repeated: the backup can be from before its confirm.
            while True:
                backend.consume(1)


def test_a_lost_broker_is_refilled_by_the_backend_and_from_the_events_table(
    lab: Lab, backend: Backend
) -> None:
    with lab.worker():
        backend.place("consumed")
        backend.consume(1)
        backend.place("not-consumed")
        lab.wait_until_queued("order-events", 1)
    backend.place("not-sent")
    backend.placed_long_ago("late")
    with Connection(lab.broker_url) as connection:
        for queue in topology.QUEUES:
            connection.default_channel.queue_delete(queue.name)
    lab.client.close()
    lab.client = type(lab.client)(lab.broker_url)

    lab.client.connect()
    with lab.worker():
        backend.submit_again(*backend.without_end)
        replay(backend.last + 1, backend.last + 1, lab)
        while backend.without_end:
            backend.consume(1)
    ends = {event["order_id"]: event["type"] for event in backend.applied}
    assert ends == dict.fromkeys(backend.placed, "order.accepted") | {"late": "order.expired"}
    assert [event["position"] for event in backend.applied] == [1, 2, 3, 4]
    assert lab.merchants.doubled() == []


def replay(first: int, last: int, lab: Lab) -> None:
    [line] = re.findall(r"pos-gateway (events replay .*)", PAGE)
    words = line.replace("4712", str(first)).replace("4890", str(last)).split()
    environment = {
        "POS_GATEWAY_BROKER_URL": lab.broker_url,
        "POS_GATEWAY_DATABASE_URL": lab.database_url,
    }
    preloaded.run(words, b"", environment, PATIENCE).check_returncode()
