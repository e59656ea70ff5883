"""Merchants' POSes: their records are the truth that the ledger is checked against."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pos_gateway.adapters.protocol import Adapter, Guarantee
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.states import StepMark
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from tests.simulation.database import Database
from tests.simulation.scheduler import Process, Scheduler, Task

if TYPE_CHECKING:
    from tests.simulation.callbacks import Callbacks

#: The gateway's time limit in seconds, and the longest that a POS takes for a reply.
TIME_LIMIT, LONGEST = 3.0, 6.0


#: A cancel request for an order with this outcome, or from before the order was reopened.
_UNWANTED = """
select 1 from orders cancel join orders submission using (merchant_id, order_id)
where cancel.action = 'cancel' and submission.action = 'submit' and cancel.order_id = ?
  and cancel.state in ('accepted', 'rejected', 'cancelled', 'expired', 'failed')
  and (cancel.state = 'cancelled' or coalesce(cancel.generation, 0) < submission.reopened)"""


@dataclass
class Record:
    """An order at a POS."""

    order_id: str
    status: str
    decides_at: float = 0.0
    decides_as: str = ""
    #: The reply to its create, which is repeated for its key.
    first: tuple[int, dict[str, str]] = (0, {})
    #: People have ended, or completed, the order at the POS.
    by_hand: bool = False
    #: Steps that the gateway asked for after it had undone one.
    too_late: list[str] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.status in ("accepted", "pending")

    @property
    def known_as(self) -> str:
        """The POS's id."""
        return f"at-{self.order_id}"

    @property
    def wrongs(self) -> list[str]:
        """A sentence for each fact that must not be."""
        return []


