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
#: Commands whose arguments are Celery's.
FOREIGN = {"worker"}


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
        words = line
        command: click.Command = root
        context = click.Context(root)
        while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z]+", words[0]):
            inner = command.get_command(context, words[0])
            assert inner is not None, (page, words)
            command, words = inner, words[1:]
        if command.name in FOREIGN:
            continue
        options = {name for each in command.params for name in each.opts} | {"--help"}
        for word in words:
            if word.startswith("--"):
                assert word.rstrip(".,;)") in options, (page, command.name, word)
