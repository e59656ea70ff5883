"""A merchant's status, and the facts behind the trouble."""

from typing import NamedTuple

from pos_gateway.admission.breaker import BreakerState


class MerchantStatus(NamedTuple):
    """A merchant's status."""

    merchant_id: str
    in_flight: int
    waiting: int
    #: The concurrency limit (0: paused, or not known yet), and the limit in force.
    agreed: int
    limit: int
    #: Less than a fair share of slot-time was used at the last judgement: orders start at once.
    light: bool
    #: A call hangs or timed out, the breaker is half-open, or the provider is silent.
    silent: bool
    breaker: BreakerState
    #: Orders wait for the merchant, not for a slot.
    troubled: bool
    #: Orders parked by this process.
    parked: int
    #: Orders are not sent, for want of something at the gateway: a key, or a valid credential.
    unsent: bool = False


class Symptoms(NamedTuple):
    """A merchant's status, and the facts behind the status. Times are seconds."""

    status: MerchantStatus
    #: Seconds since the breaker was closed, and until the breaker half-opens; 0 where not applicable.
    breaker_for: float
    half_opens_in: float
    #: The breaker's window: calls, failed calls by result, and late calls.
    calls: int
    timed_out: int
    failed: int
    overloaded: int
    late: int
    #: The last call's time, and the usual time; None: not known.
    latest: float | None
    usual: float | None
    #: The last failed call's error code, and the seconds since the call's end.
    error: str | None
    error_ago: float
    #: Key of the quota awaited by the next order; None: no quota.
    quota: str | None