@dataclass
class Pos:
    """One merchant's POS. Its behaviour follows from the seed and the order alone."""

    scheduler: Scheduler
    adapter: Adapter
    #: The share of requests that fail while there is trouble.
    trouble: float
    #: It creates orders with a delay.
    is_slow: bool
    callbacks: "Callbacks"
    has_trouble: bool = True
    records: list[Record] = field(default_factory=list)
    _mute: dict[str, bool] = field(default_factory=dict)
    _characters: dict[str, tuple[str, bool, bool, bool]] = field(default_factory=dict)

    def of(self, order_id: str) -> list[Record]:
        """Its orders with this id; more than one is a meal cooked twice."""
        return [record for record in self.records if record.order_id == order_id]

    def goes_wrong(self) -> bool:
        return self.has_trouble and self.scheduler.random.random() < self.trouble

    def longest(self) -> float:
        """Seconds from a request's first byte until it has had its effect, if ever."""
        return self.adapter.limits.longest_reply or TIME_LIMIT

    def handle(self, request: Request) -> Reply:
        """Handle a request at this moment."""
        if self.goes_wrong() and self.scheduler.random.random() < 0.5:
            status = self.scheduler.random.choice((403, 429, 500, 503))
            if status == 500 and self._is_known(request):
                status = 413  # a proxy's, from which the POS's state is unknown
            return Reply(status, {}, b"")
        reply = self._handle(request)
        if self.goes_wrong() and self.scheduler.random.random() < 0.3:
            return Reply(500, {}, b"")
        return reply

    def is_mute(self, request: Request) -> bool:
        """Whether all replies about its order are lost, as long as there is trouble."""
        order_id = self.order_of(request)
        if order_id not in self._mute:
            self._mute[order_id] = self.scheduler.random.random() < 0.1
        return self.has_trouble and self._mute[order_id]

    def order_of(self, request: Request) -> str:
        """The id of the order that a request is about."""
        if request.body is not None:
            return str(json.loads(request.body)["order_id"])
        return urlsplit(request.url).path.split("/")[3]

    def step_of(self, request: Request) -> str | None:
        """The step that must be durable before a request's first byte, with a - the step's undo; empty: the
        first one. None: any state will do.
        """
        return "" if request.method == "POST" and request.body is not None else None

    def _is_known(self, request: Request) -> bool:
        """Whether this is a create of an order that it has."""
        return request.body is not None and bool(self.of(json.loads(request.body)["order_id"]))

    def character(self, order_id: str) -> tuple[str, bool, bool, bool]:
        """How it decides about an order, and whether it cancels it, does so twice, forgets it then."""
        if order_id not in self._characters:
            draw = self.scheduler.random.random
            kinds = ["accepted"] * 6 + ["rejected", "pending", "pending"]
            if self.adapter.guarantee is Guarantee.BLIND:
                kinds = ["accepted"] * 6 + ["rejected"]
            kind = self.scheduler.random.choice(kinds)
            self._characters[order_id] = kind, draw() < 0.7, draw() < 0.5, draw() < 0.4
        return self._characters[order_id]

    def _handle(self, request: Request) -> Reply:
        _, _, *rest = urlsplit(request.url).path.split("/")
        if request.method == "POST" and len(rest) == 1:
            return self._create(json.loads(request.body or b"")["order_id"], request)
        record = next(iter(self.of(rest[1])), None)
        if record is None or (record.status == "cancelled" and self.character(rest[1])[3]):
            return as_reply(404, {})
        self.decide(record)
        if request.method == "GET":
            return self._show(200, record)
        if record.status == "cancelled" and not self.character(record.order_id)[2]:
            return as_reply(409, {"error": {"code": "cancelled_before", "message": ""}})
        if record.status != "cancelled":
            if record.status == "rejected" or not self.character(record.order_id)[1]:
                return as_reply(409, {"error": {"code": "too_late", "message": ""}})
            record.status = "cancelled"
            self.callbacks.happened(record.order_id, "cancelled")
            self.scheduler.say(f"POS cancels {record.order_id}")
        return self._show(200, record)

    def _create(self, order_id: str, request: Request) -> Reply:
        kind, *_ = self.character(order_id)
        known = self.of(order_id)
        if known and request.headers.get("Idempotency-Key") == order_id:
            # As most POSes do, it repeats a key's first reply, whatever the order's state.
            return as_reply(*known[0].first)
        if kind == "rejected":
            self.callbacks.happened(order_id, kind)
            return as_reply(422, {"error": {"code": "sold_out", "message": ""}})
        record = Record(order_id, kind)
        if kind == "pending":
            random = self.scheduler.random
            record.decides_at = self.scheduler.time + random.uniform(0, 60)
            record.decides_as = random.choice(("accepted", "accepted", "rejected"))
            self.callbacks.will_decide(self, record)
        else:
            self.callbacks.happened(order_id, kind)
        self.records.append(record)
        self.scheduler.say(f"POS makes {order_id} {kind}")
        record.first = 202 if kind == "pending" else 201, self._shown(record)
        return as_reply(*record.first)

    def decide(self, record: Record) -> None:
        """Decide about it, if it is time."""
        if record.status == "pending" and self.scheduler.time >= record.decides_at:
            record.status = record.decides_as

    def _show(self, status: int, record: Record) -> Reply:
        return as_reply(status, self._shown(record))

    @staticmethod
    def _shown(record: Record) -> dict[str, str]:
        return {"id": record.known_as, "status": record.status}


