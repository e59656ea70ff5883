"""Every command line in a document, a page, a message or a manifest is one that the program takes."""

import ast
import html
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from pos_gateway.cli.outbox_program import _parser
from pos_gateway.cli.root import root

ROOT = Path(__file__).parents[2]
#: Files of git that may name a command; what others have written into the changelog is past.
SUFFIXES = {".md", ".py", ".html", ".js", ".yaml", ".yml", ".sh", ".toml", ".txt", ".svg"}
LEFT_OUT = re.compile(r"^(tests|loadtests/results)/|CHANGELOG\.md$|\.(json|lock)$")
#: Commands whose arguments are Celery's.
FOREIGN = {"worker"}
#: A command line ends before the next line, a comment, a pipe, a mark or a sentence. A document's code, or
#: a line of its own, is a command whatever its first word; in prose the name may be the product's.
_LINE = re.compile(
    r"(`|<code>|^ *(?:\\$ )?)?(?<![\w/.=-])pos-gateway ([a-z-][^`\n#|<>();&\"“”]*)", re.MULTILINE
)
#: The same without the program's name, as a document's code.
_CODE = re.compile(r"`([a-z]+ [a-z][^`\n]*)`|<code>([a-z]+ [a-z][^<\n]*)</code>")
#: Words of code that begin as commands do, and are none.
PROSE = {"events process"}


def files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        name
        for name in listed.stdout.splitlines()
        if Path(name).suffix in SUFFIXES | {""} and not LEFT_OUT.search(name)
    ]


def texts(name: str) -> Iterator[str]:
    """The file's text; of a program its texts alone, with a word for each value."""
    text = (ROOT / name).read_text(errors="replace")
    if name.endswith(".py"):
        if not (_LINE.search(text) or _CODE.search(text)):
            return  # which saves most of the time
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "VALUE"
                    for each in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
        return
    if name.endswith(".html"):
        text = html.unescape(re.sub(r"\{\{.*?\}\}", "VALUE", re.sub(r"\{%.*?%\}", " ", text)))
    yield text.replace("\\|", " ").replace("\\\n", " ")


def lines(name: str) -> Iterator[str]:
    """The command lines in the file, without the program's name."""
    for text in texts(name):
        for code, line in _LINE.findall(text):
            if code or root.get_command(click.Context(root), line.split()[0]):
                yield line
        for found in _CODE.finditer(text):
            line = found[1] or found[2]
            group = root.get_command(click.Context(root), line.split()[0])
            if isinstance(group, click.Group) and " ".join(line.split()[:2]) not in PROSE:
                yield line


def problem(line: str) -> str | None:
    """Why the program would refuse the line's words or options; None: it takes them."""
    words = [word.rstrip(".,:;!?…'\u2019") for word in line.split()]
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
        inner = command.get_command(context, words[0])
        if inner is None:
            return f"{command.name} has no command {words[0]}"
        command, words = inner, words[1:]
    if command.name in FOREIGN:
        return None
    taken = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    if command.name == "outbox":  # a program of its own, without click
        groups = _parser()._subparsers
        assert groups is not None
        [commands] = groups._group_actions
        assert commands.choices is not None
        taken = {*commands.choices[words[0]]._option_string_actions} if words else set()
    given = {re.split(r"[=\[\]|/]", word)[0] for word in words if word.startswith("--")}
    unknown = given - taken - {"--help", "--version", "--"}
    if unknown:
        return f"{command.name} has no option {min(unknown)}"
    for name, value in pairwise(words):
        for each in command.params:
            is_choice = name in each.opts and isinstance(each.type, click.Choice)
            if (
                is_choice
                and value.islower()
                and value.isidentifier()
                and value not in each.type.choices
            ):
                return f"{command.name} has no {name} {value}"
    return None


def test_every_command_that_a_file_names_exists_with_its_options() -> None:
    named = {name: [*lines(name)] for name in files()}
    wrong = [
        f"{name}: {line}: {why}"
        for name, of in named.items()
        for line in of
        if (why := problem(line))
    ]
    assert wrong == []
    for name in ("README.md", "docs/cli.md", "docs/operating.md", "docs/quick-start.md"):
        assert len(named[name]) >= 4, name
    assert len(named["pos_gateway/cli/orders.py"]) >= 5
    assert named["pos_gateway/server/page/templates/order_resolve.html"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("orders list --in-doubt", "list has no option --in-doubt"),
        ("orders list --state doubtful", "list has no --state doubtful"),
        ("orders find", "orders has no command find"),
        ("nothing", "root has no command nothing"),
        ("dead list --reason x", None),
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line: str, why: str | None) -> None:
    assert problem(line) == why
