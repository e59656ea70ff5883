"""Why an operator's request was refused for one order or letter."""

from dataclasses import dataclass
from typing import Self

from pos_gateway.domain.errors import AdminError

#: The kind of every OrderChanged and InvalidOrder.
_CHANGED = "something happened to it at this moment; look at it again"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal in words, with its remedy."""

    why: str
    #: The same without ids and times, by which refusals are counted.
    kind: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """The refusal that an error of a request stands for."""
        return cls(str(error), error.kind if isinstance(error, AdminError) else _CHANGED)

    def __str__(self) -> str:
        return self.why
