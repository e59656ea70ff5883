"""The operator's name, which is recorded with a change."""

import socket
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_LONGEST = 128


def _named(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    name = value.strip()
    if not name or len(name) > _LONGEST or not name.isprintable():
        raise click.BadParameter(f"a name has 1 to {_LONGEST} characters that can be shown")
    return name


def by_operator(command: Command) -> Command:
    """Add the required option ``--as``."""
    option = click.option(
        "--as",
        "operator",
        envvar="USER",
        required=True,
        metavar="NAME",
        callback=_named,
        help="Who does this, for the audit. Default: $USER.",
    )
    return option(command)


def by_any_operator(command: Command) -> Command:
    """Add ``--as``, by default the machine's name (a pod's own): a name is never missing."""
    option = click.option(
        "--as",
        "operator",
        envvar="USER",
        default=socket.gethostname,
        metavar="NAME",
        callback=_named,
        help="Who does this; others are shown it. Default: $USER, or this machine's name.",
    )
    return option(command)
