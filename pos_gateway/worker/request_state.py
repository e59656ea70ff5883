"""The states of a request in a worker, and how it comes from one to the next."""

from collections.abc import Callable
from enum import StrEnum

from pos_gateway.broker.message import Message
from pos_gateway.processing.decision import Decision
from pos_gateway.worker import celery_internals as celery


class RequestState(StrEnum):
    """Where a request is. ``docs/architecture.md`` draws the transitions."""

    #: To be taken in: by the consumer, or again.
    ARRIVED = "arrived"
    #: In admission: for a slot, or for its merchant.
    WAITING = "waiting"
    #: Past its deadline: for the commit of that.
    EXPIRED = "expired"
    #: A cancel request that could not start: for an attempt without a slot, and without the POS.
    TO_CANCEL = "to_cancel"
    #: A cancel request whose order its POS may have: to be taken in again, for a slot.
    NEEDS_POS = "needs_pos"
    #: For the outcome of another request for its order, which is in flight.
    JOINED = "joined"
    #: The same, but the outcome was decided before it joined.
    JOINED_LATE = "joined_late"
    #: Attempted on a green thread.
    IN_FLIGHT = "in_flight"
    #: Attempted; its outcome is being committed.
    DECIDED = "decided"
    #: Its outcome is committed, but its message is not acknowledged yet.
    COMMITTED = "committed"
    #: Committed but for its retry, which this worker is to make.
    RETRY_DUE = "retry_due"
    #: In this worker, for its retry.
    RETRY_WAITING = "retry_waiting"
    #: Being stored in the broker, for later.
    PARKING = "parking"
    #: Its message is acknowledged.
    ACKNOWLEDGED = "acknowledged"
    #: The broker has its message back.
    REQUEUED = "requeued"


_S = RequestState
_JOINED = {_S.JOINED, _S.JOINED_LATE}
_TAKEN_IN = {_S.EXPIRED, _S.IN_FLIGHT, _S.PARKING, *_JOINED}

#: The states that may follow each. Any other transition is a bug.
NEXT: dict[RequestState, set[RequestState]] = {
    _S.ARRIVED: {_S.WAITING, _S.TO_CANCEL, *_TAKEN_IN, _S.REQUEUED},
    _S.WAITING: {*_TAKEN_IN, _S.REQUEUED},
    _S.EXPIRED: {_S.IN_FLIGHT, *_JOINED, _S.REQUEUED},
    _S.TO_CANCEL: {_S.IN_FLIGHT, *_JOINED, _S.REQUEUED},
    _S.NEEDS_POS: {_S.WAITING, *_TAKEN_IN, _S.REQUEUED},
    _S.JOINED: {_S.ARRIVED, _S.RETRY_WAITING, _S.ACKNOWLEDGED, _S.REQUEUED},
    _S.JOINED_LATE: {_S.ARRIVED, _S.RETRY_WAITING, _S.ACKNOWLEDGED, _S.REQUEUED},
    _S.IN_FLIGHT: {_S.DECIDED, _S.REQUEUED},
    _S.DECIDED: {_S.COMMITTED, _S.RETRY_DUE, _S.NEEDS_POS, _S.REQUEUED},
    _S.COMMITTED: {_S.ACKNOWLEDGED},
    _S.RETRY_DUE: {_S.RETRY_WAITING, _S.REQUEUED},
    _S.RETRY_WAITING: {_S.ARRIVED, _S.REQUEUED},
    _S.PARKING: {_S.ACKNOWLEDGED, _S.REQUEUED},
    _S.ACKNOWLEDGED: set(),
    _S.REQUEUED: set(),
}
#: What ``celery inspect`` shows as reserved, and as active.
_RESERVED = {_S.WAITING, _S.EXPIRED, _S.TO_CANCEL, _S.RETRY_WAITING, *_JOINED}
_ACTIVE = {_S.IN_FLIGHT, _S.DECIDED, _S.COMMITTED, _S.RETRY_DUE}
_OVER = {_S.ACKNOWLEDGED, _S.REQUEUED}
_WRITTEN = {_S.COMMITTED, _S.RETRY_DUE, _S.ACKNOWLEDGED}


class IllegalTransition(RuntimeError):
    """Raised where a request would come to a state that cannot follow its present one."""


class TrackedRequest:
    """A request with its state, and with what was decided in it."""

    __slots__ = ("again", "decision", "on_over", "state")

    def __init__(self) -> None:
        self.state = RequestState.ARRIVED
        #: Its decision; None until its attempt is over.
        self.decision: Decision | None = None
        #: The message of the retry that this worker is to make.
        self.again: Message | None = None
        #: Called once it is over; None: nothing is counted until then.
        self.on_over: Callable[[], None] | None = None

    @property
    def is_committed(self) -> bool:
        """Whether its outcome is committed, but perhaps for its retry."""
        return self.state in _WRITTEN

    @property
    def is_over(self) -> bool:
        """Whether its message is acknowledged, or the broker's again."""
        return self.state in _OVER

    def enter(self, state: RequestState) -> None:
        """Come to this state, and let Celery know.

        Raises:
            IllegalTransition: it cannot follow the present one.
        """
        before = self.state
        if state not in NEXT[before]:
            raise IllegalTransition(f"a request came from {before} to {state}")
        if before in _ACTIVE and state not in _ACTIVE:
            celery.task_ready(self)
        if state in _RESERVED:
            celery.task_reserved(self)
        elif state is RequestState.IN_FLIGHT:
            celery.task_accepted(self)
        elif before in _RESERVED:
            celery.task_ready(self)
        self.state = state
        if self.on_over is not None and state in _OVER:
            self.count_no_more()

    def count_no_more(self) -> None:
        """End what is counted until it is over."""
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def decide(self, decision: Decision) -> None:
        """Its attempt is over; its outcome is to be committed."""
        self.decision = decision
        self.enter(RequestState.DECIDED)

    def retry_here(self, again: Message) -> None:
        """Its outcome is committed but for its retry, which this worker is to make."""
        self.again = again
        self.enter(RequestState.RETRY_DUE)

    def need_pos(self) -> None:
        """Nothing was decided without its POS: it is to be taken in again."""
        self.decision = None
        self.enter(RequestState.NEEDS_POS)

    def start_over(self) -> None:
        """Forget what was decided: it is to be taken in again."""
        self.decision, self.again = None, None
        self.enter(RequestState.ARRIVED)
