"""The states of an order's ledger row, and the results of a claim."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.trace_context import TraceContext

#: Seconds after ``deliver_by`` for which workers look up an order that the POS may have, or may
#: have cancelled; later the order is for an operator.
RESOLVE_FOR = 3600.0
#: Reason code of an order whose POS has refused to undo the step: an operator decides.
NOT_UNDONE = "not_undone"
#: Reasons of orders in doubt that workers do not look up; ``other``: combined with another order, or removed.
ONLY_A_PERSON = ("blind", "moved", NOT_UNDONE, "other", "facts", "poison")


def is_given_up(code: str | None, deliver_by: float | None, now: float) -> bool:
    """Whether workers have left an order in doubt to an operator.

    Args:
        code: of the order's reason.
        deliver_by: the order's (Unix time).
        now: Unix time.
    """
    return code in ONLY_A_PERSON or (deliver_by is not None and deliver_by + RESOLVE_FOR <= now)


class Action(StrEnum):
    """A message's request; each action has its own row."""

    SUBMIT = "submit"
    CANCEL = "cancel"


class State(StrEnum):
    """The state of an order.

    ::

        NEW ──► CLAIMED ──► SENDING ──► ACCEPTED | REJECTED | CANCELLED | EXPIRED | FAILED
         ▲         │           ├──────► PENDING    (the POS has the order, undecided)
         └─────────┴───────────┴──────► IN_DOUBT   (the POS may have the order)

    NEW, PENDING and IN_DOUBT can be claimed again; a new order may go to SENDING in one step.
    """

    NEW = "new"
    CLAIMED = "claimed"
    SENDING = "sending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"
    PENDING = "pending"
    IN_DOUBT = "in_doubt"

    @property
    def is_final(self) -> bool:
        """Whether the state is terminal."""
        return self in FINAL

    @property
    def is_leased(self) -> bool:
        """Whether a worker has claimed the order."""
        return self in (State.CLAIMED, State.SENDING)


#: Terminal: only an operator reopens the row, or, for a cancel request, a newer request.
FINAL = frozenset({State.ACCEPTED, State.REJECTED, State.CANCELLED, State.EXPIRED, State.FAILED})


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The key of a row."""

    merchant_id: str
    order_id: str
    action: Action = Action.SUBMIT

    @property
    def columns(self) -> dict[str, str]:
        """The row's columns. A plain text: an enumeration takes two calls when written as JSON."""
        return {
            "merchant_id": self.merchant_id,
            "order_id": self.order_id,
            "action": str(self.action),
        }


@dataclass(frozen=True, slots=True)
class Settling:
    """The moment since which a POS has had time to create an order in doubt.

    The row's ``settling``: written by ``str``, read by ``parse``. The moment is on a worker's clock.
    Each worker writes its clock with every beat of its lease, and any worker can tell how far the
    clock has advanced since: no two machines' clocks are compared.
    """

    #: A lease of the worker whose clock counts.
    lease_id: str
    #: The reading of this clock.
    since: float
    #: The ``doubt_since`` of the same row. An earlier release changes the column alone, which
    #: invalidates the moment.
    doubt_since: float

    def __str__(self) -> str:
        return f"{self.lease_id} {self.since!r} {self.doubt_since!r}"

    @classmethod
    def parse(cls, text: str | None, doubt_since: float | None) -> "Settling | None":
        """Parse the column; None for a moment of another ``doubt_since``."""
        if text is None or doubt_since is None:
            return None
        lease_id, since, of_doubt = text.split()
        found = cls(lease_id, float(since), float(of_doubt))
        return found if found.doubt_since == doubt_since else None


@dataclass(frozen=True, slots=True)
class StepMark:
    """An order's step at the POS, in the row's ``step``: written by ``str``, read by ``parse``."""

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


