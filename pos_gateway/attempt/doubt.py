"""Rules about orders in doubt, late orders and poison, without state."""

from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import LEASED_ELSEWHERE
from pos_gateway.attempt.poison import POISONOUS
from pos_gateway.domain.errors import LedgerUnavailable, NotLoaded
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.ledger.states import AttemptHistory, LeasedElsewhere, Suspected
from pos_gateway.telemetry.line import Trace

log = structlog.get_logger(__name__)

#: Why an order in doubt is for an operator, and a cancel request waits.
MOVED = Reason("moved", "the merchant's adapter, base_url or pos was changed since it was sent")
#: Why a cancel request waits for an operator.
BLIND = Reason("blind", "whether the POS has it, an operator has to say first")
#: Why a cancel request ends without the POS's word.
CANCEL_IN_DOUBT = Reason(
    "cancel_in_doubt",
    "the POS was asked to cancel it, and has not said whether it did: ask the merchant",
)
#: The outcome of an attempt without the right to call the POS, for an order that the POS may have.
NEEDS_POS = Outcome(Kind.RETRY)
#: Seconds before ``deliver_by`` by which an order expires early. Orders wait by a monotonic clock, and
#: the time of day may be slewed during the wait.
EARLY = 1.0
#: Seconds for which a POS is relied on to keep a key. Square's retention is not documented, most keep
#: a key for 24 h, and the shortest documented is 15 min (docs.nuvei.com, "Idempotency support").
KEY_KEPT_FOR = 600.0
#: Seconds until the retry of an order leased elsewhere, or of a suspect.
LOOK_AGAIN_AFTER = 2.0


def unsettled_for(history: AttemptHistory, time_limit: float, adapter: Adapter) -> float:
    """For how many seconds the POS could still create the order of an earlier attempt.

    Seconds after the claim. An earlier look-up may miss an order that is about to be created. A pending order
    has the full time from the claim on.
    """
    longest = longest_reply(adapter, time_limit)
    if history.in_doubt:
        return max(0.0, longest - history.settled)
    return longest if history.pending else 0.0


def longest_reply(adapter: Adapter, time_limit: float) -> float:
    """Seconds until the POS replies, or never will: the merchant's limit may be longer than the vendor's."""
    return max(adapter.limits.longest_reply or 0.0, time_limit)


def has_moved(history: AttemptHistory, merchant: Merchant, adapter: Adapter) -> bool:
    """Whether the order may be at a POS no longer in the merchant's record.

    The new POS does not know the order: a look-up there would be believed, and the key is new.
    """
    # Rows of the release before this release have the fingerprint with all of ``pos``.
    return history.endpoint not in (None, endpoint(merchant, adapter), merchant.endpoint)


def leased_elsewhere() -> Outcome:
    """The outcome of an order leased elsewhere: nothing was done."""
    return Outcome(Kind.RETRY, LEASED_ELSEWHERE, look_again=LOOK_AGAIN_AFTER)


def unclaimed(found: LeasedElsewhere | Suspected) -> Outcome:
    """The outcome of an attempt without a claimed row: nothing was done."""
    return suspect() if isinstance(found, Suspected) else leased_elsewhere()


def suspect() -> Outcome:
    """The outcome of a suspect while a second suspect runs alone: nothing was done."""
    reason = Reason.of("suspect", "workers died while it was in flight; it starts alone")
    return Outcome(Kind.RETRY, reason, look_again=LOOK_AGAIN_AFTER)


def crashed(attempt: Attempt[Any], error: Exception) -> Outcome:
    """The outcome of an attempt after an exception: in doubt once a byte may have left."""
    if isinstance(error, SQLAlchemyError | LedgerUnavailable | NotLoaded):
        kind = Kind.IN_DOUBT if attempt.sent else Kind.RETRY
        return Outcome(kind, Reason.of("database", error))
    order_id, trace = attempt.content.order_id, Trace.of(error, messages=False)
    if isinstance(attempt.content, CancelRequest):
        log.error("cancellation.crashed", order_id=order_id, trace=trace)
    else:
        log.error("delivery.crashed", order_id=order_id, trace=trace)
    kind = Kind.IN_DOUBT if attempt.sent else Kind.FAILED
    return Outcome(kind, Reason.of("internal_error", type(error).__name__))


def poison(history: AttemptHistory) -> Reason | None:
    """Why a poison order is not sent any more; None: the workers may only be paused, not dead."""
    if history.deaths < POISONOUS:
        return None
    return Reason.of("poison", f"{history.deaths} workers died while it was in flight")


def poisoned(history: AttemptHistory) -> Outcome:
    """The outcome of a poison order."""
    reason = poison(history)
    if reason is None:
        return suspect()
    if history.may_be_there:  # the look-up may be the cause
        return Outcome(Kind.IN_DOUBT, reason, for_operator=True)
    return Outcome(Kind.FAILED, reason)


def why_late(left: float, last: Reason | None) -> str:
    """Why there is no further attempt, ``left`` seconds before ``deliver_by``, and why no attempt succeeded.

    Args:
        left: the seconds; negative after ``deliver_by``.
        last: the last attempt's reason.
    """
    is_early = left > EARLY
    why = (
        "the merchant's POS is not called before deliver_by"
        if is_early
        else "deliver_by has passed"
    )
    return why if last is None else f"{why}; its last attempt: {last.message or last.code}"
