"""A database that loses tables while workers run: none is ready until the tables are back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine

from pos_gateway.database.engine import upgrade
from testkit.servers.process import free_port
from tests.cli import preloaded
from tests.faults.lab import FaultLab
from tests.worker.test_watching import said, wait_until


def execute(lab: FaultLab, *statements: str) -> None:
    engine = create_engine(lab.database_url)
    with engine.begin() as connection:
        for each in statements:
            connection.exec_driver_sql(each)
    engine.dispose()


@contextmanager
def events_process(lab: FaultLab, port: int) -> Iterator[None]:
    """``pos-gateway events run``."""
    environment = {
        **os.environ,
        "POS_GATEWAY_BROKER_URL": lab.broker_url,
        "POS_GATEWAY_DATABASE_URL": lab.database_url,
        "POS_GATEWAY_METRICS_PORT": str(port),
    }
    with preloaded.start(["events", "run"], environment, Path(os.devnull)) as process:
        try:
            yield
        finally:
            process.terminate()


def test_no_process_is_ready_without_a_table_and_orders_are_delivered_when_it_is_back(
    lab: FaultLab,
) -> None:
    lab.open_merchants("m")
    port, other = free_port(), free_port()

    def both_say(what: str) -> None:
        for each in (port, other):
            wait_until(lambda: what in str(said(each)) if what else not said(each))  # noqa: B023

    with lab.worker(metrics_port=port), events_process(lab, other):
        both_say("")
        for table in ("merchants", "orders", "events"):
            execute(lab, f"alter table {table} rename to lost")
            both_say(f'relation "{table}" does not exist')
            lab.place("m", table)
            execute(lab, f"alter table lost rename to {table}")
            both_say("")
        lab.settle()
        assert lab.verdict().in_doubt == []
        execute(lab, "drop schema public cascade", "create schema public")
        both_say("run: pos-gateway db upgrade")
        engine = create_engine(lab.database_url)
        upgrade(engine)
        engine.dispose()
        both_say("")
