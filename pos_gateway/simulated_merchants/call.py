"""What happens to one request to a merchant."""

import asyncio
import time
from enum import Enum

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.behaviour import FAULTS, Behaviour, Stage, Treatment
from pos_gateway.simulated_merchants.connection import Exchange
from pos_gateway.simulated_merchants.orders import ReceivedOrder
from pos_gateway.simulated_merchants.records import (
    STATUSES_KEPT,
    TRACES_KEPT,
    Records,
    SimulatedMerchant,
)
from pos_gateway.simulated_merchants.replies import CountedReply

_HEALTHY = Behaviour(Treatment.ACCEPT)


class CallKind(Enum):
    """What is asked of a merchant."""

    CREATE = "create"
    LOOKUP = "lookup"
    CANCEL = "cancel"


class SimulatedCall:
    """One request to a merchant, from its arrival until it is answered or the client leaves."""

    __slots__ = (
        "_action",
        "_due",
        "_exchange",
        "_external_id",
        "_hanging",
        "_level",
        "_order",
        "_order_id",
        "_records",
        "_rest",
        "_tallies",
        "_timer",
        "merchant",
    )

    def __init__(
        self,
        records: Records,
        hanging: "set[SimulatedCall]",
        exchange: Exchange,
        merchant: SimulatedMerchant,
        action: CallKind,
        order_id: str,
    ) -> None:
        self.merchant = merchant
        self._records = records
        self._hanging = hanging
        self._exchange = exchange
        self._action = action
        self._order_id = order_id
        self._order: ReceivedOrder | None = None
        self._external_id = 0  # of the order that this call has made
        self._rest: CountedReply | None = None  # of a reply that has begun
        self._timer: asyncio.TimerHandle | None = None
        self._due = time.monotonic()  # from the arrival on
        self._level = records.levels[merchant.group]
        self._tallies = (
            records.totals,
            merchant.counts,
            records.profiles[merchant.profile.name],
        )

    def begin(self) -> None:
        """Write the request down and treat it as the merchant's profile says."""
        self._exchange.on_gone = self._abandon
        self._arrive()
        self._follow(self._pick())

    def release(self) -> None:
        """Treat a call that hangs by the profile that its merchant has now."""
        self._go_on(self._pick())

    def _arrive(self) -> None:
        action = self._action
        self._level.change(1)
        for counts in self._tallies:
            counts.arrived()
            match action:
                case CallKind.CREATE:
                    counts.requests += 1
                case CallKind.LOOKUP:
                    counts.lookups += 1
                case CallKind.CANCEL:
                    counts.cancels += 1
        if action is CallKind.CREATE:
            body = self._exchange.body
            self._order = self._records.arrived(self.merchant, self._order_id, body)
            self._order.open += 1
            if self._exchange.traceparent and len(self._order.traces) < TRACES_KEPT:
                self._order.traces.append(self._exchange.traceparent.decode("latin-1"))
        self._records.changed()

    def _pick(self) -> Behaviour:
        profile = self.merchant.profile
        mix = profile.create if self._action is CallKind.CREATE else profile.lookups
        return mix.pick(self.merchant.chance)

    def _follow(self, behaviour: Behaviour) -> None:
        if behaviour.makes_order:
            self._make(behaviour)
        if behaviour.kind is Treatment.HANG and behaviour.stage is Stage.REPLY:
            self._hang(behaviour)
            return
        delay = behaviour.latency.draw(self.merchant.chance)
        self._due += delay
        if delay > 0:
            self._timer = asyncio.get_running_loop().call_later(delay, self._finish, behaviour)
        else:
            self._finish(behaviour)

    def _make(self, behaviour: Behaviour) -> None:
        order = self._order
        if order is None or self._external_id or (order.creates and self.merchant.profile.keyed):
            return
        decided_after = behaviour.decided_after if behaviour.kind is Treatment.PENDING else 0.0
        pending = float("inf") if decided_after is None else decided_after
        for counts in self._tallies:
            counts.creates += 1
        self._external_id = self._records.made(self.merchant, self._order_id, order, pending)
        self._records.changed()

    def _hang(self, behaviour: Behaviour) -> None:
        self._hanging.add(self)
        if behaviour.hangs_for is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(behaviour.hangs_for, self._go_on, _HEALTHY)

    def _go_on(self, behaviour: Behaviour) -> None:
        self._stop_waiting()
        self._due = time.monotonic()
        if self._rest is None:
            self._follow(behaviour)
        else:  # what has begun can only be ended
            self._answer(self._rest)

    def _finish(self, behaviour: Behaviour) -> None:
        self._records.lateness.note(time.monotonic() - self._due)
        self._timer = None  # it holds this call: without the cycle, both go at once
        match behaviour.kind:
            case Treatment.RESET:
                self._end("reset")
                self._exchange.reset()
            case Treatment.HANG:
                reply = self._reply(behaviour)
                is_head = behaviour.stage is Stage.HEAD
                self._send(reply, reply.data.index(b"\n") + 1 if is_head else len(reply.data) - 1)
                self._hang(behaviour)
            case Treatment.DRIP:
                self._drip(self._reply(behaviour), behaviour.byte_every)
            case _:
                self._answer(self._reply(behaviour))

    def _answer(self, reply: CountedReply) -> None:
        self._end(reply.status)
        self._exchange.answer(reply)

    def _send(self, reply: CountedReply, number: int) -> CountedReply:
        """Send the first bytes of a reply; the rest is kept, and returned."""
        self._exchange.send(reply.data[:number])
        self._rest = CountedReply(reply.status, reply.data[number:])
        return self._rest

    def _drip(self, reply: CountedReply, every: float) -> None:
        self._timer = None
        if len(reply.data) == 1:
            self._answer(reply)
        else:
            rest, loop = self._send(reply, 1), asyncio.get_running_loop()
            self._timer = loop.call_later(every, self._drip, rest, every)

    def _abandon(self) -> None:
        self._stop_waiting()
        self._end("gone")

    def _stop_waiting(self) -> None:
        self._hanging.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: str) -> None:
        self._level.change(-1)
        for counts in self._tallies:
            counts.ended(status)
        if self._order is not None:
            self._order.open -= 1
            if len(self._order.statuses) < STATUSES_KEPT:
                self._order.statuses.append(status)
        self._records.changed()

    def _reply(self, behaviour: Behaviour) -> CountedReply:
        standing = behaviour.standing_reply
        if standing is not None and behaviour.kind in FAULTS:
            return standing
        if self._action is CallKind.CREATE:
            return self._reply_to_create(behaviour)
        order = self._records.orders.find(self.merchant.id, self._order_id)
        if order is None or not order.creates:
            return replies.NOT_FOUND
        if self._action is CallKind.CANCEL:
            order.cancelled = True
        return replies.order_reply(200, order.external_id, order.state())

    def _reply_to_create(self, behaviour: Behaviour) -> CountedReply:
        order = self._order
        assert order is not None
        if behaviour.kind is Treatment.CONFLICT or not order.creates:
            assert behaviour.standing_reply is not None  # everything else makes the order
            return behaviour.standing_reply
        state = order.state()
        if state == "pending":
            return replies.PENDING
        if self._external_id:
            return replies.order_reply(201, self._external_id, state)
        return replies.order_reply(200, order.external_id, state)
