"""The pages about the command line name existing commands and options."""

import re
from pathlib import Path

import click
import pytest

from pos_gateway.cli.root import root

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "docs/cli.md", "docs/operating.md", "docs/authentication.md"),
    *("docs/canary.md", "docs/capacity.md", "docs/http.md", "docs/quick-start.md"),
)
#: Commands whose arguments are another program's.
FOREIGN = {"worker", "outbox"}


def mentioned(page: str) -> list[list[str]]:
    """Every command line in the page, split into words."""
    text = (ROOT / page).read_text().replace("\\|", " ")
    lines = re.findall(r"pos-gateway ([a-z][^`\n#|]*)", text)
    if page == "docs/cli.md":  # its table and its sections omit the program's name
        lines += re.findall(
            r"`((?:dead|orders|secrets|tokens|merchants|db|events|canary) [a-z][^`]*)`", text
        )
    return [line.split() for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_the_page_exists_with_its_options(page: str) -> None:
    found = mentioned(page)
    assert found
    for line in found:
        require_command(line, page)


def test_every_command_that_a_template_or_a_message_names_exists_with_its_options() -> None:
    """What the operations page and errors tell an operator to type can be typed."""
    product, found = ROOT / "pos_gateway", 0
    for path in sorted([*product.rglob("*.html"), *product.rglob("*.py")]):
        is_source = path.suffix == ".py"
        pattern = (
            r"pos-gateway ([a-z][^`\n#|\"\\(){}<]*)"
            if is_source
            else r"<code>pos-gateway ([a-z][^<]*)"
        )
        for line in re.findall(pattern, path.read_text()):
            words = [each.rstrip(".,;:'") for each in line.partition("{{")[0].split()]
            require_command(words, str(path), may_be_prose=is_source)
            found += 1
    assert found > 100


def require_command(words: list[str], where: str, *, may_be_prose: bool = False) -> None:
    """The command of these words exists, and has the options among them; prose may follow a name."""
    line = words
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
        inner = command.get_command(context, words[0])
        if inner is None and may_be_prose:
            return
        assert inner is not None, (where, line)
        command, words = inner, words[1:]
    if command.name in FOREIGN:
        return
    options = {name for each in command.params for name in each.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.rstrip(".,;)") in options, (where, command.name, word)
