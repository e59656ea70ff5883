"""Faults planted one at a time: a test that cannot fail proves nothing.

A run tries a package's first fault, which shows that faults are planted and found, or, with
``FAULTS=all``, every one. All of them take long; run ``make faults`` after a change of a rule, or of
a test of one.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Any

from tests.forked import Preloaded, fork_each, run_module

ROOT = Path(__file__).resolve().parents[1]
#: Folders of the tests with faults to plant in the product. The simulation plants its own.
PACKAGES = sorted(
    {path.parent.name for path in (ROOT / "tests").glob("*/faults.py")} - {"simulation"}
)
#: The libraries that take the longest to import; they import nothing of the gateway.
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


#: Examples of a property-based test without a fault, and of the first try with one: most faults
#: show soon.
FEW = "40"
#: A fault is tried without servers.
_LOCAL = "not postgresql and not mariadb"
#: Has the planted fault, for the processes that a test starts.
PLANTED = "PLANTED_FAULT"


class Found(StrEnum):
    """Whether a planted fault is found."""

    NO = "missed"
    YES = "found"
    #: The test ended without a failure or a pass.
    NOT_TRIED = "not tried"
    #: The test fails without the fault as well.
    ALWAYS = "fails without"


#: Exit codes of the process that tries a fault: none that has another meaning.
_SAID = {100 + number: found for number, found in enumerate(Found)}


def chosen(faults: Sequence["Fault"]) -> list["Fault"]:
    """The faults that this run tries, in their order."""
    return list(faults) if _all_are() else list(faults[:1])


def _all_are() -> bool:
    return os.environ.get("FAULTS") == "all"


@dataclass(frozen=True)
class Fault:
    """A change that breaks a rule in a package of the gateway."""

    rule: str
    #: Its path in ``pos_gateway``, without ``.py``.
    file: str
    right: str
    wrong: str
    #: The file of the test that must find it, and a part of the test's name.
    by: str
    #: The examples of a property-based test, if not as many as the others'.
    examples: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it can still be planted."""
        return self.right in (ROOT / "pos_gateway" / f"{self.file}.py").read_text()


def faults_of(package: str) -> list[Fault]:
    """The faults of a package's ``faults.py``."""
    faults: list[Fault] = importlib.import_module(f"tests.{package}.faults").FAULTS
    return faults


def require_found(module: str, faults: Sequence[Fault]) -> None:
    """Run this module as ``python -m`` does, which calls ``try_all``: every fault must be found."""
    with TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = _preloaded().fork(environment, out, stderr=str(err), module=module, arguments=[])
        try:
            process.wait(1150)
        finally:
            process.kill()
        found = [f"found {fault.rule}" for fault in chosen(faults)]
        assert out.read_text().splitlines() == found, err.read_text()


@cache
def _preloaded() -> Preloaded:
    """One for each process of pytest, with the libraries and nothing of the gateway."""
    return Preloaded(sys.executable, "-P", "-m", __name__)


def try_all(faults: Sequence[Fault], folder: str, **environment: str) -> None:
    """Plant one after the other, and print which are ``found`` and which are ``missed``.

    A fault is found if the test that is named for it fails with it, and passes without: a test that
    cannot start with it, or a NameError, finds nothing. A run that tries a few is beside one of all
    tests, which need no second run without a fault. Each fault is tried in a fork of this process,
    which has imported the libraries already.

    Args:
        faults: of which the chosen ones are tried.
        folder: of the tests, in ``tests``.
        environment: variables for the tests, so that they fail soon.
    """
    _import_libraries()
    tried = chosen(faults)
    by_file: dict[str, list[Fault]] = {}
    for fault in tried:
        by_file.setdefault(fault.by.partition("::")[0], []).append(fault)
    few = {**environment, "EXAMPLES": FEW}
    fails = {
        file
        for file, those in by_file.items()
        if _all_are() and _ends(None, those, folder, few) is not Found.NO
    }
    for each in tried:
        found = _ends(each, [each], folder, few)
        if found is Found.NO:
            most = {"EXAMPLES": str(each.examples)} if each.examples else {}
            found = _ends(each, [each], folder, {**environment, **most})
        if found is Found.YES and each.by.partition("::")[0] in fails:
            found = Found.ALWAYS
        print(found, each.rule, flush=True)


def _import_libraries() -> None:
    for library in _LIBRARIES:
        importlib.import_module(library)


def _ends(
    planted: Fault | None, those: Sequence[Fault], folder: str, told: Mapping[str, str]
) -> Found:
    """The result of these faults' tests, in a process in which one fault is planted."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return _SAID.get(os.waitstatus_to_exitcode(status), Found.NOT_TRIED)
    os.environ.update(told)
    if planted is not None:
        _plant(planted)
        os.environ[PLANTED] = json.dumps([planted.file, planted.right, planted.wrong])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    names = [fault.by.partition("::")[2] for fault in those]
    which = f"({' or '.join(names)}) and {_LOCAL}" if all(names) else _LOCAL
    import pytest

    watch = _Watch()
    code = pytest.main(
        [
            *("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
            # A hanging test must fail, and not end the process as a failure would.
            *("--timeout=60", "--timeout-method=signal"),
            *("-k", which, f"tests/{folder}/test_{those[0].by.partition('::')[0]}.py"),
        ],
        plugins=[watch],
    )
    os._exit(next(each for each, found in _SAID.items() if found is watch.found(code)))


def plant_given() -> None:
    """Plant the fault of the process that tries one. For a server of a test, before its imports."""
    if given := os.environ.get(PLANTED):
        file, right, wrong = json.loads(given)
        _plant(Fault("", file, right, wrong, ""))


class _Watch:
    """Records failures and their causes."""

    def __init__(self) -> None:
        self._has_failed = self._is_broken = False

    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        if self._has_failed:
            return  # what a failed test leaves fails at its end, too
        self._has_failed = True
        self._is_broken |= report.when != "call"
        self._is_broken |= call.excinfo.errisinstance((NameError, ImportError, SyntaxError))

    def found(self, code: int) -> Found:
        if code == 0:
            return Found.NO
        return Found.YES if self._has_failed and not self._is_broken else Found.NOT_TRIED


def _plant(fault: Fault) -> None:
    """Import the gateway with this fault in it, from now on."""
    load = SourceFileLoader.get_code
    module = f"pos_gateway.{fault.file.replace('/', '.')}"
    if not (ROOT / "pos_gateway" / f"{fault.file}.py").exists():
        raise ImportError(f"{fault.rule}: there is no {module} any more")

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        if name != module:
            return load(loader, name)
        text = Path(loader.path).read_text()
        if fault.right not in text:
            raise ImportError(f"{fault.rule}: {fault.file}.py has no {fault.right!r} any more")
        return compile(text.replace(fault.right, fault.wrong, 1), loader.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


if __name__ == "__main__":
    _import_libraries()
    fork_each(run_module)
