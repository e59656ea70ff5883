"""Dead letters in groups, for work lists: how many, since when, until when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.runtime.clock import shown

_HOUR = 3600


@dataclass(slots=True)
class LetterGroup:
    """The letters that have the same values. Times are Unix time; None: no letter has one."""

    key: dict[str, str | None]
    count: int = 0
    oldest: float | None = None
    newest: float | None = None

    def add(self, at: float | None) -> None:
        """Count a letter that was dead-lettered then."""
        self.count += 1
        if at is not None:
            self.oldest = at if self.oldest is None else min(self.oldest, at)
            self.newest = at if self.newest is None else max(self.newest, at)


class LetterGroups:
    """Counts letters by any of ``reason``, ``provider``, ``merchant`` and ``hour``.

    It keeps groups alone: a letter's body is not needed once it is counted.
    """

    def __init__(self, names: Sequence[str], provider_of: Mapping[str, str | None]) -> None:
        self._names = tuple(names)
        self._provider_of = provider_of
        self._groups: dict[tuple[str | None, ...], LetterGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, letter: DeadLetter) -> None:
        """Count a letter."""
        values = tuple(self._value(name, letter) for name in self._names)
        group = self._groups.get(values)
        if group is None:
            key = dict(zip(self._names, values, strict=True))
            group = self._groups[values] = LetterGroup(key)
        group.add(letter.at)

    def largest(self, limit: int) -> list[LetterGroup]:
        """The groups with the most letters, the largest first."""
        return nlargest(limit, self._groups.values(), key=lambda group: group.count)

    def _value(self, name: str, letter: DeadLetter) -> str | None:
        match name:
            case "reason":
                return letter.code
            case "provider":
                return self._provider_of.get(letter.merchant_id or "")
            case "merchant":
                return letter.merchant_id
            case _:
                return None if letter.at is None else shown(letter.at // _HOUR * _HOUR)
