"""POSes that take an order in steps; ``testkit/steps/pos.py`` has the facts."""

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pos_gateway.adapters.steps import steps_of
from pos_gateway.domain.outcome import Kind
from pos_gateway.transport.exchange import Reply, Request
from testkit.steps.pos import Act, Asked, Manner, PosOrder, StepPos
from tests.simulation.callbacks import STAGES
from tests.simulation.pos import Pos, Record, as_reply

#: The acts that take an order's steps, by the steps' names, and the acts that undo the steps.
STEPS = {"create": Act.CREATE, "pay": Act.PAY, "print": Act.PRINT}
UNDO = {Act.CANCEL: "create", Act.REFUND: "pay"}


@dataclass
class SteppedRecord(Record):
    """An order with its facts.

    ``status``: "accepted" once every step stands, "cancelled" when nothing stands, else "pending".
    """

    made: PosOrder = field(kw_only=True)
    #: What the POS has not decided yet.
    undecided: Act | None = None
    #: The gateway has undone a step.
    is_undone: bool = False

    @property
    def known_as(self) -> str:
        return self.made.id

    @property
    def wrongs(self) -> list[str]:
        counts = {"paid": len(self.made.payments), "printed": self.made.prints}
        return [f"it was {act} {count} times" for act, count in counts.items() if count > 1]


@dataclass(frozen=True)
class _Character:
    """How a POS treats an order: what becomes of each act, and what is odd about it."""

    acts: dict[Act, str]
    #: Minor units on top of the order's total.
    adds: int
    undoes_twice: bool
    forgets: bool


