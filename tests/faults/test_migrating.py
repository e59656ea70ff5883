"""docs/migrating.md, played: merchants move from a plain Celery task to the gateway, and one back."""

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery

from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from tests.faults.lab import FaultLab
from tests.orders import an_order
from tests.worker.lab import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SHOPS = ("shop-0", "shop-1", "shop-2")
#: A POS without idempotency keys makes an order of each request.
UNKEYED = {"create": {"kind": "accept", "latency": 0.1}, "keyed": False}
Submit = Callable[[dict[str, Any]], object]


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


moving = example("moving")


@contextmanager
def old_worker(
    broker_url: str, merchants: SimulatedMerchants, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """The worker that there was before."""
    flags = ("--pool", "threads", "--concurrency", "4", "-Q", "pos")
    quiet = ("--without-mingle", "--without-gossip", "--loglevel", "warning")
    with (folder / "old-worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "plain_celery", "worker", *flags, *quiet],
            cwd=EXAMPLES,
            env={
                **os.environ,
                "BROKER_URL": broker_url,
                "POS_URL": merchants.base_url("MERCHANT").replace(
                    "MERCHANT", "{merchant_id}/orders"
                ),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


class Shaky:
    """Submits, and fails for each third order once: before it has submitted it, or after."""

    def __init__(self, submit: Submit, *, after: bool) -> None:
        self._submit, self._after = submit, after
        self.attempts: Counter[str] = Counter()

    def __call__(self, order: dict[str, Any]) -> None:
        self.attempts[order["order_id"]] += 1
        fails = self.attempts[order["order_id"]] == 1 and len(self.attempts) % 3 == 0
        if not fails or self._after:
            self._submit(order)
        if fails:
            raise BrokerUnavailable("the confirm did not come")


def test_no_order_is_lost_or_created_twice_while_merchants_move_and_one_moves_back(
    lab: FaultLab, tmp_path: Path
) -> None:
    """A submission that failed is repeated after the next move, and goes the same way."""
    lab.open_merchants(*SHOPS)
    lab.open_merchants("shadow-shop-0")
    lab.merchants.profile("shop-*", UNKEYED)
    lab.merchants.profile("shadow-*", UNKEYED)
    producer = Celery("producer", broker=lab.broker_url)

    def send(order: dict[str, Any]) -> None:
        producer.send_task("plain_celery.send_order", (order,), queue="pos")

    old = Shaky(send, after=False)
    gateway = Shaky(lab.backend.place, after=True)
    placed: list[tuple[str, str]] = []
    with (
        closing(sqlite3.connect(tmp_path / "backend.db")) as database,
        closing(producer),
        old_worker(lab.broker_url, lab.merchants, tmp_path),
        lab.worker(),
    ):
        split = moving.Moving(database, old, gateway)
        failed: list[dict[str, Any]] = []

        def orders(stage: str) -> None:
            again, failed[:] = list(failed), []
            for order in again:
                split.submit(order)
            for number in range(4):
                for shop in SHOPS:
                    order = an_order(f"{stage}-{shop}-{number}", shop)
                    placed.append((shop, order["order_id"]))
                    try:
                        split.submit(order)
                    except BrokerUnavailable:
                        failed.append(order)
                    if stage == "shadow" and shop == "shop-0":
                        lab.backend.place(moving.shadow(order))

        orders("shadow")
        split.move("shop-0")
        orders("pilot")
        split.move("shop-1")
        orders("more")
        split.move_back("shop-1")
        orders("back")
        split.move(*SHOPS)
        orders("all")
        for order in failed:
            split.submit(order)
        lab.settle()
        wait_until(lambda: len(created(lab)) >= len(placed))
        wait_until(lambda: lab.queued("pos") == 0)
        by_gateway = {order_id for _, order_id in lab.backend.placed} & set(gateway.attempts)
        ways = [split.way(*name) for name in placed]
    assert created(lab) == dict.fromkeys(placed, 1)
    assert len(lab.merchants.orders("shadow-shop-0")) == 4
    assert lab.merchants.doubled() == []
    # Both ways were taken, and failed; what was said of an order came from the way it took.
    assert {way: ways.count(way) for way in ways} == {"celery": 12 + 8 + 4 + 8, "gateway": 28}
    assert set(old.attempts).isdisjoint(gateway.attempts)
    assert by_gateway == set(gateway.attempts)
    assert 2 in old.attempts.values()
    assert 2 in gateway.attempts.values()


def created(lab: FaultLab) -> dict[tuple[str, str], int]:
    """How often each order was made at the live merchants' POSes."""
    return {
        (each["merchant"], each["order_id"]): each["creates"]
        for shop in SHOPS
        for each in lab.merchants.orders(shop)
    }


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_way_that_is_decided_at_each_attempt_submits_an_order_twice() -> None:
    """The fault that the stored way is against, planted."""

    class Forgetful(moving.Moving):  # type: ignore[misc, name-defined]
        def way(self, merchant_id: str, order_id: str) -> Any:
            with self._database:
                self._database.execute("delete from order_ways")
            return super().way(merchant_id, order_id)

    for kind, expected in ((moving.Moving, 1), (Forgetful, 2)):
        submitted: dict[str, list[Any]] = {"celery": [], "gateway": []}
        with closing(sqlite3.connect(":memory:")) as database:
            split = kind(
                database, submitted["celery"].append, Shaky(submitted["gateway"].append, after=True)
            )
            split.move("shop-0", "shop-1", "shop-2")
            orders = [an_order(f"o-{shop}", shop) for shop in SHOPS]
            for order in orders:
                with suppress(BrokerUnavailable):
                    split.submit(order)
            split.move_back(*SHOPS)
            split.submit(orders[-1])
        ways = [way for way, taken in submitted.items() if orders[-1] in taken]
        assert len(ways) == expected
