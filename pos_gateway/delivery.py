"""One order, from start to finish. Read this file first.

An order arrives on the queue (``worker/``), admission lets it start (``admission/``), a green
thread runs ``Delivery.attempt``, and ``tasks.py`` decides what follows from the Outcome: an
event, another attempt later, or a dead letter.
"""

import logging
from dataclasses import dataclass, replace
from time import perf_counter

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.auth.authenticator import Authenticator
from pos_gateway.clock import SYSTEM_CLOCK, Clock
from pos_gateway.errors import UnknownMerchant
from pos_gateway.merchant import Merchant
from pos_gateway.merchants.directory import Directory
from pos_gateway.order import Order
from pos_gateway.outcome import Contact, Kind, Outcome, Reason
from pos_gateway.telemetry import metrics
from pos_gateway.transport.deadline import Patience
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply, Request, Send, Transport

log = structlog.get_logger(__name__)

#: How loud an attempt is: what everybody hopes for is not news, what a person may have to look at is.
_LEVELS = {
    Kind.ACCEPTED: logging.DEBUG,
    Kind.FAILED: logging.WARNING,
    Kind.IN_DOUBT: logging.WARNING,
}


@dataclass(frozen=True, slots=True)
class History:
    """What earlier attempts left behind; it travels with the message."""

    #: Attempts that were made before this one.
    attempts: int = 0
    #: An earlier attempt may have reached the POS without our knowing.
    in_doubt: bool = False
    #: The POS has the order and had not decided: it is asked, not sent the order again.
    pending: bool = False


class Delivery:
    """Sends orders to their merchants. Safe from any number of green threads at once."""

    def __init__(
        self,
        *,
        directory: Directory,
        adapters: dict[str, Adapter],
        transport: Transport,
        default_concurrency: int,
        default_timeout: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._adapters = adapters
        self._transport = transport
        self._authenticator = Authenticator(transport, clock)
        self._default_concurrency = default_concurrency
        self._default_timeout = default_timeout
        self._clock = clock

    def attempt(self, order: Order, history: History, patience: Patience | None = None) -> Outcome:
        """Try once to get the order to its merchant's POS; every failure is an Outcome.

        Args:
            order: what to deliver.
            history: what earlier attempts left behind.
            patience: how much of the merchant's time limit it has; lets others end it before.

        Raises:
            SQLAlchemyError: the merchant cannot be looked up at present.
        """
        left = (order.deliver_by - self._clock.now()).total_seconds()
        if left <= 0:
            return too_late(history)
        try:
            merchant = self._directory.get(order.merchant_id)
        except UnknownMerchant as error:
            return Outcome(Kind.FAILED, Reason.of("unknown_merchant", error))
        if merchant.paused:
            return Outcome(Kind.RETRY, Reason.of("paused", "the merchant is paused"))
        adapter = self._adapters.get(merchant.adapter)
        if adapter is None:
            return Outcome(Kind.FAILED, Reason.of("unknown_adapter", merchant.adapter))

        started = perf_counter()
        try:
            send = self._send(merchant, left, patience or Patience())
            outcome = self._exchange(adapter, order, merchant, history, send)
        except Misconfigured as error:
            outcome = Outcome(Kind.FAILED, Reason.of(error.code, error))
        except NotSent as error:
            outcome = Outcome(Kind.RETRY, Reason.of(error.code, error), contact=_contact(error))
        except NoValidReply as error:
            outcome = Outcome(Kind.IN_DOUBT, Reason.of(error.code, error), contact=_contact(error))
        if outcome.reason is not None and outcome.reason.code == "http_410":
            self._pause(merchant)
        seconds = perf_counter() - started
        metrics.attempts.labels(outcome.kind, merchant.provider or "none").observe(seconds)
        log.log(
            _LEVELS.get(outcome.kind, logging.INFO),
            "delivery.attempted",
            order_id=order.order_id,
            merchant_id=order.merchant_id,
            provider=merchant.provider,
            attempt=history.attempts + 1,
            outcome=outcome.kind,
            # A rejection is in the POS's own words, which may repeat the customer's.
            reason=outcome.reason.code
            if outcome.reason and outcome.kind is not Kind.REJECTED
            else None,
            seconds=round(seconds, 4),
        )
        return outcome

    def _pause(self, merchant: Merchant) -> None:
        """The POS says that it is gone: no order is to be lost on it until somebody has looked."""
        log.error("merchant.gone", merchant_id=merchant.id, provider=merchant.provider)
        try:
            self._directory.pause(merchant.id)
        except SQLAlchemyError as error:
            log.error("merchant.not_paused", merchant_id=merchant.id, error=str(error))

    def _exchange(
        self, adapter: Adapter, order: Order, merchant: Merchant, history: History, send: Send
    ) -> Outcome:
        """Against sending twice: after doubt a POS that knows no keys is asked, or left alone."""
        if history.in_doubt and adapter.guarantee is Guarantee.BLIND:
            return Outcome(Kind.IN_DOUBT, Reason.of("blind", "this POS cannot be asked"))
        ask_first = history.in_doubt and adapter.guarantee is Guarantee.QUERYABLE
        if history.pending or ask_first:
            known = adapter.look_up(order, merchant, send)
            if known is not None:
                return _heard(known)
        return _heard(adapter.submit(order, merchant, send))

    def _send(self, merchant: Merchant, left: float, patience: Patience) -> Send:
        """One deadline over all that the adapter sends (it may ask first, then create)."""
        longest = merchant.request_timeout or self._default_timeout
        seconds = min(longest * patience.part, left)
        until = self._clock.monotonic() + seconds

        def left_of_it() -> float:
            return max(0.001, until - self._clock.monotonic())

        def send(request: Request) -> Reply:
            return self._transport.send(
                request,
                key=f"{merchant.id} {merchant.auth.fingerprint}",
                connections=merchant.max_concurrency or self._default_concurrency,
                seconds=left_of_it(),
                patience=patience,
                identity=merchant.auth.tls,
            )

        return self._authenticator.sending(merchant, send, left_of_it)


def _heard(outcome: Outcome) -> Outcome:
    """How the merchant fared, where the adapter says nothing about it: there was a reply."""
    if outcome.contact is not Contact.NONE:
        return outcome
    makes_no_sense = outcome.kind is Kind.IN_DOUBT
    return replace(outcome, contact=Contact.FAILED if makes_no_sense else Contact.ANSWERED)


def _contact(error: TransportError) -> Contact:
    if error.code == "local":
        return Contact.NONE  # this machine lacks something, and no merchant is to blame
    took_too_long = error.code in ("timeout", "cut_short")
    return Contact.TIMED_OUT if took_too_long else Contact.FAILED


def too_late(history: History) -> Outcome:
    """What becomes of an order that cannot be delivered in time any more."""
    if history.in_doubt or history.pending:
        return Outcome(
            Kind.IN_DOUBT,
            Reason.of("expired_in_doubt", "deliver_by has passed; the POS may have the order"),
        )
    return Outcome(Kind.EXPIRED, Reason.of("expired", "deliver_by has passed"))
