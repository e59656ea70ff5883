"""The record of one attempt, from the message to the decision."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pos_gateway.adapters.steps import Step
from pos_gateway.attempt.content import UnreadMessage
from pos_gateway.attempt.poison import Alone
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.states import Action, CallRecord, Claim, Ended
from pos_gateway.transport.deadline import CallContext

Content = TypeVar("Content", Order, CancelRequest, UnreadMessage)


@dataclass(slots=True, eq=False)
class Attempt(Generic[Content]):
    """The facts of one attempt to do as a message asks. Only this package writes the facts.

    Without a claim nothing was sent.
    """

    # From the constructor.
    #: The order, or the request to cancel an order, or the unreadable message. None: ``Spine`` reads the message first.
    content: Content
    message: RawMessage
    action: Action = Action.SUBMIT
    #: Past the deadline, or too late for a start in time: the attempt needs no slot.
    expired: bool = False
    #: Whether a cancel request may call the POS; else ``Decision.needs_pos`` asks for the call.
    may_call: bool = True
    #: The attempt's part of the merchant's time limit.
    time_limit_share: float = 1.0
    #: The progress of the exchanges, written by the transport; can end the attempt early.
    context: CallContext = field(default_factory=CallContext)
    #: Called when the call begins: from there on the attempt waits for its merchant.
    on_call: Callable[[], None] | None = None
    #: The message's arrival (``perf_counter``), if known.
    received: float | None = None

    # From ``Submit``, ``Cancel`` and ``Unreadable``.
    merchant: Merchant | None = None
    #: As the ledger last returned each: the message's own, then a cancel request's order's.
    claims: list[Claim] = field(default_factory=list)
    #: The earlier end of the first row without a claim.
    ended: Ended | None = None
    #: The content with the later deadline in the ledger: nothing is done for the message's.
    newer: Content | None = None
    #: Past the deadline, or an operator's: the order is only looked up.
    late: bool = False
    #: The order of a cancel request is in a different attempt: nothing was done.
    waits: bool = False
    #: An order's POS was called.
    called: bool = False
    #: The ledger's text of an order that goes on, although the message cannot be read.
    kept: bytes | None = None

    # From ``Walk``.
    #: The last step taken, or undone.
    step: Step | None = None
    #: Of all done steps.
    facts: dict[str, str | int] = field(default_factory=dict)

    # From ``Caller``. Durations are in seconds.
    #: The time alone of all suspects, once the attempt has claimed a suspect; None: no suspect is claimed.
    alone: Alone | None = None
    #: From the attempt's beginning until the claim was durable; None: there was no call.
    claim_seconds: float | None = None
    #: The beginning of the call (``perf_counter``).
    call_began: float = 0.0
    #: A byte may have left.
    sent: bool = False
    #: There was a reply; and to a changing request of the present step.
    answered: bool = False
    changed: bool = False
    #: The last reply's status, or the code of the failure at the call's end.
    came: int | str | None = None
    #: The call, once over.
    call: CallRecord | None = None

    # From ``Spine``.
    #: The beginning of the attempt (``perf_counter``), and seconds from the message's arrival until then.
    began: float = 0.0
    waited: float | None = None
    outcome: Outcome | None = None
    #: The trace context for the attempt's events.
    span: TraceContext | None = None
    #: The attempt's trace; None: the attempt is not traced.
    trace_id: str | None = None
    #: All consequences are durable.
    is_committed: bool = False
