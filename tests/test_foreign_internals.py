"""Undocumented names of a library are used in its ``*_internals.py`` alone.

There each name has its reason, and a test of its contract, which fails on an upgrade before a
worker does: ``docs/architecture.md`` lists them.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.planting import ROOT

PACKAGE = ROOT / "pos_gateway"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

#: Modules, and names of others, that their libraries do not document for use.
PRIVATE = (
    *("amqp.basic_message", "amqp.method_framing", "amqp.serialization", "amqp.spec"),
    "amqp.transport",
    *("celery.app.amqp", "celery.app.trace", "celery.bootsteps.RUN", "celery.concurrency"),
    *("celery.loaders", "celery.utils", "celery.worker"),
    *("gevent.greenlet", "gevent.libev", "gevent.libuv", "gevent.thread"),
    "kombu.transport.pyamqp",
    *("prometheus_client.metrics", "prometheus_client.values"),
    *("psycopg.connection", "psycopg.errors.error_from_result", "psycopg.generators"),
    *("psycopg.pq", "psycopg.waiting"),
    *("pydantic.main", "pydantic.v1", "redis.connection", "sqlalchemy.util", "structlog.stdlib"),
)
#: Classes that their libraries document for deriving from.
BASES = {
    *("celery.Task", "celery.bootsteps.StartStopStep"),
    *("click.Choice", "click.ClickException", "click.Group", "click.ParamType"),
    *("prometheus_client.registry.Collector", "psycopg.Connection", "pydantic.BaseModel"),
    *(
        "requests.Session",
        "requests.adapters.BaseAdapter",
        "rich.progress.Progress",
        "sqlalchemy.sql.expression.FunctionElement",
    ),
}
#: Names of a NamedTuple, which Python documents.
OF_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
#: Files, or folders, with what they use; the reasons are in ``docs/architecture.md``.
ALLOWED = {
    "gcelery.py": "subprocess._args_from_interpreter_flags gevent_config.track_greenlet_tree",
}


def tree_of(name: str) -> ast.Module:
    """Parsed anew each time: 500 trees that stay would be walked by the garbage collector for seconds."""
    return ast.parse(FILES[name].read_text())


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in {*sys.stdlib_module_names, "pos_gateway", "gcelery"}


def imported(tree: ast.Module) -> dict[str, str]:
    """Every import's local name, with what it names."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def own_names(tree: ast.Module) -> set[str]:
    """What the module's classes define: their methods, attributes and slots."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # in __slots__
    return names


@cache
def own_names_of(name: str) -> set[str]:
    return own_names(tree_of(name))


def inherited_names(names: Iterable[str]) -> set[str]:
    """The same of the gateway's modules that these names are imported from: base classes are there."""
    found = {name.removeprefix("pos_gateway.").replace(".", "/") for name in names}
    modules = {f"{name.rpartition('/')[0]}.py" for name in found} & FILES.keys()
    return set().union(*(own_names_of(each) for each in modules))


def text_of(node: ast.AST) -> str:
    return ast.unparse(node)


def root_of(node: ast.AST) -> str:
    """The first name of ``a.b[0].c``."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and (not name.endswith("__") or name.startswith("__pydantic"))


def used(tree: ast.Module) -> Iterator[str]:
    """What the module uses that its library does not document."""
    names = imported(tree)
    foreign = {local: name for local, name in names.items() if is_foreign(name)}
    own = own_names(tree) | inherited_names(names.values())
    for name in foreign.values():
        if any(map(is_private, name.split("."))) or f"{name}.".startswith(
            tuple(f"{each}." for each in PRIVATE)
        ):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (root := root_of(node)) in foreign:
            name = text_of(node).replace(root, foreign[root], 1)
            if name in PRIVATE:
                yield name
        match node:
            case ast.Attribute(value=of, attr=name) if is_private(name) and name not in OF_TUPLES:
                is_own = isinstance(of, ast.Name) and of.id in ("self", "cls") and name in own
                if not is_own:
                    yield text_of(node)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
                if is_private(name):
                    yield text_of(node)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                if root_of(node) in foreign:  # replaced in the library itself
                    yield text_of(node)
            case ast.ClassDef(bases=bases):
                for base in bases:
                    local, _, rest = text_of(base).partition("[")[0].partition(".")
                    name = f"{foreign.get(local, '')}.{rest}".strip(".")
                    if local in foreign and name not in BASES:
                        yield f"class {node.name}({name})"


def found(name: str) -> list[str]:
    """What the file uses, and may not."""
    uses = list(used(tree_of(name)))
    for file, what in ALLOWED.items():
        if name.startswith(file):
            uses = [each for each in uses if what and not any(map(each.startswith, what.split()))]
    return uses


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith("_internals.py")])
def test_a_file_uses_nothing_undocumented(name: str) -> None:
    assert found(name) == []


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("_internals.py")])
def test_an_internals_module_has_a_test_of_its_contract_and_a_line_in_the_docs(name: str) -> None:
    [contract] = (ROOT / "tests").rglob(f"test_{Path(name).name}")
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert f"`{name}`" in page
    assert f"`{contract.relative_to(ROOT).as_posix()}`" in page


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("from celery.worker import loops", "celery.worker.loops"),
        ("import psycopg.pq", "psycopg.pq"),
        ("import psycopg as p\np.pq.ExecStatus", "psycopg.pq"),
        (
            "from psycopg import errors\nerrors.error_from_result(x)",
            "psycopg.errors.error_from_result",
        ),
        ("from celery._state import current_app", "celery._state.current_app"),
        ("def f(pool):\n  return pool._pool", "pool._pool"),
        ("class A:\n  def f(self):\n    return self.pool._pool", "self.pool._pool"),
        ("class A(B):\n  def f(self):\n    return self._sum", "self._sum"),
        ("def f(record):\n  record.__pydantic_serializer__", "record.__pydantic_serializer__"),
        ("def f(it):\n  getattr(it, '_sum')", "getattr(it, '_sum')"),
        ("from celery import signals\nsignals.any = 1", "signals.any"),
        ("from amqp import x\nx.CLASSES[60] = 1", "x.CLASSES[60]"),
        ("import redis\nclass A(redis.Redis): pass", "class A(redis.Redis)"),
    ],
)
def test_an_undocumented_name_is_found(source: str, finding: str) -> None:
    assert list(used(ast.parse(source))) == [finding]


def test_every_exception_to_the_rule_exists() -> None:
    for file, what in ALLOWED.items():
        uses = [each for name in FILES if name.startswith(file) for each in used(tree_of(name))]
        assert uses, file
        for each in what.split():
            assert any(each in use for use in uses), (file, each)
