"""The commands' exit codes: what each means, and the part of ``docs/cli.md`` that says so."""

import inspect
from collections.abc import Iterator

import click

DONE, NOT_DONE, USAGE = 0, 1, 2
#: The verdict of ``canary status --exit-code``.
HOLD, ABORT = 3, 4
#: Invalid configuration (sysexits.h).
CONFIG = 78
#: After Ctrl-C, by the shell's convention.
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    NOT_DONE: "not done, or not all of it: a sentence on standard error says what and why",
    USAGE: "the command line is wrong",
    HOLD: "`canary status --exit-code`: hold",
    ABORT: "`canary status --exit-code`: abort",
    CONFIG: "a setting is wrong (`pos-gateway settings` shows which)",
    INTERRUPTED: "Ctrl-C; what was begun is finished and counted. `events tail`, `events run`, "
    "`audit --follow`, `outbox relay`, `serve` and `demo --serve` end with 0",
}

_BEGIN = "<!-- exit codes: generated from the code -->\n"
_END = "<!-- end of exit codes -->\n"


def leaves(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Every command of the group and of the groups in it, by its words: ``dlq replay``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {rest}", each) for rest, each in leaves(command))
        elif command is not None:
            yield name, command


def spliced(page: str, root: click.Group) -> str:
    """The page with its tables of exit codes as the code has them."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        return page
    return before + begin + _tables(root) + end + after


def _tables(root: click.Group) -> str:
    lines = ["", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += ["", "Where a command's help says more:", "", "| command | exit code |", "|---|---|"]
    lines += [f"| `{name}` | {said} |" for name, each in leaves(root) if (said := _said(each))]
    return "\n".join(lines) + "\n\n"


def _said(command: click.Command) -> str:
    """What the command's help says of its exit code."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("Exit code: "):
            return " ".join(paragraph.removeprefix("Exit code: ").split())
    return ""
