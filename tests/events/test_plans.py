"""PostgreSQL reads as many rows as a batch has, however many there are beside them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from pos_gateway.database.engine import open_database
from pos_gateway.events import floor
from pos_gateway.events import outbox as subject
from pos_gateway.events.outbox import BACK, Outbox, Row, Term

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


@pytest.mark.parametrize("is_busy", [False, True])
def test_beside_a_snapshot_no_search_reads_again_what_has_a_position(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """A dump, or a forgotten psql: the entries of the past stay in the index meanwhile."""
    monkeypatch.setattr(floor, "EVERY", 0.0)
    with engine.connect() as snapshot:
        snapshot.execute(text("set transaction isolation level repeatable read"))
        snapshot.execute(text("select count(*) from merchants"))
        outbox = Outbox(engine)
        term: Term | None = outbox.look()[0]
        for _ in range(BACKLOG // 200 + 4):
            assert term is not None
            outbox._is_busy = is_busy
            term = outbox.assign(term, 200)
        assert term is not None
        assert term.assigned == PUBLISHED + BACKLOG
        front = {"floor": outbox._floor._id, "most": MOST}
        assert _pages(outbox, subject._FRONT, {**front, "floor": 0}) > 10  # as there would be
        assert _pages(outbox, subject._FRONT, front) <= 10
        back = subject._BACK.replace("{is_alive}", "false")
        assert _pages(outbox, back, {"below": BACK, "behind": MOST, "most": MOST}) <= 10
        outbox.close()


def _pages(outbox: Outbox, statement: str, values: dict[str, int]) -> int:
    """Pages that PostgreSQL reads for a statement."""

    def explain(cursor: Any) -> Any:
        asked = "explain (analyze, buffers, format json) " + statement.format(**values)
        return cursor.execute(asked).fetchone()[0][0]

    plan = outbox._writer.read(explain)["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_an_event_of_a_transaction_that_was_under_way_is_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is lower than those of thousands that have a position by then."""
    monkeypatch.setattr(floor, "EVERY", 0.0)
    outbox = Outbox(engine)
    first = "insert into events (event_id, type, merchant_id, order_id, occurred_at, attempts)"
    with engine.connect() as late:
        late.execute(text(first + " values ('late', 'accepted', 'm', 'late', 1, 1)"))
        with engine.begin() as other:
            other.execute(text(WRITE.replace("'more'", "'then'").replace("'order'", "'next'")))
        term: Term | None = outbox.look()[0]
        for _ in range(2 * BACKLOG // 1000 + 4):
            assert term is not None
            term = outbox.assign(term, 1000)
        late.commit()
    assert term is not None
    after = outbox.assign(term, 10)
    outbox.close()
    assert after is not None
    assert after.assigned == term.assigned + 1 == PUBLISHED + 2 * BACKLOG + 1
