"""A command group that imports a command when it runs, not to list it."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """A command's location (``module:attribute``), and its line in ``--help``."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class Group(click.Group):
    """Lists its commands in the order given, the lazy ones first, and no alias. An unknown name
    gets a suggestion."""

    def __init__(
        self,
        *arguments: Any,
        lazy: Mapping[str, Lazy] | None = None,
        aliases: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._lazy, self._aliases = lazy or {}, aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._aliases.get(cmd_name, cmd_name)
        return self._lazy[name].load() if name in self._lazy else self.commands.get(name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing the command, and options as click does."""
        here = {name: each.get_short_help_str() for name, each in self.commands.items()}
        summaries = {name: each.summary for name, each in self._lazy.items()} | here
        names = [
            CompletionItem(name, help=summary)
            for name, summary in summaries.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lazy = [(name, each.summary) for name, each in self._lazy.items()]
        here = [(name, each.short_help or "") for name, each in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*lazy, *here])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in {*known, *self._aliases} and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            ctx.fail(f"No such command {name!r}; {advice}")
        return super().resolve_command(ctx, args)
