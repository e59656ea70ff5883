"""PostgreSQL reads as many rows as a batch has, however many there are beside them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from pos_gateway.database.engine import open_database
from pos_gateway.events.outbox import BACK, Outbox, Row

PUBLISHED, BACKLOG, MOST = 20_000, 4000, 50

YESTERDAY = f"""
insert into events (event_id, type, merchant_id, order_id, occurred_at, attempts, position)
select 'past' || n, 'accepted', 'm' || n % 9, 'past' || n, 1, 1, n from generate_series(1, {PUBLISHED}) n"""

WRITE = f"""
with events as (
    insert into events (event_id, type, merchant_id, order_id, occurred_at, attempts)
    select 'more' || n, 'accepted', 'm' || n % 9, 'order' || n, 1, 1 from generate_series(1, {BACKLOG}) n)
insert into orders (merchant_id, order_id, action, state, ticket, epoch, attempts, deaths, pending,
                    reopened, created_at, updated_at, payload)
select 'm' || n % 9, 'order' || n, 'submit', 'accepted', 1, 1, 1, 0, false, 0, 1, 1, '{{}}'
from generate_series(1, {BACKLOG}) n"""

ALL_PUBLISHED = """
update pipeline set (assigned, published) = (select max(position), max(position) from events)"""


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    """Its tables have yesterday's statistics: every event had a position."""
    engine = open_database(postgresql_url)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    outbox = Outbox(engine)
    outbox.take("me-1", outbox.look()[0].epoch)
    outbox.close()
    with autocommit.connect() as connection:
        connection.execute(text(YESTERDAY))
        connection.execute(text(ALL_PUBLISHED))
        connection.execute(text("vacuum analyze events, orders"))
        connection.execute(text(WRITE))
    yield engine
    with autocommit.connect() as connection:
        connection.execute(text("truncate events, orders"))
    engine.dispose()


def _chunk(outbox: Outbox) -> list[Row]:
    return outbox.chunk("h-1", ["h-1"], most=MOST, behind=MOST)


def looked_at(engine: Engine, do: Callable[[Outbox], object]) -> int:
    """The number of rows that PostgreSQL read in the table where it read the most."""

    def counted() -> list[int]:
        engine.dispose()
        with engine.connect() as connection:
            # A connection that ends reports its statistics first; wait for that.
            connection.execute(
                text(
                    "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid()"
                )
            )
            seen = text(
                "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables "
                "where relname in ('events', 'orders') order by relname"
            )
            return list(connection.execute(seen).scalars())

    outbox = Outbox(engine)
    before = counted()
    do(outbox)
    outbox.close()
    return max(after - known for after, known in zip(counted(), before, strict=True))


def _assign_and_read(outbox: Outbox) -> None:
    outbox._is_busy = True
    outbox.assign(outbox.look()[0], MOST)


OPERATIONS: dict[str, Callable[[Outbox], object]] = {
    "assign": lambda outbox: outbox.assign(outbox.look()[0], MOST),
    "assign and read": _assign_and_read,
    "read": lambda outbox: outbox.read(PUBLISHED, MOST),
    "chunk": _chunk,
    "write": lambda outbox: outbox.write((row.id, "{}") for row in _chunk(outbox)),
    "prune": lambda outbox: outbox.prune(9.0, MOST),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_reads_no_more_rows_than_it_needs(engine: Engine, name: str) -> None:
    if name in ("read", "prune"):
        with engine.begin() as connection:
            connection.execute(text("update events set position = id where position is null"))
            connection.execute(text(ALL_PUBLISHED))
    assert MOST <= looked_at(engine, OPERATIONS[name]) <= 8 * MOST


def test_helpers_do_not_read_hydrated_rows_again(engine: Engine) -> None:
    """Each begins where its last chunk did."""
    from pos_gateway.events.helping import Helping
    from pos_gateway.ledger.lease import Lease

    lease, below = Lease(), []

    class Watched(Outbox):
        def chunk(self, *arguments: Any, **options: Any) -> list[Row]:
            below.append(options["below"])
            rows = super().chunk(*arguments, **options)
            assert all(row.id < options["below"] for row in rows)
            return rows

    outbox = Watched(engine)
    helping = Helping(outbox, lambda: lease, seal=lambda row: "{}", chunk=1500, behind=MOST)
    assert [helping.step() for _ in range(4)] == [1500, 1500, 1000, 0]
    assert below == [*sorted(set(below), reverse=True), BACK]  # and from the back again
    below.clear()
    assert helping.step() == 0
    assert below == [BACK]  # it does not read rows twice
    outbox.close()


@pytest.mark.parametrize("name", ["assign", "chunk"])
def test_statements_are_planned_for_the_current_tables(engine: Engine, name: str) -> None:
    """And not once for all executions, while the tables were empty."""
    with engine.begin() as connection:
        connection.execute(text("truncate events, orders"))

    def do(outbox: Outbox) -> None:
        for _ in range(20):  # a generic plan is made by then, if ever
            OPERATIONS[name](outbox)
        with engine.begin() as connection:
            connection.execute(text(WRITE))
        OPERATIONS[name](outbox)

    assert MOST <= looked_at(engine, do) <= 8 * MOST
