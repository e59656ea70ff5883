"""A worker: the gateway's own parts on the simulated broker, database and POSes."""

import json
from math import inf
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.cancel import Cancel
from pos_gateway.attempt.commit import Commit
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import CANCEL_IN_DOUBT
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.attempt.spine import Spine
from pos_gateway.attempt.submit import Submit
from pos_gateway.attempt.unreadable import Unreadable
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.repeating import Repeating
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.vault import Vault
from pos_gateway.worker.in_flight import OrdersInFlight
from pos_gateway.worker.request import OrderRequest, RequestState
from pos_gateway.worker.retries import Retries
from tests.simulation.adapters import ADAPTERS
from tests.simulation.broker import Broker, Channel, Publisher, Stored
from tests.simulation.clock import MachineClock
from tests.simulation.database import Database
from tests.simulation.pos import TIME_LIMIT, Transport
from tests.simulation.scheduler import Process, Scheduler, Task


class Directory:
    """Merchants' records as one worker knows them: each edit some time after it was made."""

    def __init__(
        self, scheduler: Scheduler, merchants: dict[str, list[tuple[float, Merchant]]]
    ) -> None:
        self._scheduler, self._merchants = scheduler, merchants
        self._behind = scheduler.random.uniform(0, 1.5)

    def get(self, merchant_id: str) -> Merchant:
        merchant = self.peek(merchant_id)
        if merchant is None:
            raise UnknownMerchant(merchant_id)
        return merchant

    def peek(self, merchant_id: str) -> Merchant | None:
        seen = self._scheduler.time - self._behind
        edits = self._merchants.get(merchant_id, ())
        return next((each for at, each in reversed(edits) if at <= seen), None)

    def provider_of(self, _merchant_id: str) -> None:
        """No merchant has a provider here."""


class Unpublished:
    """Events stay in the database: tests/events tests their publishing."""

    def wake(self) -> None:
        """There is a new event."""


class SimulatedCommit(Commit):
    """Notes the orders of which the POS has not said whether it cancelled them."""

    unanswered: set[str]

    def __call__(self, decision: Decision, *, timeout: float = inf) -> bool:
        if decision.outcome.reason == CANCEL_IN_DOUBT:
            self.unanswered |= {claim.key.order_id for claim, _ in decision.entries}
        return super().__call__(decision, timeout=timeout)


class SimulatedGateway(Gateway):
    """The gateway with the same parts, except for those that reach out of the process."""

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        directory: Any,
        transport: Any,
        publisher: Any,
        clock: MachineClock,
        secret_keys: str,
    ) -> None:
        self.clock = clock
        payloads = Payloads(Vault(secret_keys))
        self.publisher = publisher
        self.directory = directory
        self.adapters = ADAPTERS
        self.ledger = Ledger(database.engine, payloads, clock=clock)
        hydration = Hydration(payloads)
        repeating = Repeating(database.engine, self.ledger, hydration)
        self.caller = Caller(
            directory=directory,
            transport=transport,
            ledger=self.ledger,
            default_concurrency=10,
            default_timeout=TIME_LIMIT,
            clock=clock,
        )
        parts: dict[str, Any] = {
            "directory": directory,
            "adapters": self.adapters,
            "caller": self.caller,
            "ledger": self.ledger,
            "clock": clock,
        }
        commit = SimulatedCommit(
            ledger=self.ledger,
            events=Unpublished(),  # type: ignore[arg-type]
            directory=directory,
            store=self.store,
        )
        commit.unanswered = transport.unanswered
        self.spine = Spine(
            submit=Submit(**parts),
            cancel=Cancel(**parts),
            unreadable=Unreadable(
                caller=self.caller, ledger=self.ledger, repeating=repeating, clock=clock
            ),
            commit=commit,
            ledger=self.ledger,
            repeating=repeating,
            directory=directory,
        )


class Request(OrderRequest):
    """A message as the dispatcher has it."""

    def __init__(self, channel: Channel, stored: Stored) -> None:
        self._channel, self._stored = channel, stored
        message: Message = stored.message
        delivered = SimpleNamespace(
            headers={**message.headers, "id": str(id(self))},
            body=message.body,
            delivery_info={"routing_key": message.routing_key},
        )
        name = message.headers["task"]
        action = Action.CANCEL if name == wire.CANCEL_ORDER else Action.SUBMIT
        task = SimpleNamespace(name=name, action=action)
        consumer = SimpleNamespace(event_dispatcher=None)
        super().__init__(delivered, json.loads(message.body), task, consumer, 0.0)
        self.expired = False

    #: Whether its connection is lost.
    is_stale = property(  # type: ignore[assignment]
        lambda self: not self._channel.is_open, lambda _self, _is_stale: None
    )

    @property
    def record(self) -> dict[str, Any]:
        """The order, or the cancel request."""
        record: dict[str, Any] = json.loads(self.raw.body)[0][0]
        return record

    def become(self, again: Message, received: float) -> None:
        super().become(again, received)
        self.expired = False

    def acknowledge(self) -> None:
        self.tell_acknowledged()
        self.enter(RequestState.ACKNOWLEDGED)

    def tell_acknowledged(self) -> None:
        self._channel.acknowledge(self._stored)

    def requeue(self) -> None:
        self._channel.requeue(self._stored)


