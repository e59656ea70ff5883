"""The micro-benchmarks, with what they need and what is wanted of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtests.bench.micro.runner import Micro
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.postgresql import PostgreSQL


@contextmanager
def _merchant() -> Iterator[Sequence[object]]:
    """The URLs of two merchants on loopback: one takes its time, one answers at once."""
    with SimulatedMerchants() as merchants:
        merchants.profile("at-once", {"kind": "accept"})
        yield merchants.base_url("fast-0"), merchants.base_url("at-once")


@contextmanager
def _databases() -> Iterator[Sequence[object]]:
    """The URLs of databases whose commits are durable, PostgreSQL's and SQLite's."""
    with TemporaryDirectory() as folder, PostgreSQL() as postgresql:
        yield postgresql.database(), f"sqlite:///{Path(folder)}/ledger.db"


MICROS = (
    Micro(
        "exchange",
        "transport and adapter",
        "CPU ms an exchange",
        {False: (3000, 7), True: (1000, 3)},
        at_most={"gateway": 0.12, "transport alone, in a row": 0.040},
        over="requests",
        form=".3f",
        given=_merchant,
    ),
    Micro(
        "ledger",
        "what it adds to an order, at 500 a second",
        "ms an order",
        {False: (5000, 7), True: (2500, 3)},
        at_most={"PostgreSQL: CPU": 0.15, "PostgreSQL: wait, p50": 5.0},
        form=".2f",
        given=_databases,
    ),
    Micro(
        "logging",
        "an attempt's line",
        "CPU us an attempt",
        {False: (10_000, 9), True: (2000, 3)},
        at_most={"gateway": 20.0, "gateway, a line that is not written": 20.0},
    ),
    Micro(
        "telemetry",
        "what it costs to be watched",
        "ms",
        {False: (40_000, 7), True: (10_000, 3)},
        at_most={
            "an order's metrics, CPU": 0.05,
            "and its attempt's line, CPU of the green thread": 0.05,
        },
        form=".4f",
    ),
    Micro(
        "tracing",
        "what its spans cost an order",
        "CPU us an order",
        {False: (10_000, 7), True: (2000, 3)},
        above="off",
    ),
)
