"""A gateway to break: broker, database, POSes of every guarantee, workers, and their backend."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, func, select

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.database.schema import orders
from pos_gateway.database.schema import workers as leases
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.faults import books, invariants
from testkit.faults.adapters import ADAPTERS, install
from testkit.faults.backend import Backend, Name
from testkit.faults.invariants import Evidence, Verdict
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ

ROOT = Path(__file__).resolve().parents[2]

#: Seconds for one exchange with a POS here.
REQUEST_TIMEOUT = 2.0
#: Merchants of each guarantee, healthy ones and ones in trouble. Those that are blind are healthy:
#: what is in doubt there is to come of the faults alone.
HEALTHY, FLAKY = 8, 2
#: How long a healthy POS takes: long enough that a worker is killed with some orders in flight, and
#: never so long that one times out: what is in doubt is to come of the faults alone.
LATENCY = {"lognormal": [0.3, 0.25]}
#: What the ones in trouble do: everything after which the order is there, and the reply is lost.
_TROUBLE = [
    {"kind": "accept", "weight": 20},
    {"kind": "pending", "decided_after": 1.0, "weight": 1},
    {"kind": "fail", "status": 503, "makes_order": True, "weight": 1},
    {"kind": "reset", "makes_order": True, "weight": 1},
]


@dataclass(slots=True)
class Worker:
    """A worker's process."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]


@dataclass(slots=True)
class Site:
    """Where everything is. One thread starts workers."""

    rabbitmq: RabbitMQ
    merchants: SimulatedMerchants
    database: Engine
    #: Between the workers and the broker.
    proxy: Proxy
    backend: Backend
    #: The merchants' ids.
    ids: list[str]
    folder: Path
    _environment: Mapping[str, str]
    _workers: list[Worker] = field(default_factory=list)

    def start_worker(
        self, *flags: str, app: str = "pos_gateway.gcelery", **settings: object
    ) -> Worker:
        """Start one more worker, ``celery -A APP worker FLAGS``; returns at once."""
        log = self.folder / f"worker-{len(self._workers)}.log"
        extra = {f"POS_GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}
        process = self._started(app, flags, {**self._environment, **extra}, log)
        self._workers.append(Worker(process, log))
        return self._workers[-1]

    def _started(
        self, app: str, flags: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        with log.open("wb") as output:
            return subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *(sys.executable, "-m", "celery", "-A", app, "worker", *flags),
                ],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_at_work(self, worker: Worker) -> bool:
        """Whether it takes orders: it has a lease."""
        query = select(func.count()).where(leases.c.id.like(f"%-{worker.pid}-%"))
        with self.database.connect() as connection:
            return bool(connection.scalar(query))

    def left_in_sending(self, worker: Worker) -> list[Name]:
        """The orders that a worker that was killed has left in SENDING at POSes that are blind.

        To be asked when the database has done what was on its way, and before the worker's lease
        is over.
        """
        return books.sending(self.database, worker.pid, Guarantee.BLIND.value)

    def listed_in_doubt(self) -> set[Name]:
        """The orders that ``pos-gateway orders list`` shows an operator as in doubt."""
        listed = self.operate(
            "orders", "list", "--state", "in_doubt", "--limit", "9999999", "--json"
        )
        found = map(json.loads, listed.splitlines())
        return {(each["merchant_id"], each["order_id"]) for each in found}

    def operate(self, *arguments: str) -> str:
        """Run a ``pos-gateway`` command as an operator does; what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "pos_gateway", *arguments],
            cwd=self.folder,
            env=dict(self._environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def poison(self) -> set[Name]:
        """The orders that were dead-lettered after too many of their workers had died."""
        row = orders.c
        query = select(row.merchant_id, row.order_id).where(row.reason_code == "poison")
        with self.database.connect() as connection:
            return {(merchant, order) for merchant, order in connection.execute(query)}

    def stop(self) -> None:
        """Have every worker stop in good order; those that do not are killed."""
        running = [worker for worker in self._workers if not worker.has_ended]
        for worker in running:
            worker.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        for worker in running:
            try:
                worker.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def kill(self) -> None:
        """End every worker at once."""
        for worker in self._workers:
            if not worker.has_ended:
                worker.process.kill()
                worker.process.wait()

    def verdict(self, *, all_healthy: bool) -> Verdict:
        """What the invariants say, when no worker runs any more.

        Args:
            all_healthy: every order of a merchant that was not in trouble must be accepted.
        """
        evidence = Evidence(
            self.backend.placed,
            self.backend.told,
            books.read(self.database),
            invariants.records(self.merchants.orders()),
            self.listed_in_doubt(),
            self.backend.dead_letters(),
            self.backend.positions,
            self.backend.redelivered,
        )
        return invariants.judge(evidence, healthy=lambda m: all_healthy and "flaky" not in m)


#: Has the merchants known to the gateway and the simulation, and returns their ids.
Open = Callable[[SimulatedMerchants, MerchantStore], list[str]]


@contextmanager
def site(
    rabbitmq: RabbitMQ, postgresql: PostgreSQL, seed: int, open_merchants: Open | None = None
) -> Iterator[Site]:
    """A site with a virtual host, a database and POSes of its own, gone at the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pos-gateway-faults-")))
        merchants = stack.enter_context(SimulatedMerchants(seed=seed))
        database_url = postgresql.database()
        stack.callback(postgresql.drop_database, database_url)
        database = open_database(database_url)
        stack.callback(database.dispose)
        upgrade(database)
        ids = (open_merchants or _open)(merchants, MerchantStore(database))
        broker_url = rabbitmq.add_vhost()
        stack.callback(rabbitmq.give_back, broker_url)
        proxy = stack.enter_context(Proxy(broker_url))
        backend = stack.enter_context(Backend(broker_url))
        environment = {
            **os.environ,
            "PYTHONPATH": install(folder),
            "POS_GATEWAY_BROKER_URL": proxy.url,
            "POS_GATEWAY_DATABASE_URL": database_url,
            "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
            "POS_GATEWAY_METRICS_PORT": "0",
            "POS_GATEWAY_PARK_DELAY_MAX": "6",
            "POS_GATEWAY_REQUEST_TIMEOUT": str(REQUEST_TIMEOUT),
        }
        here = Site(rabbitmq, merchants, database, proxy, backend, ids, folder, environment)
        stack.callback(here.kill)
        yield here


def _open(merchants: SimulatedMerchants, store: MerchantStore) -> list[str]:
    ids: dict[str, str] = {}
    for guarantee, adapter in ADAPTERS.items():
        keyed = guarantee is Guarantee.KEYED
        ids |= {f"{guarantee}-{number}": adapter for number in range(HEALTHY)}
        healthy = {"create": {"latency": LATENCY}, "keyed": keyed}
        merchants.profile(f"{guarantee}-*", healthy)
        if guarantee is not Guarantee.BLIND:
            ids |= {f"{guarantee}-flaky-{number}": adapter for number in range(FLAKY)}
            trouble = {"create": _TROUBLE, "lookups": {"kind": "accept"}, "keyed": keyed}
            merchants.profile(f"{guarantee}-flaky-*", trouble)
    store.put(
        Merchant.parse({"id": each, "base_url": merchants.base_url(each), "adapter": adapter})
        for each, adapter in ids.items()
    )
    return list(ids)
