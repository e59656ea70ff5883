"""A database that is restarted, that loses connections and answers, and that others lock."""

import sqlite3
from pathlib import Path

from loadtests.merchants.client import SimulatedMerchants
from loadtests.servers.postgresql import PostgreSQL
from loadtests.servers.proxy import Proxy
from tests.faults.lab import FaultLab


def test_whatever_becomes_of_the_database_nothing_is_sent_that_is_not_written(
    lab: FaultLab, postgresql: PostgreSQL
) -> None:
    """Connections ended, answers to commits lost, a crash: all in the midst of orders."""
    poses = lab.open_poses(3)

    def crashed() -> None:
        postgresql.kill()
        postgresql.start()

    with Proxy(lab.database_url) as proxy, lab.worker(database_url=proxy.url):
        for fault in (postgresql.drop_connections, proxy.cut, crashed):
            made = lab.merchants.summary()["creates"]
            lab.place_some(poses, each=8)
            lab.merchants.wait_until(creates=made + 10, timeout=60)
            proxy.timeout(stream="downstream")  # what is committed now is not answered
            lab.place_some(poses, each=1)
            fault()
            proxy.cut()
            proxy.heal()
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def test_a_database_file_that_another_process_locks_holds_orders_up_and_loses_none(
    broker_url: str, database_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> None:
    simulated_merchants.reset()
    lab = FaultLab(broker_url, database_url, simulated_merchants, tmp_path)
    poses = lab.open_poses()
    with lab.worker() as worker:
        lab.place_some(poses, each=5)
        lab.settle()
        other = sqlite3.connect(tmp_path / "pos_gateway.db", isolation_level=None)
        other.execute("begin immediate")
        lab.place_some(poses, each=5)
        worker.wait_for_log("ledger.unavailable")
        other.execute("rollback")
        other.close()
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    lab.close()
