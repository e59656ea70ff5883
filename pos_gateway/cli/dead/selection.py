"""Selects a command's letters."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from pos_gateway.cli.dead.letter import Letter
from pos_gateway.cli.failure import Failure

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """Letters by id, reason and merchant; None or empty matches any."""

    ids: tuple[str, ...] = ()
    code: str | None = None
    merchant_id: str | None = None

    def of(self, letters: Iterable[Letter], limit: int | None = None) -> Iterator[Letter]:
        """The matching letters, ``limit`` at most. Reads all letters.

        Raises:
            Failure: an id matches no letter.
        """
        found: set[str] = set()
        given = 0
        for letter in letters:
            if self._has(letter):
                found.add(letter.id)
                if limit is None or given < limit:
                    given += 1
                    yield letter
        missing = [each for each in self.ids if each not in found]
        if missing:
            raise Failure(f"no such letter has the id {', '.join(map(repr, missing))}")

    def _has(self, letter: Letter) -> bool:
        return (
            (not self.ids or letter.id in self.ids)
            and self.code in (None, letter.code)
            and self.merchant_id in (None, letter.merchant_id)
        )


def selecting(command: Command) -> Command:
    """Add the options of a selection."""
    code = click.option("--reason", "code", metavar="CODE", help="Only those with this reason.")
    merchant = click.option("--merchant", "merchant_id", metavar="ID", help="Only this merchant's.")
    return code(merchant(command))


def require_named(ids: tuple[str, ...], *, everything: bool) -> None:
    """Raises UsageError unless letters are named, or all are selected."""
    if bool(ids) == everything:
        raise click.UsageError("give the IDs of letters, or --all")
