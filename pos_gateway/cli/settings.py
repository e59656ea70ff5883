"""``pos-gateway settings``: every setting, its meaning and its value here."""

from dataclasses import asdict
from typing import Any

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.exit_codes import CONFIG


@click.command()
@options.as_json_document
def settings(as_json: bool) -> None:
    """Show every setting: the variable, its value here, its default, and its meaning and unit.

    Passwords and keys are masked. A wrong value is shown with its error.

    \b
    Examples:
      pos-gateway settings
      pos-gateway settings --json | jq '.[] | select(.problem)'

    Exit code: 0, or 78 if a value is wrong or a variable is not a setting.
    """
    from pos_gateway.domain.errors import InvalidSettings
    from pos_gateway.settings import Settings, explain

    lines = explain()
    if as_json:
        output.json_document([asdict(line) for line in lines])
    elif output.is_terminal():
        _on_terminal(lines)
    else:
        columns = ("variable", "value", "default", "meaning", "problem")
        rows = [[getattr(line, each) for each in columns] for line in lines]
        output.table([each.upper() for each in columns], rows)
    try:
        Settings.from_environment()
    except InvalidSettings as error:
        count = len(error.errors)
        output.notice(f"pos-gateway: {count} setting{'s are' if count > 1 else ' is'} wrong")
        raise click.exceptions.Exit(CONFIG) from None


def _on_terminal(lines: list[Any]) -> None:
    """Two lines a setting: five columns would wrap everything."""
    for line in lines:
        changed = line.value != line.default
        output.line((line.variable, "bold"), (" = ", ""), (line.value, "cyan" if changed else ""))
        if line.problem:
            output.line((f"    {line.problem}", "bold red"))
        if line.meaning:
            output.line((f"    {line.meaning} ", ""), (f"Default: {line.default}", "dim"))
