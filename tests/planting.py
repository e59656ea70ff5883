"""Faults planted one at a time: a test that cannot fail proves nothing.

A run tries one of each file, or, with ``FAULTS=all``, every one. All of them take several minutes;
``make faults`` is for whoever changes a rule, or a test of one.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Protocol, TypeVar

ROOT = Path(__file__).resolve().parents[1]
#: What takes the longest to import, and has none of the gateway in it.
_LIBRARIES = (
    "alembic.command",
    "alembic.config",
    "hypothesis",
    "psycopg",
    "pydantic",
    "pytest",
    "requests",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "structlog",
)


class Planted(Protocol):
    """A fault, and the file that it is in."""

    @property
    def file(self) -> str: ...


Kind = TypeVar("Kind", bound=Planted)


def chosen(faults: Sequence[Kind]) -> list[Kind]:
    """Those that this run tries, in their order."""
    if os.environ.get("FAULTS") == "all":
        return list(faults)
    first: dict[str, Kind] = {}
    for fault in faults:
        first.setdefault(fault.file, fault)
    return list(first.values())


@dataclass(frozen=True)
class Fault:
    """What breaks a rule in a package of the gateway."""

    rule: str
    #: Its path in ``pos_gateway``, without ``.py``.
    file: str
    right: str
    wrong: str
    #: The file of the test that has to find it, and a part of its name.
    by: str
    #: How many a property-based test tries, if not as many as the others' do.
    examples: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it can still be planted."""
        return self.right in (ROOT / "pos_gateway" / f"{self.file}.py").read_text()


def require_found(module: str, faults: Sequence[Fault]) -> None:
    """Run ``python -m`` this module, which calls ``try_all``: every fault must be found."""
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True, timeout=1150
    )
    found = [f"found {fault.rule}" for fault in chosen(faults)]
    assert done.stdout.splitlines() == found, done.stderr


def try_all(faults: Sequence[Fault], folder: str, **environment: str) -> None:
    """Plant one after the other, and say which are ``found`` and which are ``missed``.

    Each is tried in a fork of this process, which has the libraries imported already.

    Args:
        faults: of which those that are chosen are tried.
        folder: where the tests are, in ``tests``.
        environment: what the tests are told, so that they fail soon.
    """
    for library in _LIBRARIES:
        importlib.import_module(library)
    for each in chosen(faults):
        code = _tried(each, folder, environment)
        print({0: "missed", 1: "found"}.get(code, f"ended with {code}"), each.rule, flush=True)


def _tried(fault: Fault, folder: str, environment: dict[str, str]) -> int:
    """What pytest ends with in a process that has the fault."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    _plant(fault)
    os.environ.update(environment)
    if fault.examples is not None:
        os.environ["EXAMPLES"] = str(fault.examples)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    file, _, name = fault.by.partition("::")
    import pytest

    which = f"({name}) and not postgresql" if name else "not postgresql"
    os._exit(
        pytest.main(
            [
                *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=60"),
                *("-k", which, f"tests/{folder}/test_{file}.py"),
            ]
        )
    )


def _plant(fault: Fault) -> None:
    """Import the gateway with this fault in it, from now on."""
    load = SourceFileLoader.get_code
    module = f"pos_gateway.{fault.file.replace('/', '.')}"

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if name != module:
            return load(loader, name)
        text = Path(loader.path).read_text()
        if fault.right not in text:
            raise ImportError(f"{fault.rule}: {fault.file}.py has no {fault.right!r} any more")
        return compile(text.replace(fault.right, fault.wrong, 1), loader.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
