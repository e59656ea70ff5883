"""docs/scale.md: its tables are the program's, its shards as stated, partitioning works."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from loadtests import shards
from loadtests.shards import SHARDS, balances, shard_of, table, table_of_workers, workers
from pos_gateway.database.engine import open_database, upgrade
from tests.compatibility import scenario
from tests.compatibility.release import releases
from tests.compatibility.test_database import rows
from tests.deploy.kustomize import ROOT

PAGE = (ROOT / "docs" / "scale.md").read_text()


def test_the_table_of_workers_is_the_programs() -> None:
    assert table_of_workers([5_000, *(5_000 / count for count in SHARDS)]) in PAGE


@pytest.mark.parametrize("count", SHARDS)
def test_the_table_of_shards_is_the_programs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARDS", (count,))
    monkeypatch.setattr(shards, "EXPONENTS", (0.8, 1.0))
    for line in table(balances(100_000), 5_000).splitlines():
        assert line in PAGE


def test_the_scarcer_of_cores_and_slots_sets_the_number_of_workers() -> None:
    assert workers(300, 0.2) == 1  # 0.6 of a core, 60 of 150 slots
    assert workers(301, 0.2) == 2
    assert workers(150, 1.0) == 1
    assert workers(151, 1.0) == 2


def test_the_pages_snippet_and_examples_are_the_programs() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = [f"shard-{number}" for number in range(4)]
    # The addresses are the reader's; a client's address stands for them here.
    code = snippet.replace("from pos_gateway.client import OrderClient\n", "")
    scope: dict[str, Any] = {"SHARDS": {name: name for name in names}, "OrderClient": str}
    exec(code, scope)
    said = re.findall(r"`(m-\d)` (?:belongs )?to `(shard-\d)`", PAGE)
    assert len(said) == 3
    for merchant, shard in said:
        assert shard_of(merchant, names) == shard == scope["client_of"](merchant)


def test_an_added_shard_gets_merchants_and_moves_no_other() -> None:
    names = [f"shard-{number}" for number in range(9)]
    for number in range(2_000):
        before, after = shard_of(f"m-{number}", names[:-1]), shard_of(f"m-{number}", names)
        assert after in (before, names[-1])


@pytest.fixture
def engines(postgresql: Any, postgres_url: str) -> Iterator[tuple[Engine, Engine]]:
    other = postgresql.database()
    whole, partitioned = open_database(postgres_url), open_database(other)
    yield whole, partitioned
    whole.dispose()
    partitioned.dispose()
    postgresql.drop_database(other)


def test_every_statement_works_on_a_partitioned_table_of_orders(
    engines: tuple[Engine, Engine],
) -> None:
    whole, partitioned = engines
    for engine in engines:
        upgrade(engine)
    [script] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    with partitioned.begin() as connection:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    # The release's recorded statements, then this one's, without clocks.
    assert releases()[-1].play(partitioned) == releases()[-1].play(whole)
    assert rows(partitioned, like=whole) == rows(whole, like=whole)
    with partitioned.begin() as connection:
        for each in ("orders", "events", "audit", "merchants", "workers", "pipeline"):
            connection.exec_driver_sql(f"delete from {each}")
    scenario.play_on_database(partitioned)
    upgrade(partitioned)
