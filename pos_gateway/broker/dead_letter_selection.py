"""Selects dead letters by id."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pos_gateway.domain.errors import AdminError

if TYPE_CHECKING:
    from pos_gateway.broker.dead_letter import DeadLetter

#: Maximum merchants named when several have a letter's id.
_NAMED = 10


def _any(_letter: "DeadLetter") -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Selection:
    """Letters with any of the ids.

    Args:
        ids: at least one.
        is_selected: whether a letter is selected at all.
        names_merchant: whether ``is_selected`` is of named merchants' letters alone.
    """

    ids: tuple[str, ...]
    is_selected: "Callable[[DeadLetter], bool]" = _any
    names_merchant: bool = False

    def of(
        self, letters: "Iterable[DeadLetter]", limit: int | None = None
    ) -> "Iterator[DeadLetter]":
        """The matching letters, ``limit`` at most. Reads all letters.

        Raises:
            AdminError: an id matches no letter.
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
            raise AdminError(f"no such letter has the id {', '.join(map(repr, missing))}")

    def to_change(
        self, letters: "Iterable[DeadLetter]", limit: int | None = None
    ) -> "Iterator[DeadLetter]":
        """As ``of``, with no letter before the ids are known to mean one merchant's orders.

        Raises:
            AdminError: several merchants' letters have an id; or as ``of``.
        """
        if not self.names_merchant:
            letters = [letter for letter in letters if self._has(letter)]
            _require_one_merchant(letters)
        yield from self.of(letters, limit)

    def _has(self, letter: "DeadLetter") -> bool:
        return letter.id in self.ids and self.is_selected(letter)


def _require_one_merchant(letters: "Iterable[DeadLetter]") -> None:
    """An order's id is unique per merchant only."""
    theirs: dict[str, set[str]] = {}
    for letter in letters:
        theirs.setdefault(letter.id, set()).add(letter.merchant_id or "")
    for letter_id, merchants in theirs.items():
        if len(merchants) > 1:
            whose = ", ".join(each or "(none)" for each in sorted(merchants)[:_NAMED])
            more = ", …" if len(merchants) > _NAMED else ""
            raise AdminError(
                f"letters of several merchants have the id {letter_id!r}: {whose}{more}; nothing "
                "was done; say which with --merchant ID, or --reason CODE"
            )
