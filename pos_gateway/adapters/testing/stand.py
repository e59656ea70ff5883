"""The author's part of the suite, and the way of an order to the POS."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from unittest import SkipTest

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.adapters.steps import Step, steps_of
from pos_gateway.adapters.testing.broken import demand
from pos_gateway.adapters.testing.judge import malformed
from pos_gateway.adapters.testing.orders import GUEST, MERCHANT_ID, order_of
from pos_gateway.adapters.testing.pos import CountsOrders, HasClock, Made, Pos
from pos_gateway.adapters.testing.walk import Walker
from pos_gateway.adapters.testing.wire import Mishap, Wire
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply

#: Attempts until an order has to be decided.
_ATTEMPTS = 6
#: Seconds between two attempts, by the POS's clock.
_PAUSE = 30.0
_OPEN = (Kind.IN_DOUBT, Kind.RETRY, Kind.PENDING)


class Run(NamedTuple):
    """An order taken to a POS."""

    walker: Walker
    wire: Wire
    pos: Pos
    #: Findings against the outcomes of steps.
    odd: list[str]


class Stand:
    """The suite's knowledge of an adapter. A subclass gives everything without a default."""

    #: The adapter.
    adapter: ClassVar[Adapter]
    #: A merchant's record, without id and adapter; with a base_url, where the POS has a rule for the path.
    record: ClassVar[Mapping[str, Any]] = {}
    #: The merchant's catalog: the POS's ids by sku.
    catalog: ClassVar[Mapping[str, str]] = {}
    #: A valid item at the POS, ``sku`` at least, and a modifier without a price.
    item: ClassVar[Mapping[str, Any]] = {"sku": "burger"}
    modifier: ClassVar[Mapping[str, Any]] = {"sku": "onions", "name": "no onions"}
    #: The fields of every order, where the POS wants more than the suite's.
    order: ClassVar[Mapping[str, Any]] = {}
    #: The POS's refusals of an order: each reply, and the code of the reason.
    refusals: ClassVar[Sequence[tuple[Reply, str]]] = ()
    #: The POS's replies without a word about the order ("busy"), by name.
    no_answers: ClassVar[Mapping[str, Reply]] = {}

    def pos(self, order: Order) -> Pos:
        """A POS without orders. A menu, if the POS has a menu, has the order's items."""
        raise NotImplementedError("give the suite a POS: def pos(self, order): return …")

    # For the tests

    @cached_property
    def placed_at(self) -> datetime:
        """When all orders of one test were placed: during the test, however long the suite runs."""
        return datetime.now(UTC).replace(microsecond=0)

    @property
    def merchant(self) -> Merchant:
        """The merchant."""
        return self.merchant_of({})

    def merchant_of(self, changed: Mapping[str, Any]) -> Merchant:
        """The merchant with changed fields. Raises InvalidMerchant."""
        own = {"id": MERCHANT_ID, "adapter": self.adapter.name}
        record = {"base_url": "https://pos.example.com/api", **self.record, **own, **changed}
        return Merchant.parse(record).with_catalog(self.catalog)

    def an_order(self, number: int = 1, **fields: Any) -> Order:
        """An order; the same number is the same order id."""
        return order_of(number, self.placed_at, self.item, **{**self.order, **fields})

    @property
    def steps(self) -> tuple[Step, ...]:
        """The adapter's steps."""
        return steps_of(self.adapter)

    def run(
        self,
        order: Order,
        mishaps: Mapping[int, Mishap] | None = None,
        *,
        pos: Pos | None = None,
        merchant: Merchant | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Run:
        """Make an order ready to be taken to a POS.

        Args:
            order: the order.
            mishaps: by the number of the request.
            pos: None: a fresh one.
            merchant: None: the suite's.
            meanwhile: called during each request.
        """
        pos = pos or self.pos(order)
        wire, odd = Wire(pos, mishaps or {}, meanwhile), list[str]()
        secrets = self._secrets(order)

        def heard(step: Step, called: str, outcome: Outcome | None) -> None:
            odd.extend(f"{step.name}: {each}" for each in malformed(outcome, called, secrets))

        walker = Walker(self.adapter, order, merchant or self.merchant, wire, heard)
        return Run(walker, wire, pos, odd)

    def _secrets(self, order: Order) -> tuple[str, ...]:
        guest = tuple(GUEST.values()) if order.customer is not None else ()
        return (*self.merchant.auth.secrets, *guest)

    def delivered(self, run: Run, *, asks: bool = False) -> Outcome:
        """The outcome once the order is decided, or after some attempts.

        Args:
            run: the order.
            asks: look the order up after a doubt, also where its key could be sent again.
        """
        return self._repeated(run, lambda number: self.forward(run, asks=asks and number > 0))

    def forward(self, run: Run, *, asks: bool = False) -> Outcome:
        """The outcome of an attempt. An order that cannot be undone is left to an operator."""
        outcome = run.walker.forward(asks=asks)
        if run.walker.is_left:
            outcome = replace(outcome, kind=Kind.IN_DOUBT, for_operator=True)
        return outcome

    def cancelled(self, run: Run) -> Outcome:
        """The outcome of a cancellation, after some attempts."""
        return self._repeated(run, lambda _: run.walker.cancel())

    def _repeated(self, run: Run, do: Callable[[int], Outcome]) -> Outcome:
        for number in range(_ATTEMPTS):
            outcome = do(number)
            if outcome.kind not in _OPEN or outcome.for_operator:
                break
            if isinstance(run.pos, HasClock):
                run.pos.passes(_PAUSE)
        return outcome

    def healthy(self, number: int = 1) -> Run:
        """An order accepted without a mishap, from which every test starts."""
        __tracebackhide__ = True
        run = self.run(self.an_order(number))
        outcome = self.delivered(run)
        seen = (
            [f"{outcome}, after {self.requests(run)}"] if outcome.kind is not Kind.ACCEPTED else []
        )
        demand(
            "An order that the POS takes is accepted.",
            [*seen, *run.odd],
            "run the adapter against your simulator; are record, item and order such that it takes them?",
        )
        return run

    def requests(self, run: Run) -> str:
        """The requests of a run in a finding."""
        return ", ".join(f"{each.method} {each.url}" for each in run.wire.requests) or "no request"

    def made(self, run: Run) -> Sequence[Made] | None:
        """The POS's facts of the order; None: the POS cannot say."""
        return run.pos.made(run.walker.order) if isinstance(run.pos, CountsOrders) else None

    @property
    def is_blind(self) -> bool:
        """Whether a doubt about some step is left to a person."""
        return any(step.guarantee is Guarantee.BLIND for step in self.steps)


def attempt(do: Callable[[], Outcome | None]) -> tuple[Outcome | None, str]:
    """The outcome, and a forbidden exception in place of the outcome."""
    try:
        return do(), ""
    except TransportError:
        return Outcome(Kind.IN_DOUBT), ""
    except Exception as error:  # noqa: BLE001  (an adapter may raise anything)
        return None, f"{type(error).__name__}: {error}"


def without(problem: str) -> SkipTest:
    """The exception of a test without its preconditions; pytest shows the test as skipped."""
    return SkipTest(problem)


def numbered(run: Run) -> Iterator[tuple[int, str]]:
    """The requests of a run: number, and name in a finding."""
    for number, each in enumerate(run.wire.requests):
        yield number, f"request {number + 1} ({each.method} {each.url.partition('?')[0]})"
