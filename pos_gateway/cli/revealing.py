"""Personal data in clear: nothing is shown before the audit has who is shown it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.cli import options
from pos_gateway.cli.database import database, reason
from pos_gateway.cli.failure import Failure

if TYPE_CHECKING:
    from pos_gateway.audit.note import Note


def options_of(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options --reveal, --reason and --as of a command."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        command = options.by_operator_if_named(options.reason(command))
        return click.option("--reveal", is_flag=True, help=help_)(command)

    return decorated


def record(notes: "Sequence[Note]", operator: str | None, why: str | None) -> None:
    """Write the audit's lines.

    Raises:
        UsageError: there is no operator.
        Failure: they cannot be written: then nothing may be shown.
    """
    if operator is None:
        raise click.UsageError(
            "--reveal needs --as NAME: who is shown it, for the audit ($USER is not set)"
        )
    from sqlalchemy.exc import SQLAlchemyError

    from pos_gateway.audit.note import By, write
    from pos_gateway.runtime.clock import SYSTEM_CLOCK

    with database() as engine:
        try:
            with engine.begin() as connection:
                at = SYSTEM_CLOCK.now().timestamp()
                write(connection, notes, by=By(operator, why), at=at)
        except SQLAlchemyError as error:
            raise Failure(
                f"nothing is revealed: the audit's line cannot be written: {reason(error)}; "
                "without --reveal it is shown masked"
            ) from error
