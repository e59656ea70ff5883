"""Every package that the product imports is declared, also those that others require."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

from tests.planting import ROOT

#: Parts of declared packages: gevent's, and pydantic's.
WITH = {"greenlet": "gevent", "pydantic_core": "pydantic"}


def imported() -> Iterator[str]:
    """The top-level packages that any module imports, wherever in it."""
    for path in (ROOT / "pos_gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module.partition(".")[0]


def declared() -> set[str]:
    """The distributions that pyproject.toml asks for, for the worker and its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in extras for each in extras[name])]
    return {re.split(r"[\[<>=!~ ]", each)[0].lower().replace("_", "-") for each in asked}


def test_every_library_that_is_imported_is_declared() -> None:
    own = {*sys.stdlib_module_names, "pos_gateway", "gcelery"}
    libraries = {WITH.get(name, name) for name in imported()} - own
    assert len(libraries) > 10
    distributions = packages_distributions()
    missing = {
        name
        for name in libraries
        if not {each.lower().replace("_", "-") for each in distributions.get(name, [name])}
        & declared()
    }
    assert not missing
