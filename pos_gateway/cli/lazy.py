"""A command group that imports a command when it runs, not to list it."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command's location (``module:attribute``), and its line in ``--help``."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class LazyGroup(click.Group):
    """Commands by name, listed in the order given; an alias is not listed. An unknown name gets a
    suggestion."""

    def __init__(
        self,
        *arguments: Any,
        lazy: Mapping[str, Lazy],
        aliases: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._lazy, self._aliases = lazy, aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(self._aliases.get(cmd_name, cmd_name))
        return lazy.load() if lazy else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in {*self._lazy, *self._aliases} and not name.startswith("-"):
            near = difflib.get_close_matches(name, self._lazy, n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self._lazy)}."
            ctx.fail(f"No such command {name!r}; {advice}")
        return super().resolve_command(ctx, args)
