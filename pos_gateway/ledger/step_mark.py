"""An order's step at the POS, as named in the order's row."""

from dataclasses import dataclass

#: Reason code of an order whose POS has refused to undo the step: an operator decides.
NOT_UNDONE = "not_undone"


@dataclass(frozen=True, slots=True)
class StepMark:
    """The row's ``step``: written by ``str``, read by ``parse``."""

    #: The row's ``reopened`` at the time. An earlier release reopens an order without changing the
    #: column, which invalidates the mark.
    reopened: int
    #: The step's name in the adapter.
    name: str
    #: The step is being undone.
    is_undo: bool = False

    def __str__(self) -> str:
        return f"{self.reopened} {'-' if self.is_undo else ''}{self.name}"

    @classmethod
    def parse(cls, text: str | None, reopened: int) -> "StepMark | None":
        """Parse the column; None if the order was reopened since, or for an unknown text.

        Words of a later release are ignored.
        """
        match (text or "").split():
            case [number, name, *_] if number == str(reopened):
                return cls(reopened, name.removeprefix("-"), name.startswith("-"))
        return None
