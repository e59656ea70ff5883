"""A database that is restarted, that loses connections and replies, and that others lock."""

import sqlite3
from pathlib import Path

from sqlalchemy import create_engine

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.proxy import Proxy
from tests.faults.lab import FaultLab


def test_no_order_is_sent_without_its_row_whatever_happens_to_the_database(
    lab: FaultLab, postgresql: PostgreSQL
) -> None:
    """Connections ended, replies to commits lost, a crash: all while orders are in flight."""
    poses = lab.open_poses(3)

    def crashed() -> None:
        postgresql.kill()
        postgresql.start()

    with Proxy(lab.database_url) as proxy, lab.worker(database_url=proxy.url):
        for fault in (postgresql.drop_connections, proxy.cut, crashed):
            made = lab.merchants.summary()["creates"]
            lab.place_some(poses, each=8)
            lab.merchants.wait_until(creates=made + 10)
            proxy.timeout(stream="downstream")  # commits get no reply from now on
            lab.place_some(poses, each=1)
            fault()
            proxy.cut()
            proxy.heal()
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


FULL = """
create function no_room() returns trigger language plpgsql as
    $$ begin raise exception 'could not extend file' using errcode = 'disk_full'; end $$;
create trigger no_room before insert or update on orders for each statement execute function no_room();
"""


def test_a_full_disk_delays_orders_and_sends_none(
    lab: FaultLab,
) -> None:
    poses = lab.open_poses(2)

    def say(statements: str) -> None:
        with create_engine(lab.database_url).begin() as connection:
            connection.exec_driver_sql(statements)

    with lab.worker() as worker:
        lab.place_some(poses, each=8)
        lab.merchants.wait_until(creates=10)
        say(FULL)  # some orders are in flight: their outcomes are kept until there is space
        lab.merchants.wait_until(idle=True)
        before = len(lab.backend.placed)
        lab.place_some(poses, each=2)
        lab.wait_until_queued("orders", 0)
        worker.wait_for_log("could not extend file")
        sent = {(merchant, order) for merchant, order, _ in lab.merchants.arrivals()}
        assert sent.isdisjoint(lab.backend.placed[before:])
        say("drop function no_room() cascade")
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    assert lab.merchants.summary()["requests"] == len(lab.backend.placed)


def test_a_locked_database_file_delays_orders_and_loses_none(
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
