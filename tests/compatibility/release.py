"""A recorded release: its schema, its statements, its messages and queues."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

RELEASES = Path(__file__).parent / "releases"
#: Fields of a recorded message that differ from one run to the next.
_CHANCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Statement:
    """A recorded statement: SQL, with its parameters as literals."""

    sql: str
    parameters: str = ""

    def say(self, connection: Connection) -> list[tuple[Any, ...]]:
        """Execute it; returns its rows."""
        if not self.parameters:
            return _rows(connection, self.sql)
        _rows(connection, f"prepare recorded as {self.sql}")
        found = _rows(connection, f"execute recorded({self.parameters})")
        _rows(connection, "deallocate recorded")
        return found


@dataclass(frozen=True)
class Release:
    """One folder under ``releases/``."""

    folder: Path

    @property
    def version(self) -> str:
        return self.folder.name

    def make_schema(self, engine: Engine) -> None:
        """Create the tables as this release's migrations did."""
        script = (self.folder / f"schema.{engine.dialect.name}.sql").read_text()
        with engine.begin() as connection:
            for statement in script.split(";\n"):
                if statement.strip():
                    connection.exec_driver_sql(statement)

    def play(self, engine: Engine) -> list[Any]:
        """Execute all statements of this release in order; returns the result of each."""
        results = []
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in self._tape(engine.dialect.name):
                try:
                    results.append(statement.say(connection))
                except Exception as error:
                    error.add_note(f"{self.version} said: {statement.sql}")
                    raise
        return results

    def _tape(self, dialect: str) -> Iterator[Statement]:
        for line in (self.folder / f"tape.{dialect}.jsonl").read_text().splitlines():
            yield Statement(**json.loads(line))

    @property
    def messages(self) -> dict[str, dict[str, Any]]:
        """Its messages by name, in wire format."""
        found: dict[str, dict[str, Any]] = json.loads((self.folder / "messages.json").read_text())
        return found

    @property
    def queues(self) -> dict[str, dict[str, Any]]:
        """Its queues' arguments by name."""
        found: dict[str, dict[str, Any]] = json.loads((self.folder / "queues.json").read_text())
        return found


def releases() -> Sequence[Release]:
    """All recorded releases, the oldest first."""
    return [Release(folder) for folder in sorted(RELEASES.iterdir())]


def without_chance(message: dict[str, Any]) -> dict[str, Any]:
    """The message with random ids made equal."""
    equal: dict[str, Any] = json.loads(_CHANCE.sub("0" * 32, json.dumps(message)))
    return equal


def _rows(connection: Connection, sql: str) -> list[tuple[Any, ...]]:
    result = connection.exec_driver_sql(sql)
    return [tuple(row) for row in result] if result.returns_rows else []
