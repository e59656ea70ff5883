"""One call on a merchant's POS: one deadline, one claim, and every failure as an Outcome."""

import logging
from collections.abc import Callable
from math import inf
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.poison import Alone
from pos_gateway.auth.authenticator import Authenticator, credentials_of
from pos_gateway.auth.grant_store import GrantStore
from pos_gateway.auth.tokens import PosToken
from pos_gateway.cache.refresh_ahead import Shared
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import MENDED_HERE, CallResult, Kind, Outcome, Reason
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import CallRecord, Claim, ClaimResult, Ended, Key, Suspected
from pos_gateway.merchants.directory import Directory
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.line import Trace
from pos_gateway.transport.errors import (
    Misconfigured,
    NotBegun,
    NotSent,
    TransportError,
)
from pos_gateway.transport.exchange import Reply, Request, Send, Transport
from pos_gateway.transport.traced import traced

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Tracing

log = structlog.get_logger(__name__)

#: Outcomes for an operator to look at are warnings.
_LEVELS = {Kind.FAILED: logging.WARNING, Kind.IN_DOUBT: logging.WARNING}

#: An adapter's part of a call: sends requests to the POS, and returns the outcome.
Converse = Callable[[Send], Outcome]

#: Minimum seconds for a reply, or half of the time limit if shorter: with less, no request is sent.
LEAST = 1.0
#: A dispensable look in a call gets a part of the time left, by this divisor: two leave more than half.
LOOK = 4


