"""HTTP servers, forked from a process that has imported what they import: a second of CPU less each.

``tests/server/test_serve_command.py`` starts the real command.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.forked import Forked, Preloaded, fork_each, run_module

#: What ``pos-gateway serve`` imports.
IMPORTED = (
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "pos_gateway.cli.database",
    "pos_gateway.cli.root",
    "pos_gateway.cli.serve",
    "pos_gateway.server.serving",
    "pos_gateway.server.site",
)
#: Seconds that a request waits for the database and the broker, and a reply for its client: four times a
#: server's own, since a busy machine may need them, and a 503 or an end is then no mistake.
LIMITS = {
    "pos_gateway.ledger.submissions.ANSWER": 2.0,
    "pos_gateway.server.comparing.LOOK_UP_TIMEOUT": 2.0,
    "pos_gateway.server.intake.TIMEOUT": 6.0,
    "pos_gateway.server.reading.TIMEOUT": 20.0,
    "pos_gateway.server.uvicorn_internals.WRITE_TIMEOUT": 120.0,
}


def start(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> Forked:
    """``python -P -m MODULE ARGUMENTS`` in this environment; its output goes to the file."""
    return _preloaded().fork(environment, log, module=module, arguments=list(arguments))


@cache
def _preloaded() -> Preloaded:
    """One for each process of pytest."""
    return Preloaded(sys.executable, "-P", "-m", "tests.server.preloaded")


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    for module, limit in LIMITS.items():
        name, _, constant = module.rpartition(".")
        setattr(sys.modules[name], constant, limit)
    compiled = importlib.import_module("tests.server.compiled")
    compiled.share()
    compiled.compile_all()
    fork_each(run_module)
