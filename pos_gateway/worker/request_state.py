"""The states of a request in a worker, and how it comes from one to the next."""

from collections.abc import Callable
from enum import StrEnum

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.message import Message
from pos_gateway.worker import celery_internals as celery


class RequestState(StrEnum):
    """Where a request is. ``docs/architecture.md`` draws the transitions."""

    #: To be taken in: by the consumer, or again.
    ARRIVED = "arrived"
    #: In admission: for a slot, or for its merchant. Or for a green thread, without a slot.
    WAITING = "waiting"
    #: For the outcome of another request for its order, which is in flight.
    JOINED = "joined"
    #: Attempted on a green thread, until the outcome is committed.
    IN_FLIGHT = "in_flight"
    #: Its outcome is committed, but its message is not acknowledged yet.
    COMMITTED = "committed"
    #: In this worker, for its retry.
    RETRY_WAITING = "retry_waiting"
    #: Being stored in the broker, for later.
    PARKING = "parking"
    #: Its message is acknowledged.
    ACKNOWLEDGED = "acknowledged"
    #: The broker has its message back.
    REQUEUED = "requeued"


_S = RequestState

#: The states that may follow each. Any other transition is a bug.
NEXT: dict[RequestState, set[RequestState]] = {
    _S.ARRIVED: {_S.WAITING, _S.JOINED, _S.IN_FLIGHT, _S.PARKING, _S.REQUEUED},
    _S.WAITING: {_S.JOINED, _S.IN_FLIGHT, _S.PARKING, _S.REQUEUED},
    _S.JOINED: {_S.ARRIVED, _S.RETRY_WAITING, _S.ACKNOWLEDGED, _S.REQUEUED},
    _S.IN_FLIGHT: {_S.ARRIVED, _S.COMMITTED, _S.RETRY_WAITING, _S.REQUEUED},
    _S.COMMITTED: {_S.ACKNOWLEDGED},
    _S.RETRY_WAITING: {_S.ARRIVED, _S.REQUEUED},
    _S.PARKING: {_S.ACKNOWLEDGED, _S.REQUEUED},
    _S.ACKNOWLEDGED: set(),
    _S.REQUEUED: set(),
}
#: What ``celery inspect`` shows as reserved, and as active.
_RESERVED = {_S.WAITING, _S.JOINED, _S.RETRY_WAITING}
_ACTIVE = {_S.IN_FLIGHT, _S.COMMITTED}
_OVER = {_S.ACKNOWLEDGED, _S.REQUEUED}


class IllegalTransition(RuntimeError):
    """Raised where a request would come to a state that cannot follow its present one."""


class TrackedRequest:
    """A request with its state, and with what was decided in it."""

    __slots__ = ("again", "decision", "joined_late", "needs_pos", "on_over", "state")

    def __init__(self) -> None:
        self.state = RequestState.ARRIVED
        #: Its decision; None until its attempt is over.
        self.decision: Decision | None = None
        #: The message of the retry that this worker is to make, once all else is committed.
        self.again: Message | None = None
        #: Whether the outcome was decided before the request joined.
        self.joined_late = False
        #: A cancel request whose order its POS may have: the next attempt may call the POS.
        self.needs_pos = False
        #: Called once it is over; None: nothing is counted until then.
        self.on_over: Callable[[], None] | None = None

    @property
    def is_committed(self) -> bool:
        """Whether its outcome is committed, but perhaps for its retry."""
        return self.again is not None or self.state in (_S.COMMITTED, _S.ACKNOWLEDGED)

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
        is_next = state in NEXT[before]
        if before is RequestState.IN_FLIGHT and state is not RequestState.REQUEUED:
            is_next = state is self._after_attempt
        if not is_next:
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

    @property
    def _after_attempt(self) -> RequestState | None:
        """The state that follows a decided attempt, if the request is not requeued."""
        if self.state is not RequestState.IN_FLIGHT or self.decision is None:
            return None
        if self.again is not None:
            return RequestState.RETRY_WAITING
        return RequestState.ARRIVED if self.decision.needs_pos else RequestState.COMMITTED

    def decide(self, decision: Decision) -> None:
        """Its attempt is over; its outcome is to be committed."""
        if self.state is not RequestState.IN_FLIGHT or self.decision is not None:
            raise IllegalTransition(f"a request was decided while {self.state}")
        self.decision = decision

    def retry_here(self, again: Message) -> None:
        """Its outcome is committed but for its retry, which this worker is to make."""
        if self._after_attempt is not RequestState.COMMITTED:
            raise IllegalTransition(f"a request came to its retry while {self.state}")
        self.again = again

    def committed(self) -> None:
        """Its outcome is committed, and all that follows from it."""
        self.enter(RequestState.COMMITTED)

    def start_over(self) -> None:
        """Forget what was decided, but for ``needs_pos``: it is to be taken in again."""
        self.enter(RequestState.ARRIVED)
        self.needs_pos = self.decision is not None and self.decision.needs_pos
        self.decision, self.again = None, None