class Transport:
    """Between the workers and the POSes, with the guarantees of ``transport/exchange.py``.

    Args:
        is_over: whether some worker would take over claims under a lease.
        violated: called with a request that must not have been sent.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        poses: dict[str, Pos],
        is_over: Callable[[str], bool],
        violated: Callable[[str], None],
    ) -> None:
        self._scheduler, self._database, self._poses = scheduler, database, poses
        self._is_over, self._violated = is_over, violated
        self._far = Process("POS")
        #: Orders whose cancellation POSes never answered: an operator has to ask the merchant.
        self.unanswered: set[str] = set()

    def send(self, request: Request, *, seconds: float, fence: Any, **_: Any) -> Reply:
        scheduler, random = self._scheduler, self._scheduler.random
        pos = self._poses[urlsplit(request.url).hostname or ""]
        path = urlsplit(request.url).path
        until = scheduler.time + seconds
        scheduler.point("connect")
        if pos.goes_wrong() and random.random() < 0.5:
            raise NotSent("refused", "the POS does not listen")
        fence()
        # Until the first byte no other green thread runs.
        self._must_be_sending(pos, request)
        scheduler.say(f"sends {request.method} {path}")
        exchange = _Exchange(scheduler, scheduler.current)
        trouble = pos.goes_wrong()
        scheduler.spawn(
            self._far, "exchange", lambda: self._exchange(pos, request, exchange, trouble)
        )
        if trouble and random.random() < 0.3:
            until = min(until, scheduler.time + random.uniform(0, 1))
        try:
            while exchange.reply is None and scheduler.time < until:
                scheduler.suspend(until - scheduler.time)
        finally:
            exchange.is_over = True
        if exchange.reply is None:
            scheduler.say(f"no reply to {request.method} {path}")
            raise NoValidReply("timeout", "no reply in time")
        scheduler.say(f"reply {exchange.reply.status} to {request.method} {path}")
        scheduler.point("byte.last")
        return exchange.reply

    def _exchange(self, pos: Pos, request: Request, exchange: "_Exchange", trouble: bool) -> None:
        """The exchange at the POS, whether or not the caller still waits."""
        scheduler, random = self._scheduler, self._scheduler.random
        if trouble and random.random() < 0.3:
            return  # it never arrives
        is_slow = pos.is_slow and request.body is not None
        late = (trouble and random.random() < 0.5) or is_slow
        longest = pos.longest()
        scheduler.sleep(random.uniform(0, longest if late else 0.3))
        reply = pos.handle(request)
        scheduler.say(f"POS answers {request.method} with {reply.status}")
        if (trouble and random.random() < 0.5) or pos.is_mute(request):
            return  # the reply is lost
        scheduler.sleep(random.uniform(0, 0.1))
        exchange.arrive(reply)

    def _is_called_back(self, order_id: str) -> bool:
        """Whether a callback has ended the order while a worker that had committed SENDING was held up."""
        query = "select 1 from audit where order_id = ? and what like 'callback.%' and at > ?"
        since = self._scheduler.now().timestamp() - LEASE
        return bool(self._database.rows(query, order_id, since))

    def _must_be_sending(self, pos: Pos, request: Request) -> None:
        """The ledger must have SENDING and the step durable before the first byte."""
        step = pos.step_of(request)
        if step is None:
            return
        order_id = pos.order_of(request)
        columns = "action, state, owner, step, reopened"
        found = self._database.rows(f"select {columns} from orders where order_id = ?", order_id)
        owners = [
            owner
            for action, state, owner, text, reopened in found
            if state == "sending"
            and (action == "submit" or step.startswith("-"))
            and str(StepMark.parse(text, reopened) or "").removeprefix(f"{reopened} ") == step
        ]
        if not owners:
            if not self._is_called_back(order_id):
                self._violated(
                    f"{step or 'create'} of {order_id} is sent while its rows say {found}"
                )
        elif self._is_over(owners[0]):
            self._violated(f"{order_id} is sent while others may take it over")
        if not step.startswith("-") and self._database.rows(_UNWANTED, order_id):
            self._violated(f"{order_id} is sent, and was to be cancelled")


@dataclass
class _Exchange:
    scheduler: Scheduler
    task: Task
    reply: Reply | None = None
    is_over: bool = False

    def arrive(self, reply: Reply) -> None:
        if not self.is_over:
            self.reply = reply
            self.scheduler.wake(self.task)


def as_reply(status: int, record: dict[str, Any]) -> Reply:
    return Reply(status, {}, json.dumps(record).encode())