class _NoAdmission:
    """No attempt has a slot."""

    class limits:  # noqa: N801
        slots = 200


class Worker:
    """One process. Stands in for the dispatcher, without admission."""

    def __init__(
        self,
        name: str,
        *,
        scheduler: Scheduler,
        broker: Broker,
        database: Database,
        directory: Directory,
        transport: Transport,
        publisher: Publisher,
        clock: MachineClock,
        secret_keys: str,
    ) -> None:
        self.clock = clock
        self.process = Process(name)
        self._scheduler, self._broker = scheduler, broker
        self._parts: tuple[Any, ...] = (
            *(scheduler, database, directory, transport, publisher, clock, secret_keys),
        )
        #: Green threads that process a message.
        self.delivering: list[Task] = []
        self._retries = Retries(3)
        self._channel: Channel | None = None
        self.ledger: Ledger | None = None
        self._is_stopping = False
        scheduler.spawn(self.process, "worker", self._run)

    def _run(self) -> None:
        self._gate = SimulatedGateway(*self._parts)
        self._in_flight = OrdersInFlight(
            self._gate.spine,
            _NoAdmission,  # type: ignore[arg-type]
            self._retries,
            pool=None,
            now=lambda: self._scheduler.time,
            wake=lambda: None,
            ended=lambda *_: None,
        )
        self._gate.ledger._stopping = _Beats(self._scheduler, self._broker, self._gate.ledger)  # type: ignore[assignment]
        self._gate.ledger.start()
        self.ledger = self._gate.ledger
        while not self._is_stopping:
            self._scheduler.sleep(self._scheduler.random.uniform(0.05, 2))
            if not self._broker.is_away and not self._is_stopping:
                self._channel = Channel(self._broker, self.process)
                self._consume(self._channel)
        while self.delivering:
            self._scheduler.sleep(0.1)
        self._gate.ledger.close()
        self._broker.cut(self.process)
        self._scheduler.kill(self.process)

    def stop(self) -> None:
        """Consume nothing more, finish orders in flight, and end."""
        self._is_stopping = True
        self._retries.close()
        if self._channel is not None:
            self._channel.drain()
        for request in self._retries.drop():
            request.requeue()

    def _consume(self, channel: Channel) -> None:
        while (stored := channel.take()) is not None:
            self._scheduler.say(f"takes {stored}")
            self._offer(Request(channel, stored), str(stored))
        self._retries.drop()  # the broker redelivers them

    def _offer(self, request: Request, name: str) -> None:
        deliver_by = Order.parse(request.record).deliver_by if "items" in request.record else None
        if deliver_by is not None and not request.raw.resolve:
            request.expired = deliver_by <= self.clock.now()
        self._scheduler.spawn(self.process, name, lambda: self._deal_with(request, name))

    def _deal_with(self, request: Request, name: str) -> None:
        task = self._scheduler.current
        self.delivering.append(task)
        try:
            has_slot = request.action is Action.SUBMIT or self._scheduler.random.random() < 0.5
            self._attempt(request, may_call=has_slot)
            if request.state is RequestState.ARRIVED:
                self._scheduler.sleep(self._scheduler.random.uniform(0, 2))
                self._attempt(request, may_call=True)
        except GreenletExit:
            self._scheduler.say("KILLED green thread")
            # Also when it was settled: an unacknowledged message is redelivered some day.
            request.requeue()
            raise
        finally:
            self.delivering.remove(task)
        if request.state is RequestState.ACKNOWLEDGED:
            return
        if request.again is None or request.is_stale or self._is_stopping:
            request.requeue()
            return
        again = request.again
        request.enter(RequestState.RETRY_WAITING)
        self._scheduler.say(f"keeps {name}")
        self._retries.keep(request, again, self._scheduler.time)
        self._scheduler.sleep(again.delay)
        for due in self._retries.due(self._scheduler.time):
            self._offer(due, name)  # type: ignore[arg-type]

    def _attempt(self, request: Request, *, may_call: bool) -> None:
        request.attempt = Attempt(
            None,
            request.raw,
            request.action,
            expired=request.expired,
            may_call=may_call,
        )
        request.enter(RequestState.IN_FLIGHT)
        self._in_flight.run(request)


class _Beats:
    """A ledger's renewals: every second, except for hours without any work."""

    def __init__(self, scheduler: Scheduler, broker: Broker, ledger: Ledger) -> None:
        self._scheduler, self._broker, self._ledger = scheduler, broker, ledger
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        self._scheduler.sleep(seconds)
        broker = self._broker
        while not (
            self._is_set or broker.ready or broker.unacknowledged or self._ledger._abandoned
        ):
            soonest = min(broker.held_back, default=self._scheduler.time + 60)
            self._scheduler.sleep(max(seconds, soonest - self._scheduler.time))
        return self._is_set
