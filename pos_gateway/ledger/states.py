"""What an order's row in the ledger says, and what an attempt finds there."""

from dataclasses import dataclass, field
from enum import StrEnum

from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.settling import Settling


class Action(StrEnum):
    """What was asked for; each has a row of its own."""

    SUBMIT = "submit"
    CANCEL = "cancel"


class State(StrEnum):
    """Where an order stands.

    ::

        NEW ──► CLAIMED ──► SENDING ──► ACCEPTED | REJECTED | CANCELLED | EXPIRED | FAILED
         ▲         │           ├──────► PENDING    (the POS has it and has not decided)
         └─────────┴───────────┴──────► IN_DOUBT   (the POS may have it)

    NEW, PENDING and IN_DOUBT are claimed again; a fresh order goes to SENDING in one step.
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
        """Whether nothing more comes of it by itself."""
        return self in FINAL

    @property
    def is_held(self) -> bool:
        """Whether a worker has it."""
        return self in (State.CLAIMED, State.SENDING)


#: Nothing more comes of these by themselves.
FINAL = frozenset({State.ACCEPTED, State.REJECTED, State.CANCELLED, State.EXPIRED, State.FAILED})


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which row."""

    merchant_id: str
    order_id: str
    action: Action = Action.SUBMIT


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """What became of an order before."""

    #: Attempts that were made.
    attempts: int = 0
    #: Workers that died while they had its claim, for certain.
    deaths: int = 0
    #: Since when the POS may have it without our knowing (Unix time); None: it has not.
    doubt_since: float | None = None
    #: The POS has it and had not decided: it is asked, not sent the order again.
    pending: bool = False
    #: The last event that was told of it.
    told: str | None = None
    #: How often an operator has reopened it.
    reopened: int = 0
    #: When it is worthless (Unix time), as it was told first, or by an operator since.
    deliver_by: float | None = None
    #: A wish to cancel it is open, and its time is not over.
    cancelling: bool = False
    #: When its row was made (Unix time), whatever became of it.
    known_since: float | None = field(default=None, compare=False)
    #: Leases that it was taken over from, and nothing was heard of since: their workers may be dead.
    taken_from: tuple[str, ...] = ()
    #: Since when the POS has had time to make it, if it is in doubt, and seconds of that until the claim.
    settling: Settling | None = None
    settled: float = 0.0
    #: Which POS may have it, if it is known (see ``Merchant.endpoint``).
    endpoint: str | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the POS may have it without our knowing."""
        return self.doubt_since is not None

    @property
    def possible_deaths(self) -> int:
        """Workers that died while they had its claim, or may have."""
        return self.deaths + len(self.taken_from)

    @property
    def may_be_there(self) -> bool:
        """Whether the POS has it, for all we know, and no decision of its is known."""
        return self.in_doubt or self.pending


def open_state(past: AttemptHistory, last_event: str | None = None) -> State:
    """The state of an order that has not ended; one whose event said in doubt is listed as such.

    Args:
        past: what became of it.
        last_event: the event that is written with it.
    """
    if past.in_doubt or (past.pending and State.IN_DOUBT in (last_event, past.told)):
        return State.IN_DOUBT
    return State.PENDING if past.pending else State.NEW


@dataclass(slots=True)
class Claim:
    """The right to deal with an order until its outcome is written. One attempt's."""

    key: Key
    #: The lease that it hangs on.
    owner: str
    epoch: int
    ticket: int
    past: AttemptHistory
    #: That the POS may be sent it is durable.
    sending: bool
    #: A byte may have left for the POS under it.
    sent: bool = False
    #: What its row is made of if the database has lost it: the order, sealed, its ``deliver_by``, and
    #: which POS may have it.
    payload: str | None = None
    deliver_by: float | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A claim of this worker's that no green thread has any more; its row may name it or not."""

    key: Key
    #: Bytes may have left under it.
    sent: bool
    #: When it was abandoned, on this worker's clock.
    since: float


@dataclass(frozen=True, slots=True)
class Ended:
    """It has come to an end before, or waits for an operator."""

    state: State
    #: When (Unix time).
    at: float
    reason: Reason | None
    external_id: str | None
    past: AttemptHistory

    @property
    def outcome(self) -> Outcome:
        return Outcome(Kind(self.state.value), self.reason, self.external_id)


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """Somebody else is dealing with it."""

    owner: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """A status event, dehydrated: what its order's entry does not say."""

    id: str
    kind: str
    #: What it follows from.
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is written when an attempt is over."""

    state: State
    #: When (Unix time).
    at: float
    attempts: int
    doubt_since: float | None = None
    pending: bool = False
    reason: Reason | None = None
    external_id: str | None = None
    #: Told with it, in the same transaction.
    event: EventRow | None = None
    #: The reason stays that its row has.
    keeps_reason: bool = False