@dataclass
class SteppedPos(Pos):
    """A POS whose adapter has steps. A key's first reply is repeated, whatever happened since."""

    def __post_init__(self) -> None:
        self._steps = steps_of(self.adapter)
        self._facts = StepPos(self.scheduler.monotonic)
        self._treats: dict[str, _Character] = {}
        self._first: dict[tuple[Act, str], Reply] = {}

    def order_of(self, request: Request) -> str:
        asked = self._asked(request)
        if asked.act is Act.CREATE:
            return str(json.loads(request.body or b"")["reference"])
        record = self._record(asked)
        return asked.name if record is None else record.order_id

    def step_of(self, request: Request) -> str | None:
        act = self._asked(request).act
        if act in UNDO:
            return f"-{UNDO[act]}"
        if act is Act.CREATE:
            return ""
        return next((name for name, each in STEPS.items() if each is act), None)

    def complete(self, order_id: str) -> None:
        """Have the merchant's people take the steps that are left."""
        for record in self._records(order_id):
            record.by_hand, record.undecided, made = True, None, record.made
            if not made.payments:
                self._do("POST", f"/orders/{made.id}/payments", {"amount": made.total})
            if not made.prints:
                self._do("POST", f"/orders/{made.id}/prints", {"payment": made.payments[0].id})
            self._settle(record)

    def end(self, order_id: str) -> None:
        """Have the merchant's people cancel and refund the order."""
        for record in self._records(order_id):
            record.by_hand, record.undecided = True, None
            self._do("POST", f"/orders/{record.made.id}/cancel", {"refund": True})
            self._settle(record)

    def decide(self, record: Record) -> None:
        assert isinstance(record, SteppedRecord)
        if record.undecided is None or self.scheduler.time < record.decides_at:
            return
        if record.decides_as == "cancelled" and record.undecided is Act.PAY:
            self._do("POST", f"/orders/{record.made.id}/refund", {})
        elif record.decides_as == "cancelled":
            self._do("POST", f"/orders/{record.made.id}/cancel", {"refund": True})
        record.undecided = None
        self._settle(record)

    def _is_known(self, request: Request) -> bool:
        asked = self._asked(request)
        records = self._records(self.order_of(request))
        if asked.act is Act.CREATE or not records:
            return bool(records)
        made = records[-1].made
        return bool(
            made.payments if asked.act is Act.PAY else asked.act is Act.PRINT and made.prints
        )

    def _handle(self, request: Request) -> Reply:
        asked, key = self._asked(request), request.headers.get("Idempotency-Key")
        order_id, act = self.order_of(request), asked.act
        record = self._record(asked)
        character = self._character(order_id)
        if record is not None:
            self.decide(record)
            is_gone = record.status == "cancelled" and record.is_undone and character.forgets
            if is_gone and act not in STEPS.values():
                return (
                    as_reply(200, {"orders": []}) if act is Act.FIND else _refusal(404, "unknown")
                )
        if key is not None and (act, key) in self._first:
            return self._first[act, key]
        manner = character.acts.get(act, "")
        is_new = act is Act.CREATE or (record is not None and not record.made.is_cancelled)
        if act in (Act.PAY, Act.PRINT) and record is not None and record.is_undone:
            record.too_late.append(act)
        if act in STEPS.values() and is_new and manner in ("refused", "forbidden"):
            self.scheduler.say(f"POS: {act} of {order_id} is {manner}")
            return _refusal(422 if manner == "refused" else 403, "sold_out")
        if act in UNDO and record is not None and self._is_kept(act, record, character):
            return _refusal(409, "too_late")
        undecided = record.undecided if record is not None else None
        if is_new and manner == "pending":
            undecided = act
        self._facts.adds = character.adds
        self._facts.undecided = frozenset(() if undecided is None else (undecided,))
        reply = self._do(
            request.method, _target(request), request.body, key or f"{len(self.records)}"
        )
        if reply.status < 300 and act is not Act.FIND and act is not Act.SHOW:
            self._has_done(act, order_id, undecided if manner == "pending" else None)
            if key is not None:
                self._first[act, key] = reply
        return reply

    def _has_done(self, act: Act, order_id: str, undecided: Act | None) -> None:
        """Note what follows from a new fact."""
        if act is Act.CREATE:
            made = self._facts.made(order_id)[-1]
            self.records.append(SteppedRecord(order_id, "pending", made=made))
            self.callbacks.says(order_id, Kind.ACCEPTED)
        record = self._records(order_id)[-1]
        record.undecided = undecided
        record.is_undone |= act in UNDO
        self.scheduler.say(
            f"POS has done {act} of {order_id}{' and decides later' * bool(undecided)}"
        )
        if undecided is not None:
            random = self.scheduler.random
            record.decides_at = self.scheduler.time + random.uniform(0, 60)
            record.decides_as = random.choice(("accepted", "accepted", "cancelled"))
            self.callbacks.will_decide(self, record)
        self._settle(record)
        if act is Act.CREATE:
            self.callbacks.may_end(order_id, lambda: self.end(order_id))
        elif act is Act.CANCEL:
            self.callbacks.says(order_id, Kind.CANCELLED)
        elif record.status == "accepted":
            self.callbacks.says(order_id, *STAGES)

    def _settle(self, record: SteppedRecord) -> None:
        made = record.made
        money = [each for each in made.payments if not each.is_refunded]
        if made.is_cancelled and not money:
            record.status = "cancelled"
            return
        taken = {"create": not made.is_cancelled, "pay": bool(money), "print": bool(made.prints)}
        whole = all(taken[step.name] for step in self._steps) and record.undecided is None
        record.status = "accepted" if whole else "pending"

    def _is_kept(self, act: Act, record: SteppedRecord, character: _Character) -> bool:
        """Whether the POS refuses to undo this."""
        payments = record.made.payments
        before = record.made.is_cancelled
        if act is Act.REFUND:
            before = bool(payments) and all(each.is_refunded for each in payments)
        return not character.undoes_twice if before else character.acts[act] == "refused"

    def _character(self, order_id: str) -> _Character:
        if order_id not in self._treats:
            random = self.scheduler.random
            create = ["done"] * 7 + ["refused", "pending", "pending"]
            later = ["done"] * 6 + ["refused", "forbidden", "pending"]
            acts = {Act.CREATE: random.choice(create)}
            for step in self._steps[1:]:
                acts[STEPS[step.name]] = random.choice(later if step.look_up else later[:-1])
            acts |= {act: "done" if random.random() < 0.75 else "refused" for act in UNDO}
            adds = 153 if random.random() < 0.1 else 0
            self._treats[order_id] = _Character(
                acts, adds, random.random() < 0.5, random.random() < 0.2
            )
        return self._treats[order_id]

    def _records(self, order_id: str) -> list[SteppedRecord]:
        return [each for each in self.of(order_id) if isinstance(each, SteppedRecord)]

    def _record(self, asked: Asked) -> SteppedRecord | None:
        """The first record that a request is about; CREATE is about none."""
        by_our_id = asked.act is Act.FIND
        for each in self.records:
            assert isinstance(each, SteppedRecord)
            is_it = asked.name == (each.order_id if by_our_id else each.known_as)
            if is_it and asked.act is not Act.CREATE:
                return each
        return None

    def _asked(self, request: Request) -> Asked:
        key = request.headers.get("Idempotency-Key", "")
        asked = self._facts.asked(request.method, _target(request), key, request.body or b"")
        assert asked is not None, request.url
        return asked

    def _do(self, method: str, target: str, body: object, key: str = "") -> Reply:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        asked = self._facts.asked(method, target, key, content or b"")
        assert asked is not None, target
        return as_reply(*self._facts.do(asked, Manner()))


def _target(request: Request) -> str:
    url = urlsplit(request.url)
    return f"{url.path.removeprefix('/pos')}?{url.query}"


def _refusal(status: int, code: str) -> Reply:
    return as_reply(status, {"error": {"code": code, "message": ""}})
