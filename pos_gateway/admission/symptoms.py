"""What is known of one merchant: its status, and what shows why it is in trouble."""

from typing import NamedTuple

from pos_gateway.admission.breaker import BreakerState


class MerchantStatus(NamedTuple):
    """A merchant's status."""

    merchant_id: str
    in_flight: int
    waiting: int
    #: Its concurrency limit (0: it is paused, or not known yet), and the limit in force.
    agreed: int
    limit: int
    #: It used less than its fair share of slot-time when last judged: it starts at once.
    light: bool
    #: A call of its hangs or timed out, its breaker is half-open, or its provider is silent.
    silent: bool
    breaker: BreakerState
    #: Its orders wait for the merchant itself, not for a slot.
    troubled: bool
    #: Its orders that this process has parked.
    parked: int
    #: Its orders are not sent, for want of something at the gateway: a key, or a valid credential.
    unsent: bool = False


class Symptoms(NamedTuple):
    """A merchant's status, and what shows why. Times are seconds."""

    status: MerchantStatus
    #: For how long its breaker has not been closed, and until it half-opens; 0 where it does not apply.
    breaker_for: float
    half_opens_in: float
    #: The breaker's window: calls, of them failed ones by their result, and late ones.
    calls: int
    timed_out: int
    failed: int
    overloaded: int
    late: int
    #: The last call's time, and its usual time; None: not known.
    latest: float | None
    usual: float | None
    #: The last failed call's error code, and how long ago it ended.
    error: str | None
    error_ago: float
