"""``pos-gateway adapters``: the adapters that are installed here, and a package for another POS."""

import re
from importlib.metadata import EntryPoint
from importlib.resources import files
from pathlib import Path

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group

#: The package that ``new`` copies: only read, never imported.
_SKELETON = "pos_gateway.adapters.skeleton"
#: Its files, and where they go.
_FILES = {
    "__init__.py": "{package}/__init__.py",
    "adapter.py": "{package}/adapter.py",
    "simulator.py": "{package}/simulator.py",
    "test_skeleton.py": "tests/test_{name}.py",
}
_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "The adapter {name} of POS Gateway"
requires-python = ">=3.11"
# Installed beside the gateway, which brings what the adapter imports; pytest runs the tests.
dependencies = []

[project.entry-points."pos_gateway.adapters"]
{name} = "{package}.adapter:{title}Adapter"

[tool.setuptools]
packages = ["{package}"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""


def _name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    from pos_gateway.adapters.registry import adapters as installed

    if re.fullmatch("[a-z][a-z0-9_]{0,39}", value) is None:
        problem = "a name has 1 to 40 characters of a-z, 0-9 and _, and begins with a letter"
        raise click.BadParameter(f"{value!r}: {problem}, as acme_pos")
    if value in installed(lambda *_: None):
        raise click.BadParameter(f"{value!r}: an adapter that is installed here has this name")
    return value


@click.group(cls=Group)
def adapters() -> None:
    """Adapters translate orders for a POS's API: one adapter for each kind of POS.

    The gateway has some, others come with installed packages. docs/writing-an-adapter.md goes from
    nothing to an adapter of your own in half an hour.
    """


@adapters.command("list", short_help="List those that are installed here.")
@options.as_json_lines
def list_(as_json: bool) -> None:
    """List the adapters that a worker on this machine has, and say which packages are broken.

    GUARANTEE is the POS's protection against making an order twice: keyed, queryable or blind.

    \b
    Examples:
      pos-gateway adapters list
      pos-gateway adapters list --json | jq -r .name

    Exit code: 0, or 1 if an installed package has an adapter that cannot be used.
    """
    from pos_gateway.adapters.registry import adapters as installed
    from pos_gateway.adapters.steps import steps_of

    broken: list[str] = []

    def on_broken(entry: EntryPoint, why: BaseException) -> None:
        broken.append(f"{entry.name} ({entry.value}) cannot be used: {type(why).__name__}: {why}")

    rows = [
        (name, str(each.guarantee), " ".join(step.name for step in steps_of(each)))
        for name, each in sorted(installed(on_broken).items())
    ]
    if as_json:
        for name, guarantee, steps in rows:
            output.json_line({"name": name, "guarantee": guarantee, "steps": steps.split()})
    else:
        output.table(("NAME", "GUARANTEE", "STEPS"), rows)
    if broken:
        raise Failure("\n".join(broken))


@adapters.command(short_help="Write a package with an adapter, a POS in memory, and tests.")
@click.argument("name", metavar="NAME", callback=_name)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where the package's folder goes. Default: here.",
)
def new(name: str, folder: Path) -> None:
    """Write the package of a new adapter into the folder NAME: it passes its tests as it is.

    The adapter is of a POS that differs from the reference API in most ways: errors in 200s, no
    idempotency keys, decimal money, the key in the query. Change the POS in memory to what the
    vendor documents, then the adapter, until the tests pass again. Nothing is overwritten.

    \b
    Example:
      pos-gateway adapters new acme
      cd acme
      pip install --editable .      # beside the gateway
      pytest
      pos-gateway adapters list
      pos-gateway merchants import merchants.jsonl                # "adapter": "acme"

    Exit code: 0, or 1 if nothing was written.
    """
    written = _package(name)
    root = folder / name
    for path in written:
        if (root / path).exists():
            raise Failure(f"{root / path} is there already; nothing was written")
    for path, text in written.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        click.echo(root / path)
    output.notice(f"next: cd {root} && pip install --editable . && pytest")


def _package(name: str) -> dict[str, str]:
    """The files of the package, by path."""
    title = "".join(part.capitalize() for part in name.split("_"))
    words = {
        "name": name,
        "title": title,
        "package": name if name.endswith("_pos") else f"{name}_pos",
        "distribution": f"pos-gateway-{name.replace('_', '-')}",
    }
    texts = {"pyproject.toml": _PYPROJECT.format(**words)}
    for source, target in _FILES.items():
        text = (files("pos_gateway") / "adapters" / "skeleton" / source).read_text()
        text = text.replace(_SKELETON, words["package"])
        if source == "__init__.py":
            text = f'"""The adapter {name} of POS Gateway."""\n'
        texts[target.format(**words)] = text.replace("Skeleton", title).replace("skeleton", name)
    return texts
