"""A primary that dies, or is partitioned, while workers deliver: its standby is promoted.

With a synchronous standby no confirmed commit can be missing afterwards. Commits that an
asynchronous one lacks, the surviving workers rewrite.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL, Standby
from testkit.servers.proxy import Proxy
from tests.faults.lab import FaultLab

#: Seconds between two orders of the load.
APART = 0.03


class Pair:
    """A primary, its synchronous standby, and the proxies between them and their clients."""

    def __init__(self, primary: PostgreSQL, standby: Standby, replication: Proxy) -> None:
        self.primary, self.standby, self.replication = primary, standby, replication

    def url(self, primary: Proxy | PostgreSQL) -> str:
        """A worker's URL: it connects to the one of the two that takes writes."""
        return url_of(primary.port, self.standby.port)

    def promote(self) -> None:
        self.standby.promote()


def url_of(*ports: int) -> str:
    hosts = "&".join(f"host=127.0.0.1:{port}" for port in ports)
    return f"postgresql+psycopg://postgres@/postgres?{hosts}&connect_timeout={PATIENCE:.0f}"


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        PostgreSQL() as primary,
        Proxy(primary.url) as replication,
        Standby(replication.url) as standby,
    ):
        primary.commit_with("*")
        yield Pair(primary, standby, replication)


@pytest.fixture
def failover_lab(
    broker_url: str, pair: Pair, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[FaultLab]:
    simulated_merchants.reset()
    lab = FaultLab(broker_url, pair.url(pair.primary), simulated_merchants, tmp_path)
    yield lab
    lab.close()
    simulated_merchants.reset()


@contextmanager
def load(lab: FaultLab, poses: list[str]) -> Iterator[None]:
    """Orders at a steady rate while the block lasts."""
    over = threading.Event()

    def place() -> None:
        for number in count():
            lab.place(poses[number % len(poses)], f"load-{number}")
            if over.wait(APART):
                return

    thread = threading.Thread(target=place, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def delivered(lab: FaultLab, more: int) -> None:
    """Wait until POSes have created this many more orders."""
    lab.merchants.wait_until(creates=lab.merchants.summary()["creates"] + more)


def test_a_primary_killed_under_load_leaves_every_order_on_its_standby(
    failover_lab: FaultLab, pair: Pair
) -> None:
    lab = failover_lab
    poses = lab.open_poses(3)
    with lab.worker(), lab.worker():
        lab.wait_for_workers(2)
        with load(lab, poses):
            delivered(lab, 40)
            pair.primary.kill()
            pair.promote()
            delivered(lab, 40)
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def test_a_primary_partitioned_from_its_standby_commits_nothing_for_its_workers(
    failover_lab: FaultLab, pair: Pair
) -> None:
    """One worker is at the promoted standby while another one still has the old primary."""
    lab = failover_lab
    poses = lab.open_poses(3)
    with (
        Proxy(pair.primary.url) as one_way,
        Proxy(pair.primary.url) as other_way,
        lab.worker(database_url=pair.url(one_way)),
        lab.worker(database_url=pair.url(other_way)),
    ):
        lab.wait_for_workers(2)
        with load(lab, poses):
            delivered(lab, 40)
            pair.replication.down()
            one_way.down()
            pair.promote()
            delivered(lab, 40)
            while not pair.primary.commits_waiting():
                time.sleep(0.01)
            other_way.down()  # fenced only now
            pair.primary.kill()
            delivered(lab, 40)
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def test_workers_rewrite_the_commits_that_a_lagging_standby_lacks(
    failover_lab: FaultLab, pair: Pair
) -> None:
    lab = failover_lab
    pair.primary.commit_with("")
    poses = lab.open_poses(3)
    with lab.worker() as one, lab.worker() as two:
        lab.wait_for_workers(2)
        with load(lab, poses):
            delivered(lab, 40)
            pair.replication.down()
            delivered(lab, 40)
            pair.primary.kill()
            pair.promote()
            delivered(lab, 40)
        lab.settle()
        for each in (one, two):
            each.wait_for_log("ledger.outcomes_restored")
        assert "events.positions_lost" in one.log + two.log
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
