"""PostgreSQL uses indexes, also if it planned while its tables were empty."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import metadata
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Claim, Key, State
from pos_gateway.ledger.submissions import Submissions, Submitting
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import an_entry, without_event

#: Executions after which a generic plan stays (psycopg prepares after 5, PostgreSQL plans 5 times).
OFTEN = 15
UNTIL = datetime(2026, 11, 20, tzinfo=UTC)
MANY = 3000

WRITE = f"""
insert into orders (merchant_id, order_id, action, state, ticket, epoch, attempts, deaths, pending,
                    reopened, created_at, updated_at)
select 'm', 'more' || n, 'submit', case when n > {MANY} then 'claimed' else 'new' end,
       1, 1, 1, 0, false, 0, 1, 1 from generate_series(1, {2 * MANY}) n"""


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    engine = open_database(postgresql_url)
    # A table that was analyzed while it was empty has another plan, until autovacuum analyzes it again, a
    # minute after its first fifty rows. So it does neither here, and these are as new as truncation makes them.
    with engine.begin() as connection:
        for table in ("orders", "events", "submissions"):
            connection.execute(text(f"alter table {table} set (autovacuum_enabled = off)"))
            connection.execute(text(f"truncate {table}"))
    empty(engine)
    yield engine
    empty(engine)
    engine.dispose()


def empty(engine: Engine) -> None:
    """Remove all rows, and report at once how many were read for it: the next test counts, too."""
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
        connection.execute(text("select pg_stat_force_next_flush()"))


def deliver(ledger: Ledger, name: str) -> None:
    """A claim, a redelivery, retries, and an outcome: writes, reads, takes over, and claims again."""
    key = Key("m", name)
    for _ in range(2):
        claim = ledger.claim(key, send=False)
        assert isinstance(claim, Claim)
        ledger.abandon(claim, sent=False)
    for action in (Action.SUBMIT, Action.CANCEL, Action.CANCEL, Action.SUBMIT):
        claim = ledger.claim(replace(key, action=action), send=False)
        assert isinstance(claim, Claim)
        assert ledger.finish(claim, without_event(at=1.0))
    claim = ledger.claim(key, send=False)
    assert isinstance(claim, Claim)
    assert ledger.sending(claim)
    assert ledger.finish(claim, an_entry(key=key))


def rows_looked_through(engine: Engine) -> int:
    """Rows of orders, events and submissions that were read, in all sessions."""
    query = """
        select pg_stat_force_next_flush(), sum(seq_tup_read + coalesce(of_indexes, 0))
        from pg_stat_user_tables join (
            select relid, sum(idx_tup_read) as of_indexes from pg_stat_user_indexes group by relid
        ) indexes using (relid)
        where relname in ('orders', 'events', 'submissions')"""
    with engine.connect() as connection:
        connection.execute(text("select pg_stat_clear_snapshot()"))
        return int(connection.execute(text(query)).one()[1])


def test_a_ledger_that_planned_on_empty_tables_does_not_scan_full_ones(
    engine: Engine,
) -> None:
    ledger = Ledger(engine)
    for n in range(OFTEN):
        deliver(ledger, f"o{n}")
    with engine.begin() as connection:
        connection.execute(text(WRITE))
    before = rows_looked_through(engine)
    for n in range(OFTEN):
        deliver(ledger, f"p{n}")
    ledger.close()  # a session reports its statistics when it ends
    engine.dispose()
    assert rows_looked_through(engine) - before < MANY


def test_orders_by_http_that_were_compared_with_empty_tables_are_not_compared_with_all(
    engine: Engine,
) -> None:
    """As a new gateway's are: its server connects before its first order."""
    known = Submissions(engine, Payloads(Vault(())))
    for n in range(OFTEN):
        known.write([Submitting("m", f"o{n}", "a" * 64, UNTIL)], 1.0)
    with engine.begin() as connection:
        connection.execute(text(WRITE))
    before = rows_looked_through(engine)
    for n in range(OFTEN):
        [found] = known.write([Submitting("m", f"more{n + 1}", "a" * 64, UNTIL)], 1.0)
        assert found.state is State.NEW
    known.close()
    engine.dispose()
    assert rows_looked_through(engine) - before < MANY
