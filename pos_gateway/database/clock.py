"""The database's clock, the only clock for comparing rows of several machines."""

from typing import Any

from sqlalchemy import Double, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement


class Now(FunctionElement[float]):
    """Unix time, in seconds. SQLite uses this machine's clock."""

    inherit_cache = True
    type = Double()


class ThisMinute(FunctionElement[int]):
    """Whole minutes of ``Now``."""

    inherit_cache = True
    type = Integer()


@compiles(Now, "postgresql")
def _now(*_: Any, **__: Any) -> str:
    return "extract(epoch from statement_timestamp())::float8"


@compiles(Now, "sqlite")
def _now_in_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(ThisMinute, "postgresql")
def _minute(*_: Any, **__: Any) -> str:
    return "floor(extract(epoch from statement_timestamp()) / 60)::integer"


@compiles(ThisMinute, "sqlite")
def _minute_in_sqlite(*_: Any, **__: Any) -> str:
    return "cast(strftime('%s', 'now') as integer) / 60"
