"""The interface between a bulk run and what it acts on."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from pos_gateway.administration.bulk.run import BulkItem, NewItem
from pos_gateway.administration.refusal import Refusal


class Task(NamedTuple):
    """An item that was found, and the function that acts on it; that returns a refusal, or None.

    It raises PublishError if the broker does not take a message: the item may be tried again.
    """

    item: BulkItem
    act: Callable[[], Refusal | None]


class Work(Protocol):
    """What a run acts on."""

    def found(self) -> Iterator[NewItem | None]:
        """The items that the filter means, each with why it would be refused now. Changes nothing.

        None in between, often, while it waits.
        """
        ...

    def tasks(self, items: Iterable[BulkItem], operator: str, note: str) -> Iterator[Task | None]:
        """These items, each once, as they are found; None in between, often.

        At the end all that can be found were. Closing it releases what it holds.

        Args:
            items: those that are left, of which a bounded number is kept.
            operator, note: for the audit.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Wait between two tasks, or two ``None``."""
        ...
