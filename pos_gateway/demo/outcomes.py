"""What order backends know of their orders: which were confirmed, and each one's outcome."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pos_gateway.demo.record import ENQUEUE, EVENT, POS, RunRecord, Times
from pos_gateway.domain.outcome import Kind

#: Events after which the backend waits for nothing more. An order in doubt is an operator's.
CONCLUDING = frozenset(
    f"order.{each}"
    for each in (
        *(Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED),
        Kind.IN_DOUBT,
    )
)
#: The only outcome that another may follow: more has become known.
_IN_DOUBT = Kind.IN_DOUBT.value
#: Ends after which the merchant must not have the order.
_NOT_MADE = frozenset({"rejected", "expired", "failed"})
#: Seconds for which an order is remembered after its concluding event: an event may be repeated or
#: contradicted, and what its merchant says of it comes some time after it happened.
_LINGER = 30.0


def class_of(merchant_id: str) -> str:
    """``hang`` of ``hang-7``."""
    return merchant_id.partition("-")[0]


@dataclass(slots=True)
class _Order:
    merchant_class: str
    at: float
    confirmed: bool = False
    arrived: bool = False
    made: int = 0
    #: Its outcomes, each once.
    reported: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcomes:
    """Orders of backends that share one view of them. Moments are of the wall clock.

    What is timed is returned as class and seconds, for the run's live display.
    """

    began: float
    #: Merchants tell what comes to them, so that what events say can be held against it.
    merchants_tell: bool = True
    repeated: int = 0
    #: Entries of the merchants' records that could not be followed.
    unseen: int = 0
    #: Why ``EVENTS`` or ``FEED`` could be followed no more before the run was over.
    lost: dict[str, str] = field(default_factory=dict)
    #: Orders that were taken and that nothing was heard of since.
    open: int = 0
    _orders: dict[str, _Order] = field(default_factory=dict)
    _concluded: deque[tuple[float, str]] = field(default_factory=deque)
    #: Orders by class, and by class and outcome.
    sent: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    times: dict[str, dict[str, Times]] = field(
        default_factory=lambda: {what: defaultdict(Times) for what in (ENQUEUE, POS, EVENT)}
    )
    _late: Times = field(default_factory=Times)
    _last: float = 0.0
    _doubled: list[str] = field(default_factory=list)
    _phantom: list[str] = field(default_factory=list)
    _contradicted: list[str] = field(default_factory=list)
    _denied: list[str] = field(default_factory=list)

    def placed(self, order_id: str, merchant_id: str, now: float, due: float) -> None:
        """The order is about to be submitted; it was due at that moment."""
        order = self._orders[order_id] = _Order(class_of(merchant_id), now)
        self.sent[order.merchant_class] += 1
        self._late.add(due - self.began, max(0.0, now - due))
        self._last = max(self._last, now)

    def confirmed(self, order_id: str, now: float) -> tuple[str, float]:
        """``submit`` has returned: from now on the order must come to an end."""
        order = self._orders[order_id]
        order.confirmed = True
        self.open += not order.reported
        return self._timed(ENQUEUE, order, now)

    def seen(self, order_id: str, creates: int, at: float) -> tuple[str, float] | None:
        """Its merchant says that it has come (``creates`` is 0), or how often it was made."""
        order = self._orders.get(order_id)
        if creates > 1 and order_id not in self._doubled:
            self._doubled.append(order_id)
        if order is None:
            return None
        order.made = max(order.made, creates)
        if order.arrived:
            return None
        order.arrived = True
        return self._timed(POS, order, at)

    def take_event(self, event: Mapping[str, Any], now: float) -> tuple[str, float] | None:
        """An event has come; what was timed if it concludes one of our orders."""
        self._forget(now)
        order = self._orders.get(event["order_id"])
        if order is None or event["type"] not in CONCLUDING:
            return None
        outcome = event["type"].removeprefix("order.")
        if outcome in order.reported:
            self.repeated += 1
            return None
        counts = self.counts[order.merchant_class]
        counts[outcome] += 1
        order.reported.append(outcome)
        if len(order.reported) > 1:
            counts[order.reported[-2]] -= 1
            if order.reported[-2] != _IN_DOUBT:
                self._contradicted.append(event["order_id"])
            return None
        self.open -= order.confirmed
        self._concluded.append((now, event["order_id"]))
        return self._timed(EVENT, order, now)

    def record(self, now: float) -> RunRecord:
        """Everything, when there is nothing more to wait for."""
        self._forget(float("inf"))
        missing = [order_id for order_id, order in self._orders.items() if order.confirmed]
        outcomes = {name: +counts for name, counts in self.counts.items()}
        for order in self._orders.values():
            what = "missing" if order.confirmed else "unconfirmed"
            outcomes.setdefault(order.merchant_class, Counter())[what] += 1
        return RunRecord(
            began=self.began,
            last=self._last,
            ended=now,
            times=self.times,
            late=self._late,
            outcomes={name: dict(counts) for name, counts in outcomes.items()},
            missing=missing,
            doubled=self._doubled,
            phantom=self._phantom,
            contradicted=self._contradicted,
            denied=self._denied,
            repeated=self.repeated,
            unseen=self.unseen,
            lost=self.lost,
        )

    def _timed(self, what: str, order: _Order, now: float) -> tuple[str, float]:
        self.times[what][order.merchant_class].add(order.at - self.began, now - order.at)
        return order.merchant_class, now - order.at

    def _forget(self, now: float) -> None:
        while self._concluded and self._concluded[0][0] < now - _LINGER:
            _, order_id = self._concluded.popleft()
            order = self._orders.pop(order_id)
            outcome = order.reported[-1]
            if self.merchants_tell and outcome == "accepted" and not order.made:
                self._phantom.append(order_id)
            if order.made and outcome in _NOT_MADE:
                self._denied.append(order_id)
