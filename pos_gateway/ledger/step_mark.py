"""The step at the POS that an order is in, as the order's row names the step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepMark:
    """The row's ``step``: ``str`` writes it, ``parse`` reads it."""

    #: The row's ``reopened`` at the time. An earlier release reopens an order and leaves the column as
    #: the column is, which invalidates this.
    reopened: int
    #: The step's name in the adapter.
    name: str
    #: The step is being undone.
    is_undo: bool = False
    #: The POS has the step and has not decided.
    is_pending: bool = False

    def __str__(self) -> str:
        sign, rest = "-" if self.is_undo else "", " pending" if self.is_pending else ""
        return f"{self.reopened} {sign}{self.name}{rest}"

    @classmethod
    def parse(cls, text: str | None, reopened: int) -> "StepMark | None":
        """Parse the column; None if the order was reopened since, or no release writes such a text.

        Words of a later release are ignored.
        """
        match (text or "").split():
            case [number, name, *rest] if number == str(reopened):
                return cls(
                    reopened, name.removeprefix("-"), name.startswith("-"), "pending" in rest
                )
        return None
