"""What PostgreSQL looks at: as many rows as a batch has, however many there are beside them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from pos_gateway.events.outbox import BACK, Outbox, Row
from pos_gateway.ledger.database import open_database
from tests.events.lab import Events

BACKLOG, MOST = 4000, 50

WRITE = f"""
with events as (
    insert into events (event_id, type, merchant_id, order_id, occurred_at, attempts)
    select 'more' || n, 'accepted', 'm' || n % 9, 'order' || n, 1, 1 from generate_series(1, {BACKLOG}) n)
insert into orders (merchant_id, order_id, action, state, ticket, epoch, attempts, deaths, pending,
                    reopened, created_at, updated_at, payload)
select 'm' || n % 9, 'order' || n, 'submit', 'accepted', 1, 1, 1, 0, false, 0, 1, 1, '{{}}'
from generate_series(1, {BACKLOG}) n"""

PUBLISHED = "update pipeline set published = (select max(position) from events)"


class Explaining:
    """A cursor that asks for the plan of a statement while it is executed."""

    rowcount = 0

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        #: The most rows that any one look at a table came by.
        self.looked_at = 0

    def execute(self, statement: str, values: Any) -> "Explaining":
        asked = "explain (analyze, format json) " + statement
        [[[plan]]] = self._cursor.execute(asked, values, prepare=False).fetchall()
        self._look(plan["Plan"])
        return self

    def fetchall(self) -> list[Any]:
        return []

    def _look(self, node: dict[str, Any]) -> None:
        if "Index Name" in node or node.get("Relation Name") in ("events", "orders"):
            seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            self.looked_at = max(self.looked_at, seen * node["Actual Loops"])
        for each in node.get("Plans", ()):
            self._look(each)


@pytest.fixture
def engine(postgresql_url: str) -> Iterator[Engine]:
    """Its tables are counted as they were yesterday: every event had a position."""
    engine = open_database(postgresql_url)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    outbox = Outbox(engine)
    Events(engine).write(3)
    outbox.assign(replace(_led(outbox), published=3), MOST)
    outbox.close()
    with autocommit.connect() as connection:
        connection.execute(text("vacuum analyze events, orders"))
        connection.execute(text(WRITE))
    yield engine
    with autocommit.connect() as connection:
        connection.execute(text("truncate events, orders"))
    engine.dispose()


def _led(outbox: Outbox) -> Any:
    term = outbox.take("me-1", outbox.look()[0].epoch)
    assert term is not None
    return term


def _chunk(outbox: Outbox) -> list[Row]:
    return outbox.chunk("h-1", ["h-1"], most=MOST, behind=MOST)


STATEMENTS: dict[str, Callable[[Outbox, Any], Any]] = {
    "assign": lambda outbox, cursor: outbox._say.assign(cursor, outbox.look()[0], MOST),
    "read": lambda outbox, cursor: outbox._say.read(cursor, 3, MOST),
    "chunk": lambda outbox, cursor: outbox._say.chunk(
        cursor,
        {"helper": "h-1", "alive": ["h-1"], "below": BACK, "most": MOST, "behind": MOST},
    ),
    "write": lambda outbox, cursor: outbox._say.write(
        cursor, [{"id": each.id, "body": "{}"} for each in _chunk(outbox)]
    ),
    "prune": lambda outbox, cursor: outbox._say.prune(cursor, {"before": 9.0, "most": MOST}),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_looks_at_no_more_rows_than_it_is_about(engine: Engine, name: str) -> None:
    outbox, other = Outbox(engine), Outbox(engine)
    if name in ("read", "prune"):
        with engine.begin() as connection:
            connection.execute(text("update events set position = id where position is null"))
            connection.execute(text(PUBLISHED))
    looked_at: list[int] = []

    def ask(cursor: Any) -> None:
        explaining = Explaining(cursor)
        STATEMENTS[name](other, explaining)
        looked_at.append(explaining.looked_at)

    outbox._do(ask)
    assert MOST <= looked_at[0] <= 4 * MOST
    outbox.close()
    other.close()


def test_helpers_do_not_look_through_what_is_done(engine: Engine) -> None:
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
    outbox.close()


def test_a_plan_is_made_for_the_tables_as_they_are(engine: Engine) -> None:
    """And not once and for all, while they were empty."""
    outbox = Outbox(engine)
    asked = "select current_setting('plan_cache_mode')"
    assert outbox._do(lambda cursor: json.dumps(cursor.execute(asked).fetchone())) == (
        '["force_custom_plan"]'
    )
    outbox.close()