class Caller:
    """Calls POSes. Safe for any number of green threads at once."""

    def __init__(
        self,
        *,
        directory: Directory,
        transport: Transport,
        ledger: Ledger,
        default_concurrency: int,
        default_timeout: float,
        tokens: Shared[PosToken] | None = None,
        grants: GrantStore | None = None,
        tracing: "Tracing | None" = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._transport = transport
        self.exchange = transport.send if tracing is None else traced(transport.send, tracing)
        self.ledger = ledger
        self.authenticator = Authenticator(transport, clock, tokens, grants)
        self.default_concurrency = default_concurrency
        self._default_timeout = default_timeout
        self.clock = clock
        #: Held by the attempt that runs alone of all suspects, so that the next death has one culprit.
        self._suspects = Lock()

    def time_limit(self, merchant: Merchant) -> float:
        """Seconds for a call on this merchant."""
        return merchant.request_timeout or self._default_timeout

    def now(self) -> float:
        """Unix time."""
        return self.clock.now().timestamp()

    def redacted(self, merchant: Merchant, outcome: Outcome) -> Outcome:
        """The outcome without the merchant's secrets."""
        return self.authenticator.redacted(merchant, outcome)

    def prepare(self, merchant: Merchant) -> None:
        """Obtain the credentials that a call needs, an access token included.

        Raises:
            TransportError: the credentials cannot be obtained.
        """
        self.authenticator.prepare(merchant, self.time_limit(merchant))

    def reach(self, merchant: Merchant) -> None:
        """Connect to the merchant's POS as a call does, without sending a request.

        Raises:
            TransportError: the POS cannot be called.
        """
        self._transport.reach(merchant.base_url, identity=merchant.auth.tls)

    def asking(self, merchant: Merchant) -> Send:
        """A ``send`` for looks at the merchant's POS without an order. With the merchant's credentials."""
        auth, seconds = credentials_of(merchant), self.time_limit(merchant)

        def exchanged(request: Request) -> Reply:
            return self._transport.send(
                request,
                key=f"{merchant.id} {merchant.auth.fingerprint}",
                connections=merchant.max_concurrency or self.default_concurrency,
                seconds=min(seconds, request.seconds),
                identity=merchant.auth.tls,
            )

        def ask(request: Request) -> Reply:
            credentials = self.authenticator.headers(auth, request, seconds)
            reply = exchanged(request.adding(credentials))
            if reply.status != 401:
                return reply
            others = self.authenticator.instead(auth, credentials, seconds)
            return reply if others is None else exchanged(request.adding(others))

        return Send(ask)

    def claim(
        self, attempt: Attempt[Any], key: Key, *, unless_suspect: bool = False, **options: Any
    ) -> ClaimResult:
        """Claim a row for the attempt, as ``Ledger.claim`` does.

        Args:
            attempt: gets the claim.
            key: the row's.
            unless_suspect: return Suspected for a suspect while a different suspect runs alone, whose end is not
                awaited. From the first claimed suspect on, the attempt runs alone of all suspects.
            options: options of ``Ledger.claim``.
        """
        waits = unless_suspect and attempt.alone is None
        found = self._claimed(attempt, key, unless_suspect=waits, **options)
        if isinstance(found, Suspected) and self._suspects.acquire(blocking=False):
            attempt.alone = Alone(self._suspects)
            # Only now: a waiting suspect would be left by the worker killed by the first suspect, too. The first
            # suspect's end is queued, and written with this claim at the latest.
            found = self._claimed(attempt, key, **options)
            attempt.alone.end_soon()  # the claim may have taken as long
        return found

    def _claimed(self, attempt: Attempt[Any], key: Key, **options: Any) -> ClaimResult:
        """Keep the answer at once: else the claim of a killed green thread is lost until the lease ends."""
        found: ClaimResult = self.ledger.claim(key, **options)
        if isinstance(found, Claim):
            attempt.claims.append(found)
        elif isinstance(found, Ended):
            attempt.ended = found
        return found

    def call(
        self, merchant: Merchant, attempt: Attempt[Any], converse: Converse, *, left: float = inf
    ) -> Outcome:
        """Call the merchant's POS within the time limit, or ``left`` seconds if fewer.

        Ledger time counts toward the limit.
        """
        attempt.call_began = perf_counter()
        attempt.claim_seconds = attempt.call_began - attempt.began
        try:
            outcome = self._heard(merchant, attempt, converse, left)
        except Exception as error:  # noqa: BLE001  (a bug of ours, or of an adapter)
            trace = Trace.of(error, messages=False)
            log.error("delivery.crashed", order_id=attempt.claims[0].key.order_id, trace=trace)
            kind = Kind.IN_DOUBT if attempt.sent else Kind.FAILED
            outcome = Outcome(kind, Reason.of("internal_error", type(error).__name__))
        outcome = self.authenticator.redacted(merchant, outcome)
        if outcome.merchant_gone:
            self._pause(merchant)
        replied = attempt.context.replied
        attempt.call = CallRecord(
            attempt.waited,
            attempt.claim_seconds,
            attempt.context.connect_seconds,
            None if replied is None else replied - attempt.call_began,
            perf_counter() - attempt.call_began,
            attempt.came,
        )
        metrics.attempted(outcome.kind, merchant.provider, attempt.call.seconds)
        log_attempt(merchant, attempt, outcome)
        return outcome

    def _heard(
        self, merchant: Merchant, attempt: Attempt[Any], converse: Converse, left: float
    ) -> Outcome:
        try:
            outcome = converse(_Conversation(self, merchant, attempt, left))
        except LedgerUnavailable as error:
            attempt.came = "database"
            return Outcome(Kind.RETRY, Reason.of("database", error))
        except TransportError as error:
            attempt.came = error.code
            return _failed(error, attempt)
        failpoints.reach("reply")
        if outcome.contact is not CallResult.NONE or not attempt.answered:
            return outcome
        # The adapter has set no call result, but there was a reply.
        makes_no_sense = outcome.kind is Kind.IN_DOUBT
        return outcome.after(CallResult.FAILED if makes_no_sense else CallResult.ANSWERED)

    def _pause(self, merchant: Merchant) -> None:
        """Pause a merchant whose POS says the merchant is gone, so that no order fails there in the meantime.

        The POS may be the merchant's from before an operator's edit: then the record stays.
        """
        try:
            is_paused = self._directory.pause(merchant)
        except SQLAlchemyError as error:
            log.error("merchant.not_paused", merchant_id=merchant.id, error=str(error))
            return
        if is_paused:
            log.error("merchant.gone", merchant_id=merchant.id, provider=merchant.provider)
        else:
            log.warning("merchant.was_gone", merchant_id=merchant.id, provider=merchant.provider)


class _Conversation(Send):
    """The requests of a call: with credentials, under the attempt's claim and a single deadline.

    An adapter may look the order up first, then create the order.

    Raises:
        NotSent: there are no credentials.
    """

    __slots__ = ("_attempt", "_auth", "_caller", "_has_begun", "_least", "_merchant", "_until")

    def __init__(
        self, caller: Caller, merchant: Merchant, attempt: Attempt[Any], left: float
    ) -> None:
        self._caller, self._merchant, self._attempt = caller, merchant, attempt
        self._auth = credentials_of(merchant)
        limit = caller.time_limit(merchant) * attempt.time_limit_share
        self._until = caller.clock.monotonic() + min(limit, left)
        self._least = min(LEAST, limit / 2)
        self._has_begun = False

    def __call__(self, request: Request) -> Reply:
        if not self._has_begun:  # the adapter's first writes and waits are not the POS's
            self._has_begun = True
            if self._attempt.on_call is not None:
                self._attempt.on_call()
        authenticator = self._caller.authenticator
        credentials = authenticator.headers(self._auth, request, self._left())
        reply = self._exchanged(request.adding(credentials))
        # A POS may refuse a look for want of a permission, whatever the token.
        if reply.status == 401 and not request.is_look:
            others = authenticator.instead(self._auth, credentials, self._left())
            reply = reply if others is None else self._exchanged(request.adding(others))
        self._attempt.changed |= request.changes
        return reply

    def _exchanged(self, request: Request) -> Reply:
        merchant, attempt, caller = self._merchant, self._attempt, self._caller
        seconds = self._left()
        if seconds < self._least:  # the reply would come too late, and leave the order in doubt
            raise _NoTimeLeft("timeout", f"{seconds:.3g} s were left for the POS's reply")
        reply = caller.exchange(
            request,
            key=f"{merchant.id} {merchant.auth.fingerprint}",
            connections=merchant.max_concurrency or caller.default_concurrency,
            seconds=min(seconds / LOOK, request.seconds) if request.is_look else seconds,
            identity=merchant.auth.tls,
            fence=self._fence,
            context=attempt.context,
        )
        attempt.answered, attempt.came = True, reply.status
        return reply

    def _fence(self) -> None:
        failpoints.reach("byte.first")
        if not self._caller.ledger.holds(self._attempt.claims[0]):
            raise NotSent("fenced", "this worker was held up; another one may have the order")
        self._attempt.sent = True

    def _left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._until - self._caller.clock.monotonic())


