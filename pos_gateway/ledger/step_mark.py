"""The step at the POS that an order is in, as the order's row names the step."""

from dataclasses import dataclass

#: The reason's code of an order whose POS has refused to undo the step: an operator decides.
NOT_UNDONE = "not_undone"


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

    def __str__(self) -> str:
        return f"{self.reopened} {'-' if self.is_undo else ''}{self.name}"

    @classmethod
    def parse(cls, text: str | None, reopened: int) -> "StepMark | None":
        """Parse the column; None if the order was reopened since, or no release writes such a text.

        Words of a later release are ignored.
        """
        match (text or "").split():
            case [number, name, *_] if number == str(reopened):
                return cls(reopened, name.removeprefix("-"), name.startswith("-"))
        return None