#: Deaths after which an order is suspected of killing workers.
SUSPECT = 2


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """The ledger's knowledge of an order's earlier attempts."""

    attempts: int = 0
    #: Workers that certainly died holding the order's claim.
    deaths: int = 0
    #: Start of the doubt, renewed by each send (Unix time); None: not in doubt.
    doubt_since: float | None = None
    #: The POS has the order and had not decided: look up, never send again.
    pending: bool = False
    #: The last event recorded.
    last_event: str | None = None
    #: Number of reopenings by an operator or, for a cancel request, by a newer request.
    reopened: int = 0
    #: Expiry (Unix time): as first delivered, or as set since by an operator.
    deliver_by: float | None = None
    #: An unexpired cancel request is open.
    cancelling: bool = False
    #: Creation of the row (Unix time).
    known_since: float | None = field(default=None, compare=False)
    #: Earlier leases of the order, silent since their takeover: the workers may be dead.
    taken_from: tuple[str, ...] = ()
    #: In doubt: the moment since which the POS has had time, and the seconds up to the claim.
    settling: Settling | None = None
    settled: float = 0.0
    #: The POS that may have the order, if known (see ``adapters/pos_fields.endpoint``).
    endpoint: str | None = None
    #: The last attempts as in the row; only ``attempts.py`` knows the format.
    recorded: str | None = field(default=None, compare=False, repr=False)
    #: The last attempt's reason as in the row; only ``Ledger.last_reason`` opens the reason.
    reason: Reason | None = field(default=None, compare=False, repr=False)
    #: Age of the row at the claim in seconds, by the database's or this worker's clock, whichever
    #: says more; None: without a row.
    known_for: float | None = field(default=None, compare=False)
    #: The step at the POS after the last attempt; None: the first, or no step.
    step: StepMark | None = None
    #: The progress through the steps, sealed as in the row; only ``Ledger.progress`` opens them.
    facts: str | None = field(default=None, repr=False)
    #: The POS's id of the order, if known.
    external_id: str | None = field(default=None, compare=False)

    @property
    def in_doubt(self) -> bool:
        """Whether the POS may have the order."""
        return self.doubt_since is not None

    def at(self, step: StepMark, facts: str | None, external_id: str | None) -> "AttemptHistory":
        """The history with this step recorded. A new step ends the doubt about the step before."""
        if step == self.step:
            return replace(self, facts=facts)
        return replace(
            self,
            step=step,
            facts=facts,
            external_id=external_id or self.external_id,
            pending=True,
            doubt_since=None,
            settling=None,
            settled=0.0,
        )

    @property
    def is_between_steps(self) -> bool:
        """Whether the POS has all steps before ``step``, and nothing of ``step``."""
        return self.step is not None and not self.in_doubt

    @property
    def possible_deaths(self) -> int:
        """Workers that died holding the order's claim, or may have."""
        return self.deaths + len(self.taken_from)

    @property
    def may_be_there(self) -> bool:
        """Whether the POS has or may have the order, and its decision is unknown."""
        return self.doubt_since is not None or self.pending


def open_state(history: AttemptHistory, last_event: str | None = None) -> State:
    """The open state of an order; pending after an in-doubt event stays IN_DOUBT.

    An order pending in a later step is PENDING, and looked up as if in doubt: the ledger knows no
    more until the order is IN_DOUBT at its ``deliver_by``.

    Args:
        history: the order's attempt history.
        last_event: the event recorded with this write.
    """
    is_forward = history.step is not None and not history.step.is_undo
    if is_forward and (last_event or history.last_event) == State.PENDING:
        return State.PENDING
    if history.in_doubt or (history.pending and State.IN_DOUBT in (last_event, history.last_event)):
        return State.IN_DOUBT
    return State.PENDING if history.pending else State.NEW


class CallRecord(NamedTuple):
    """An attempt's call to the POS: the durations of its stages in seconds, and the result."""

    waited: float | None
    claim: float | None
    connect: float
    first_byte: float | None
    seconds: float
    #: HTTP status of the last reply; code of a failed call.
    came: int | str | None


class Claim(NamedTuple):
    """An attempt's exclusive right to an order, until the outcome is committed."""

    key: Key
    #: The lease on which the claim depends.
    owner: str
    epoch: int
    ticket: int
    history: AttemptHistory
    #: SENDING is durable: the order may be sent.
    sending: bool
    #: To restore the row if lost by the database: the sealed order, its ``deliver_by``, and the POS
    #: that may have the order.
    payload: str | None = None
    deliver_by: float | None = None
    endpoint: str | None = None
    #: The fields adapted for that POS, as JSON for the event.
    adapted: str | None = None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A claim of this worker whose green thread is gone; the row may or may not name the claim."""

    key: Key
    #: Bytes may have been sent under the claim.
    sent: bool
    #: Time of abandonment, on this worker's clock.
    since: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The order is already terminal."""

    state: State
    #: Unix time.
    at: float
    reason: Reason | None
    external_id: str | None
    history: AttemptHistory

    @property
    def outcome(self) -> Outcome:
        return Outcome(Kind(self.state.value), self.reason, self.external_id)


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """Another attempt holds the claim, here or elsewhere."""

    owner: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """Workers died holding the order's claim, or may have: the order was not claimed."""

    possible_deaths: int


#: The result of a claim; Suspected only with ``unless_suspect``.
ClaimResult: TypeAlias = Claim | Ended | LeasedElsewhere | Suspected


@dataclass(frozen=True, slots=True)
class EventRow:
    """A dehydrated status event: the fields missing in the order's entry."""

    id: str
    kind: str
    #: The trace that the event continues.
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of an attempt's end."""

    state: State
    #: Unix time.
    at: float
    attempts: int
    doubt_since: float | None = None
    pending: bool = False
    reason: Reason | None = None
    external_id: str | None = None
    #: Recorded in the same transaction.
    event: EventRow | None = None
    #: Keep the row's reason.
    keeps_reason: bool = False
    #: The attempt's outcome, for the attempt history; None: the state's.
    outcome: Kind | None = None
    #: The attempt's call, for the attempt history; None: without a call.
    call: CallRecord | None = None
    #: Progress of an order with all steps taken, or a pending step; None: as in the row.
    progress: str | None = None

    @property
    def keeps_doubt(self) -> bool:
        """Whether the entry ends the order, or says that the POS may have the order."""
        return self.state.is_final or self.pending or self.doubt_since is not None
