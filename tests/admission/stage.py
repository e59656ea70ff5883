"""An admission whose time the test hands in, with verbs for what happens to it."""

from dataclasses import replace
from math import inf
from typing import Any

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.breaker import MINIMUM, BreakerState
from pos_gateway.admission.health import Transition
from pos_gateway.admission.lane import Call
from pos_gateway.admission.latency import LEAST
from pos_gateway.admission.limits import AdmissionLimits, QuotaTerms, Terms
from pos_gateway.admission.symptoms import MerchantStatus
from pos_gateway.domain.outcome import CallResult

START = "start"


class Stage:
    """An admission that keeps the calls by merchant."""

    def __init__(
        self,
        limit: int | None = 2,
        provider: str | None = None,
        *,
        in_fleet: bool = False,
        **limits: Any,
    ) -> None:
        self.terms = Terms(limit, provider) if limit is not None else None
        #: Requests in any second of each merchant; an order takes one.
        self.per_second: float | None = None
        self.announced: list[Transition] = []
        self.short: list[str] = []
        self.admission: Admission[str] = Admission(
            AdmissionLimits(**{"slots": 4, "max_waiting": 3, **limits}),
            self.terms_of,
            announce=self.announced.append,
            on_short=self.short.append,
            in_fleet=in_fleet,
        )
        self.calls: list[Call[str]] = []
        #: Orders that start wait for their claims.
        self.database_stalls = False
        self.now = 0.0

    def terms_of(self, merchant_id: str) -> Terms | None:
        """A merchant ``name@provider`` has that provider."""
        _name, _, provider = merchant_id.partition("@")
        if provider and self.terms is not None:
            return Terms(self.terms.limit, provider)
        if self.per_second is not None and self.terms is not None:
            return replace(self.terms, quotas=(QuotaTerms(merchant_id, self.per_second),))
        return self.terms

    def offer(
        self,
        merchant_id: str,
        ticket: str = "o",
        *,
        within: float = inf,
        is_look_up: bool = False,
    ) -> object:
        decision = self.admission.offer(
            merchant_id, ticket, self.now, self.now + within, is_look_up=is_look_up
        )
        if isinstance(decision, Call):
            self._start(decision)
            return START
        return decision

    def offers(self, merchant_id: str, number: int) -> list[object]:
        return [self.offer(merchant_id, f"{merchant_id}{n}") for n in range(number)]

    def reply(
        self,
        merchant_id: str,
        *,
        after: float = 0.0,
        contact: CallResult = CallResult.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """The merchant's oldest call returns."""
        self.now += after
        call = next(call for call in self.calls if call.lane.merchant_id == merchant_id)
        self.calls.remove(call)
        self.admission.release(call, self.now, contact, retry_after)

    def answer(self, merchant_id: str, *, after: float) -> None:
        """The merchant answers its only order."""
        self.offer(merchant_id)
        self.reply(merchant_id, after=after)

    def starts(self) -> list[str]:
        """Start every order that may start now; returns their merchants in order."""
        started = []
        while (call := self.admission.next_start(self.now)) is not None:
            started.append(call.ticket)
            self._start(call)
        return started

    def _start(self, call: Call[str]) -> None:
        self.calls.append(call)
        if not self.database_stalls:
            self.admission.began(call, self.now)

    def database_is_back(self) -> None:
        """The orders' claims are durable, and their exchanges begin."""
        self.database_stalls = False
        for call in self.calls:
            self.admission.began(call, self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.admission.tick(self.now)

    def open_circuit(self, merchant_id: str) -> None:
        """It has failed as often as opens its breaker."""
        for _ in range(MINIMUM):
            assert self.offer(merchant_id) == START
            self.reply(merchant_id, contact=CallResult.FAILED)
        assert self.announced[-1].state is BreakerState.OPEN

    def know(self, *merchant_ids: str, seconds: float = 0.1) -> None:
        """They have answered once, after this long, so long ago that those slots do not count."""
        for merchant_id in merchant_ids:
            assert self.offer(merchant_id) == START
        self.now += seconds
        for merchant_id in merchant_ids:
            self.reply(merchant_id)
        self.pass_time(50.0)

    def hang(self, *merchant_ids: str) -> None:
        """They usually answer after 0.1 s, have one order each, and have not answered for 0.5 s."""
        for merchant_id in merchant_ids:
            assert self.offer(merchant_id) == START
        self.pass_time(LEAST)

    def standing(self, merchant_id: str) -> MerchantStatus:
        """The status of a known merchant."""
        standing = self.admission.merchant(merchant_id)
        assert standing is not None
        return standing

    def cut_short(self) -> list[str]:
        """The merchants whose calls are to end now."""
        return [call.lane.merchant_id for call in self.admission.to_cut_short()]
