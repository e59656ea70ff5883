"""Writes the story's orders as a worker does: claims, outcomes, events and attempts, in batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import on_submission
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.topology import DEAD_KEY
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.events.outbox import Outbox
from pos_gateway.ledger import attempts
from pos_gateway.ledger.batch import Batch, Claiming, Finishing, Operation, Sending
from pos_gateway.ledger.callback_rules import Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.lease import LEASE, Lease, PeerLeases
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, CallRecord, Claim, Entry, Key, State
from pos_gateway.ledger.writer import Writer
from testkit.story.plot import Call, Part, Plot, Told

#: Most attempts in a transaction, and events that get their positions in one.
_MOST, _POSITIONS = 1000, 5000
#: Accepted orders of which the POS has said more since.
_WITH_CALLBACKS = 20


@dataclass
class Written:
    """What was written, for a test to ask for."""

    in_doubt: list[Key] = field(default_factory=list)
    in_flight: list[Key] = field(default_factory=list)
    retried: list[Key] = field(default_factory=list)
    cancelled: list[Key] = field(default_factory=list)
    with_callbacks: list[Key] = field(default_factory=list)
    #: Failed and expired orders, with the message that a worker dead-letters.
    dead: list[tuple[Key, Message]] = field(default_factory=list)


class _StoryClock:
    """The present moment of the story."""

    def __init__(self, now: float) -> None:
        self.at = now

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


@dataclass(slots=True)
class _Step:
    """One attempt of one order; the last one may not have ended."""

    told: Told
    call: Call | None
    #: How many attempts came before it.
    tries: int
    begins: float


class LedgerRows:
    """Writes orders on one connection.

    Args:
        engine: the database.
        payloads: seals them.
        plot: the story.
    """

    def __init__(self, engine: Engine, payloads: Payloads, plot: Plot) -> None:
        self._engine, self._payloads, self._plot = engine, payloads, plot
        self._writer, self._ledger = Writer(engine, durable=False), Ledger(engine, payloads)
        self._clock = _StoryClock(plot.now)
        self._lease = Lease(LEASE, self._clock)
        self._merchants = {each.id: each for each in plot.merchants}
        self._ticket = 0
        self.written = Written()

    def write(self) -> Written:
        """Write every order, and what followed."""
        beat = self._lease.beating()
        now = self._plot.now
        self._writer.write(lambda cursor: self._writer.sql.beat(cursor, beat, LEASE, now))
        for steps in _chunks(self._steps()):
            self._write(steps)
        cancelled = [each for each in self._plot.orders if each.cancelled]
        for start in range(0, len(cancelled), _MOST):
            self._cancel(cancelled[start : start + _MOST])
        self._writer.close()
        self._call_back()
        self._publish_events()
        return self.written

    def _steps(self) -> list[_Step]:
        steps = []
        for told in self._plot.orders:
            for tries, call in enumerate(told.calls):
                steps.append(_Step(told, call, tries, call.at - call.seconds))
            if told.in_flight:
                begins = max(told.placed_at + 0.05, self._plot.now - 2.0)
                steps.append(_Step(told, None, len(told.calls), begins))
        steps.sort(key=lambda step: step.begins)
        return steps

    def _write(self, steps: Sequence[_Step]) -> None:
        claims = self._run(steps[0].begins, [self._claiming(each) for each in steps])
        unsent = [each for each in claims if not each.sending]
        if unsent:
            sending = [each._replace(endpoint=self._endpoint(each.key)) for each in unsent]
            assert all(self._run(steps[0].begins, [Sending(each) for each in sending]))
            claims = [each._replace(sending=True) for each in claims]
        finishing = [
            self._finishing(step, step.call, claim)
            for step, claim in zip(steps, claims, strict=True)
            if step.call is not None
        ]
        assert all(self._run(self._plot.now, finishing))
        self.written.in_flight += [
            claim.key for step, claim in zip(steps, claims, strict=True) if step.call is None
        ]

    def _claiming(self, step: _Step) -> Claiming:
        order = step.told.order
        key = Key(order.merchant_id, order.order_id)
        self._ticket += 1
        return Claiming(
            key,
            self._ticket,
            True,
            order.deliver_by.timestamp(),
            self._payloads.seal(key, order.source),
            self._endpoint(key),
        )

    def _finishing(self, step: _Step, call: Call, claim: Claim) -> Finishing:
        waited = max(0.001, step.begins - step.told.placed_at) if step.tries == 0 else 0.002
        connect = 0.012 if step.tries == 0 else 0.0
        first_byte = None if isinstance(call.came, str) else call.seconds * 0.9
        record = CallRecord(waited, 0.003, connect, first_byte, call.seconds, call.came)
        order = step.told.order
        message = RawMessage(wire.body_of(order.source), tries=step.tries)
        attempt = Attempt(
            *(order, message), claims=[claim], called=True, call=record, outcome=call.outcome
        )
        decision = on_submission(attempt, datetime.fromtimestamp(call.at, UTC))
        [(_, entry)] = decision.entries
        dead = [each for each in decision.messages if each.routing_key == DEAD_KEY]
        self.written.dead += [(claim.key, each) for each in dead]
        is_last = call is step.told.calls[-1] and not step.told.in_flight
        if is_last and entry.state is State.IN_DOUBT:
            self.written.in_doubt.append(claim.key)
        if is_last and step.tries and entry.state is State.ACCEPTED:
            self.written.retried.append(claim.key)
        return self._sealed(claim, entry)

    def _sealed(self, claim: Claim, entry: Entry) -> Finishing:
        message = None
        if entry.reason is not None:
            sealed = self._payloads.seal_reason(claim.key, entry.reason)
            message = attempts.kept_message(self._payloads, claim.key, entry.reason, sealed)
            entry = replace(entry, reason=sealed)
        return Finishing(claim, entry, attempts.with_outcome(claim, entry, message))

    def _cancel(self, orders: Sequence[Told]) -> None:
        """Cancel requests that their merchants have granted, ten seconds after the order's end."""
        keys = [Key(o.order.merchant_id, o.order.order_id, Action.CANCEL) for o in orders]
        at = [min(self._plot.now, each.calls[-1].at + 10) for each in orders]
        claiming = []
        for key, told in zip(keys, orders, strict=True):
            self._ticket += 1
            until = told.order.deliver_by.timestamp()
            claiming.append(Claiming(key, self._ticket, True, until, None, self._endpoint(key)))
        finishing = []
        for claim, ends in zip(self._run(min(at), claiming), at, strict=True):
            event = dehydrated(claim.key, Kind.CANCELLED)
            call, outcome = CallRecord(0.004, 0.003, 0.0, 0.2, 0.25, 200), Kind.CANCELLED
            entry = Entry(State.CANCELLED, ends, 1, event=event, outcome=outcome, call=call)
            finishing.append(self._sealed(claim, entry))
        assert all(self._run(self._plot.now, finishing))
        self.written.cancelled = [Key(each.merchant_id, each.order_id) for each in keys]

    def _call_back(self) -> None:
        """What POSes have said of the last accepted orders."""
        of_late = [
            each
            for each in self._plot.orders[-50 * _WITH_CALLBACKS :]
            if each.part is Part.HEALTHY
            and each.calls
            and each.calls[-1].outcome.kind is Kind.ACCEPTED
            and not each.cancelled
            and not each.in_flight
        ][-_WITH_CALLBACKS:]
        received = []
        for number, told in enumerate(of_late):
            key = Key(told.order.merchant_id, told.order.order_id)
            owners = {key.merchant_id: (self._endpoint(key),)}
            for place, meaning in enumerate(
                (Lifecycle.PREPARING, Lifecycle.READY)[: 1 + number % 2]
            ):
                said = Callback(
                    f"{key.order_id}-{meaning}",
                    meaning,
                    key.order_id,
                    occurred_at=told.calls[-1].at + 1.0 + place,
                )
                received.append(Received("rest", key.merchant_id, said, owners))
            self.written.with_callbacks.append(key)
        ledger = CallbackLedger(self._engine, self._payloads, dehydrated, self._clock)
        ledger.apply(received)
        ledger.close()

    def _publish_events(self) -> None:
        """Give all events their positions, as if each was published."""
        outbox = Outbox(self._engine)
        term, _ = outbox.look()
        leading = outbox.take(self._lease.id, term.epoch)
        assert leading is not None
        while True:
            after = outbox.assign(leading, _POSITIONS)
            assert after is not None
            is_done = after.assigned == leading.assigned
            leading = replace(after, published=after.assigned)
            if is_done:
                break
        outbox.resign(leading)
        outbox.close()

    def _run(self, now: float, operations: Sequence[Operation]) -> list[Any]:
        if not operations:
            return []

        def write(cursor: Any) -> list[Any]:
            return Batch(
                self._writer.sql,
                cursor,
                lease=self._lease,
                abandoned={},
                others=lambda _: PeerLeases(self._clock),
                now=now,
            ).run(operations)

        results: list[Any] = self._writer.write(write)
        return results

    def _endpoint(self, key: Key) -> str:
        merchant: Merchant = self._merchants[key.merchant_id]
        return merchant.endpoint


def _chunks(steps: Iterable[_Step]) -> Iterator[list[_Step]]:
    """In their order, at most a minute and ``_MOST`` together, and no order twice."""
    chunk: list[_Step] = []
    seen: set[str] = set()
    for step in steps:
        order_id = step.told.order.order_id
        is_full = len(chunk) >= _MOST or (chunk and step.begins - chunk[0].begins > 5.0)
        if is_full or order_id in seen:
            yield chunk
            chunk, seen = [], set()
        chunk.append(step)
        seen.add(order_id)
    if chunk:
        yield chunk