class _NoTimeLeft(NotSent):
    """The gateway's own work took the call's time; the merchant knows nothing of the delay."""


def _failed(error: TransportError, attempt: Attempt[Any]) -> Outcome:
    """The outcome of a call ended by a failed exchange."""
    reason = Reason.of(error.code, error)
    match error:
        case Misconfigured():
            return Outcome(Kind.FAILED, reason)
        case _NoTimeLeft():
            contact = CallResult.ANSWERED if attempt.answered else CallResult.NONE
            return Outcome(Kind.RETRY, reason, contact=contact)
        case NotSent():
            return Outcome(Kind.RETRY, reason, contact=_contact(error))
        case _:
            return Outcome(Kind.IN_DOUBT, reason, contact=_contact(error))


def log_attempt(merchant: Merchant, attempt: Attempt[Any], outcome: Outcome) -> None:
    """Log a call as one wide event."""
    reason, call, claim = outcome.reason, attempt.call, attempt.claims[0]
    assert call is not None  # noqa: S101  (the call is over)
    is_ours = (
        reason is not None and reason.code in MENDED_HERE and outcome.kind is not Kind.REJECTED
    )
    level = logging.WARNING if is_ours else _LEVELS.get(outcome.kind, logging.INFO)
    log.log(
        level,
        "delivery.attempted",
        action=str(claim.key.action),
        order_id=claim.key.order_id,
        merchant_id=claim.key.merchant_id,
        provider=merchant.provider,
        adapter=merchant.adapter,
        attempt=claim.history.attempts + 1,
        outcome=str(outcome.kind),
        contact=str(outcome.contact),
        # A rejection quotes the POS, which may repeat personal data.
        reason=reason.code if reason and outcome.kind is not Kind.REJECTED else None,
        waited_seconds=call.waited,
        claim_seconds=call.claim,
        connect_seconds=call.connect,
        first_byte_seconds=call.first_byte,
        seconds=call.seconds,
        trace_id=attempt.trace_id,
    )


#: Why nothing was done: the ledger will soon have the order's outcome.
LEASED_ELSEWHERE = Reason("held", "another worker has it")
#: Codes of faults of this machine, for which no merchant is to blame.
_HERE = ("local", "look_ups", "fenced", "secret_key", "database")


def _contact(error: TransportError) -> CallResult:
    if isinstance(error, NotBegun) or error.code in _HERE:
        return CallResult.NONE
    took_too_long = error.code in ("timeout", "cut_short")
    return CallResult.TIMED_OUT if took_too_long else CallResult.FAILED
