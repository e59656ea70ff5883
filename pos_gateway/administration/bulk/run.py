"""A bulk run and its items, as values."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pos_gateway.administration.refusal import Refusal
from pos_gateway.domain.errors import PosGatewayError

#: Letters or orders a second, unless an operator says otherwise.
RATE = 20.0
#: Maximum characters of a run's problem.
_PROBLEM = 512


class Subject(StrEnum):
    """What runs act on. One run at a time acts on each."""

    LETTERS = "orders.dead"
    DOUBT = "orders in doubt"


class BulkAction(StrEnum):
    """What a run does to each item."""

    REPLAY = "dlq.replay"
    DISCARD = "dlq.discard"
    ACCEPTED = "orders.accepted"
    NOT_SENT = "orders.not_sent"

    @property
    def subject(self) -> Subject:
        """What it acts on."""
        is_of_letters = self in (BulkAction.REPLAY, BulkAction.DISCARD)
        return Subject.LETTERS if is_of_letters else Subject.DOUBT

    @property
    def past(self) -> str:
        """The action in the past tense, as counts have it."""
        return _PAST[self]


_PAST = {
    BulkAction.REPLAY: "replayed",
    BulkAction.DISCARD: "discarded",
    BulkAction.ACCEPTED: "accepted",
    BulkAction.NOT_SENT: "sent again or ended",
}


class RunState(StrEnum):
    """The state of a run. One whose lease has expired is RUNNING, and can be resumed."""

    #: Its items are being written; it is removed if that is cut short.
    PREPARING = "preparing"
    #: An operator has yet to confirm it.
    PREVIEWED = "previewed"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"


class ItemState(StrEnum):
    """The state of an item."""

    PENDING = "pending"
    #: Its action has begun, and may or may not have succeeded.
    BEGUN = "begun"
    DONE = "done"
    REFUSED = "refused"
    #: Its letter is not in the queue any more: another operator has replayed or discarded it.
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class NewItem:
    """A letter or an order as it was found for a preview."""

    #: By which it is found again.
    mark: str
    letter: str
    merchant_id: str | None
    order_id: str | None
    #: Why it would be refused, if it would.
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class BulkItem:
    """A letter or an order that a run has yet to act on."""

    number: int
    mark: str
    letter: str
    merchant_id: str | None
    order_id: str | None
    #: Whether its action has begun before, and may have succeeded.
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """The refusals for one reason."""

    kind: str
    count: int
    #: The ids of some.
    examples: tuple[str, ...]


class Refusals:
    """Counts refusals by reason."""

    #: Ids of each reason that are kept.
    EXAMPLES = 3

    def __init__(self) -> None:
        self._kinds: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def add(self, letter: str, refusal: Refusal) -> None:
        """Count the refusal of this letter, or order."""
        self._counts[refusal.kind] += 1
        examples = self._kinds.setdefault(refusal.kind, [])
        if len(examples) < self.EXAMPLES:
            examples.append(letter)

    def most(self, limit: int) -> list[RefusalCount]:
        """The most frequent ones, the first of them first."""
        return [
            RefusalCount(kind, count, tuple(self._kinds[kind]))
            for kind, count in self._counts.most_common(limit)
        ]


@dataclass(frozen=True, slots=True)
class BulkRun:
    """A run as it stands. Times are Unix time, by the database's clock."""

    id: int
    operator: str
    action: BulkAction
    filter: Mapping[str, Any]
    options: Mapping[str, Any]
    state: RunState
    total: int
    done: int
    refused: int
    gone: int
    stopped_by: str | None
    problem: str | None
    created_at: float
    started_at: float | None
    updated_at: float
    ended_at: float | None
    #: Whether a process has it at this moment.
    is_leased: bool

    @property
    def left(self) -> int:
        """How many items it has yet to act on."""
        return self.total - self.done - self.refused - self.gone

    @property
    def is_interrupted(self) -> bool:
        """Whether its process died, or lost the database."""
        return self.state is RunState.RUNNING and not self.is_leased

    @property
    def said(self) -> str:
        """Its state in one word."""
        if self.is_interrupted:
            return "interrupted"
        is_stopping = self.state is RunState.RUNNING and self.stopped_by is not None
        return "stopping" if is_stopping else self.state.value

    def __str__(self) -> str:
        acted = self.total - self.left
        return f"run {self.id} of {self.operator} ({self.action}, {acted} of {self.total} done)"


def problem_of(error: BaseException) -> str:
    """The sentence that a run's record has of the error that stopped it."""
    is_known = isinstance(error, PosGatewayError)
    return (str(error) if is_known else f"{type(error).__name__}: {error}")[:_PROBLEM]
