"""The states of an order's ledger row, and the results of claiming it."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.settling import Settling
from pos_gateway.ledger.step_mark import StepMark

#: Seconds after ``deliver_by`` for which an order that the POS may have, or may have cancelled, is
#: still looked up; after that it is for an operator.
RESOLVE_FOR = 3600.0
#: Reasons of an order in doubt for which workers do not ask its POS.
ONLY_A_PERSON = ("blind", "moved", "not_undone", "facts", "poison")


def is_given_up(code: str | None, deliver_by: float | None, now: float) -> bool:
    """Whether workers have left an order in doubt to an operator.

    Args:
        code: of the order's reason.
        deliver_by: the order's (Unix time).
        now: Unix time.
    """
    return code in ONLY_A_PERSON or (deliver_by is not None and deliver_by + RESOLVE_FOR <= now)


class Action(StrEnum):
    """What a message asks for; each action has its own row."""

    SUBMIT = "submit"
    CANCEL = "cancel"


class State(StrEnum):
    """The state of an order.

    ::

        NEW ──► CLAIMED ──► SENDING ──► ACCEPTED | REJECTED | CANCELLED | EXPIRED | FAILED
         ▲         │           ├──────► PENDING    (the POS has it and has not decided)
         └─────────┴───────────┴──────► IN_DOUBT   (the POS may have it)

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
        """Whether it is terminal."""
        return self in FINAL

    @property
    def is_leased(self) -> bool:
        """Whether a worker has claimed the order."""
        return self in (State.CLAIMED, State.SENDING)


#: Terminal: only an operator, or for a cancel request a newer one, reopens the row.
FINAL = frozenset({State.ACCEPTED, State.REJECTED, State.CANCELLED, State.EXPIRED, State.FAILED})


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The key of a row."""

    merchant_id: str
    order_id: str
    action: Action = Action.SUBMIT


#: Deaths after which an order is suspected to kill workers.
SUSPECT = 2


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """What the ledger knows of an order's earlier attempts."""

    #: Attempts made.
    attempts: int = 0
    #: Workers that certainly died holding its claim.
    deaths: int = 0
    #: Since when the order is in doubt (Unix time); None: it is not.
    doubt_since: float | None = None
    #: The POS has the order and had not decided: look it up, never send it again.
    pending: bool = False
    #: The last event recorded.
    last_event: str | None = None
    #: How often an operator (or for a cancel request a newer one) has reopened it.
    reopened: int = 0
    #: When it expires (Unix time): as first delivered, or as an operator has set since.
    deliver_by: float | None = None
    #: An unexpired cancel request is open.
    cancelling: bool = False
    #: When its row was created (Unix time).
    known_since: float | None = field(default=None, compare=False)
    #: Leases it was taken over from that are silent since: their workers may be dead.
    taken_from: tuple[str, ...] = ()
    #: If in doubt: since when the POS has had time to create it, and those seconds at the claim.
    settling: Settling | None = None
    settled: float = 0.0
    #: The POS that may have it, if known (see ``adapters/pos_fields.endpoint``).
    endpoint: str | None = None
    #: Its last attempts as its row has them; only ``attempts.py`` knows the format.
    recorded: str | None = field(default=None, compare=False, repr=False)
    #: The reason of its last attempt as its row has it; only ``Ledger.last_reason`` opens it.
    reason: Reason | None = field(default=None, compare=False, repr=False)
    #: For how many seconds it had a row at the claim, by the database's clock, or by this worker's
    #: if that says more; None: there was no row.
    known_for: float | None = field(default=None, compare=False)
    #: The step at the POS that the last attempt left the order in; None: its first, or none.
    step: StepMark | None = None
    #: The progress through its steps, as its row has it: sealed; only ``Ledger.progress`` opens it.
    facts: str | None = field(default=None, repr=False)
    #: The POS's id of the order, if known.
    external_id: str | None = field(default=None, compare=False)

    @property
    def in_doubt(self) -> bool:
        """Whether the POS may have the order."""
        return self.doubt_since is not None

    def at(self, step: StepMark, facts: str | None, external_id: str | None) -> "AttemptHistory":
        """The history once this step is recorded. What the POS may have done of a different one is known."""
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
        """Whether the POS has the order's steps before ``step``, and nothing of that step."""
        return self.step is not None and not self.in_doubt

    @property
    def possible_deaths(self) -> int:
        """Workers that died holding its claim, or may have."""
        return self.deaths + len(self.taken_from)

    @property
    def may_be_there(self) -> bool:
        """Whether the POS has or may have the order, and its decision is unknown."""
        return self.doubt_since is not None or self.pending


def open_state(history: AttemptHistory, last_event: str | None = None) -> State:
    """The open state of an order; pending after an in-doubt event stays IN_DOUBT.

    An order that is pending in a later step is PENDING, and looked up as one in doubt: the ledger knows no
    more of it until it is IN_DOUBT at its ``deliver_by``.

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
    """An attempt's call to the POS: the durations of its stages in seconds, and what came."""

    waited: float | None
    claim: float | None
    connect: float
    first_byte: float | None
    seconds: float
    #: The last reply's HTTP status; if the call failed, the failure's code.
    came: int | str | None


class Claim(NamedTuple):
    """One attempt's exclusive right to an order, until its outcome is committed."""

    key: Key
    #: The lease it depends on.
    owner: str
    epoch: int
    ticket: int
    history: AttemptHistory
    #: SENDING is durable: the order may be sent.
    sending: bool
    #: Restore the row if the database has lost it: the sealed order, its ``deliver_by``, and the
    #: POS that may have it.
    payload: str | None = None
    deliver_by: float | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A claim of this worker's whose green thread is gone; its row may or may not name it."""

    key: Key
    #: Bytes may have been sent under it.
    sent: bool
    #: When it was abandoned, on this worker's clock.
    since: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The order is already terminal."""

    state: State
    #: When (Unix time).
    at: float
    reason: Reason | None
    external_id: str | None
    history: AttemptHistory

    @property
    def outcome(self) -> Outcome:
        return Outcome(Kind(self.state.value), self.reason, self.external_id)


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """Another attempt holds the claim, in another worker or in this one."""

    owner: str


@dataclass(frozen=True, slots=True)
class Suspected:
    """Workers died holding the order's claim, or may have: it was not claimed."""

    possible_deaths: int


#: The result of a claim; Suspected only where a suspect is not wanted.
ClaimResult: TypeAlias = Claim | Ended | LeasedElsewhere | Suspected


@dataclass(frozen=True, slots=True)
class EventRow:
    """A dehydrated status event: what its order's entry does not contain."""

    id: str
    kind: str
    #: The trace it continues.
    trace: TraceContext | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is written when an attempt ends."""

    state: State
    #: When (Unix time).
    at: float
    attempts: int
    doubt_since: float | None = None
    pending: bool = False
    reason: Reason | None = None
    external_id: str | None = None
    #: Recorded with it, in the same transaction.
    event: EventRow | None = None
    #: Keep the reason that the row has.
    keeps_reason: bool = False
    #: The attempt's outcome, for the attempt history; None: as the state says.
    outcome: Kind | None = None
    #: The attempt's call, for the attempt history; None: there was no call.
    call: CallRecord | None = None
    #: The progress of an order that has taken all its steps, or whose step is pending; None: as its row says.
    progress: str | None = None

    @property
    def keeps_doubt(self) -> bool:
        """Whether it leaves the order as one that the POS may have, or ends it."""
        return self.state.is_final or self.pending or self.doubt_since is not None
