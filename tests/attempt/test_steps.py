"""Orders at POSes with steps: events agree with the POS's facts, and no step is taken twice.

The table: an adversary at each step, before the POS's fact, after the fact, or between two steps. The
adapters are ``paid`` (create keyed, pay queryable; cancelling refunds) and ``printed`` (create keyed,
pay queryable, print blind; a refund goes before a cancel; a print cannot be undone).
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.steps import several_steps
from pos_gateway.administration.resolve import Resolution
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.split import Split
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import WAIT, CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.lease import BEAT
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings
from pos_gateway.transport.errors import NoValidReply
from testkit.steps.adapters import PaidAdapter, PrintedAdapter
from testkit.steps.pos import Act, Loses, Manner, StepPos, Truth
from tests.gate import Gate

NO_REPLY = NoValidReply("timeout", "no reply in time")
ADAPTERS = {"paid": PaidAdapter(), "printed": PrintedAdapter()}
#: The acts of each adapter's steps, and of undoing them, in the order in which they are asked.
STEPS = {"paid": (Act.CREATE, Act.PAY), "printed": (Act.CREATE, Act.PAY, Act.PRINT)}
UNDO = {"paid": (Act.CANCEL,), "printed": (Act.REFUND, Act.CANCEL)}
#: Seconds until the order expires: longer than any request takes, and any doubt needs to settle.
LATE = 7200.0

each_step = pytest.mark.parametrize(
    ("adapter", "step"), [(name, step) for name, steps in STEPS.items() for step in steps]
)
#: All steps with a step behind them.
each_step_but_the_last = pytest.mark.parametrize(
    ("adapter", "step"), [(name, step) for name, steps in STEPS.items() for step in steps[:-1]]
)
each_adapter = pytest.mark.parametrize("adapter", ADAPTERS)
each_undo = pytest.mark.parametrize(
    ("adapter", "undo"), [(name, undo) for name, acts in UNDO.items() for undo in acts]
)
with_or_without_its_fact = pytest.mark.parametrize("lost", [Loses.REQUEST, Loses.REPLY])


class Killed(BaseException):
    """Raised where a worker's process, or a green thread, is killed."""


class Worker(Gate):
    """A worker beside a gate: the same database, POS and broker."""

    def __init__(self, gate: Gate) -> None:
        settings = {"database_url": str(gate.database.url), "metrics_port": 0}
        Gateway.__init__(self, Settings.model_validate(settings), gate.hand)
        self.hand, self.pos = gate.hand, gate.pos
        self.said, self.stored = gate.said, gate.stored
        self.adapters.update(ADAPTERS)
        self.caller.exchange = self._exchange  # type: ignore[method-assign, assignment]


class Fleet:
    """Two workers, a POS with steps, and an order."""

    def __init__(self, folder: Path, adapter: str) -> None:
        self.adapter, self.steps = adapter, STEPS[adapter]
        self.one = Gate(folder, self._answer, adapter=adapter)
        self.one.adapters.update(ADAPTERS)
        self.pos = StepPos(self.one.hand.monotonic)
        self.two: Gate = Worker(self.one)
        self.order = self.one.an_order(seconds=LATE)
        #: The workers that live.
        self.living: list[Gate] = [self.two]
        #: Called once, before or after the fact of an act.
        self.before: dict[Act, Callable[[], Any]] = {}
        self.after: dict[Act, Callable[[], Any]] = {}

    def _answer(self, request: Any) -> Any:
        target = request.url.removeprefix("https://pos.example.com")
        key = request.headers.get("Idempotency-Key", "")
        asked = self.pos.asked(request.method, target, key, request.body or b"")
        assert asked is not None, target
        manner = self.pos.arrived(asked)
        self.before.pop(asked.act, int)()
        if manner.loses is Loses.REQUEST:
            return NO_REPLY
        reply = self.pos.do(asked, manner)
        self.after.pop(asked.act, int)()
        return NO_REPLY if manner.loses is Loses.REPLY else reply

    def next(self, step: Act) -> Act:
        return self.steps[self.steps.index(step) + 1]

    def treat(self, act: Act, **manner: Any) -> None:
        self.pos.treat(act, Manner(**manner))

    def refuse(self, act: Act, status: int = 422, code: str = "no", **manner: Any) -> None:
        self.treat(act, refuses=status, code=code, **manner)

    def wait(self, seconds: float) -> None:
        """Let time pass; the workers that live renew their leases."""
        while seconds > 0:
            self.one.wait(min(seconds, BEAT / 2))
            seconds -= BEAT / 2
            for each in self.living:
                each.ledger.catch_up()

    def killed(self, *, process: bool) -> None:
        """Deliver the order to the first worker, and have the worker killed."""
        with pytest.MonkeyPatch.context() as patch:
            if process:  # a killed process writes nothing any more
                patch.setattr(self.one.ledger, "abandon", lambda *_, **__: None)
            else:
                self.living.append(self.one)
            with pytest.raises(Killed):
                self.one.take(self.order)

    def over(self, record: Any = None, action: Action = Action.SUBMIT, **said: Any) -> None:
        """Deliver a message to the second worker until no retry follows."""
        for _ in range(400):
            decision = self.two.take(record or self.order, action, **said)
            if decision.again is not None:
                said = dict(decision.again.headers)
                self.wait(decision.again.delay)
            elif not decision.needs_pos:
                return
        raise AssertionError("it is retried without end")

    def cancelled(self, seconds: float = LATE) -> None:
        """Deliver a cancel request until no retry follows."""
        self.over(self.one.a_request(seconds=seconds), Action.CANCEL)

    @property
    def truth(self) -> Truth:
        return self.pos.truth("o1")

    @property
    def told(self) -> tuple[str, str | None]:
        """The last event: type, and code of the reason."""
        return self.one.recorded()[-1]

    def must_be(self, kind: str, *, standing: bool | None = None) -> None:
        """Require this event last, facts at the POS that agree, and no fact twice.

        Args:
            kind: the event's type.
            standing: of an order in doubt: whether the order stands at the POS; None: either.
        """
        truth = self.truth
        assert self.told[0] == kind, (self.one.recorded(), truth)
        assert max(truth.created, truth.paid, truth.printed) <= 1, truth
        left = (truth.standing, truth.paid - truth.refunded, truth.printed)
        if kind == "accepted":
            assert left == (1, Act.PAY in self.steps, Act.PRINT in self.steps), truth
        elif kind != "in_doubt":
            assert left == (0, 0, 0), truth
        elif standing is not None:
            assert truth.standing == standing, truth
        ends = [each for each, _ in self.one.recorded() if each not in ("in_doubt", "pending")]
        assert len(ends) == (kind != "in_doubt"), ends
        assert self.two.row_state() == kind


@pytest.fixture
def fleet(tmp_path: Path, adapter: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, adapter)
    yield made
    for each in (made.one, made.two):
        each.disconnect()


@pytest.fixture(autouse=True)
def disarmed() -> Any:
    yield
    failpoints.disarm()


def die() -> None:
    raise Killed


def dies_at(failpoint: str, visit: int) -> None:
    """Kill at a visit of a failpoint."""
    left = [visit]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            die()

    failpoints.arm(failpoint, count)


def resolved(step: Act) -> str:
    """The last event of an order in doubt within a step: a print is left to an operator."""
    return "in_doubt" if step is Act.PRINT else "accepted"


@each_adapter
def test_each_step_is_taken_once_and_in_order(fleet: Fleet, adapter: str) -> None:
    fleet.over()
    fleet.must_be("accepted")
    assert list(fleet.truth.requests.items()) == [(step, 1) for step in fleet.steps]
    assert fleet.one.recorded() == [("accepted", None)]


@each_step_but_the_last
@pytest.mark.parametrize("resumed", [False, True])
def test_an_accepted_order_has_the_poss_id_of_the_step_that_brought_it(
    fleet: Fleet, adapter: str, step: Act, resumed: bool
) -> None:
    """No later step says it; whether in the same attempt, or in one that goes on after it."""
    if resumed:
        fleet.refuse(fleet.next(step), 429, times=1)
    fleet.over()
    fleet.must_be("accepted")
    assert fleet.one.rows("select external_id from orders") == [("o1",)]
    assert fleet.one.rows("select external_id from events") == [("o1",)]


# Killed


@each_step
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_within_a_step(
    fleet: Fleet, adapter: str, step: Act, point: str, process: bool
) -> None:
    getattr(fleet, point)[step] = die
    fleet.killed(process=process)
    fleet.over()
    fleet.must_be(resolved(step))
    if step is Act.PRINT:
        assert fleet.truth.printed == (point == "after")
        fleet.over()  # the message comes again
        assert fleet.truth.requests["print"] == 1


@each_step
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_before_a_step_is_sent(fleet: Fleet, adapter: str, step: Act, process: bool) -> None:
    """The row says SENDING: the next worker cannot know that no byte was sent."""
    dies_at("sending.committed", 1 + fleet.steps.index(step))
    fleet.killed(process=process)
    fleet.over()
    fleet.must_be(resolved(step) if process else "accepted")
    assert fleet.truth.requests.get(step, 0) == (step is not Act.PRINT or not process)


@each_step_but_the_last
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_when_a_step_is_done_and_not_durable(
    fleet: Fleet, adapter: str, step: Act, process: bool
) -> None:
    dies_at("step.done", 1 + fleet.steps.index(step))
    fleet.killed(process=process)
    fleet.over()
    fleet.must_be("accepted")


@each_step
def test_killed_after_the_last_outcome_is_durable(fleet: Fleet, adapter: str, step: Act) -> None:
    if step is not fleet.steps[-1]:
        fleet.refuse(fleet.next(step), 429, times=1)
    dies_at("outcome.committed", 1)
    fleet.killed(process=True)
    fleet.over()
    fleet.must_be("accepted")
    assert fleet.truth.requests[step] == 1


@each_step_but_the_last
def test_an_order_between_two_steps_goes_on_there_without_a_look_up(
    fleet: Fleet, adapter: str, step: Act
) -> None:
    """Any worker goes on: the facts of the steps before are in the row."""
    fleet.refuse(fleet.next(step), 429, times=1)
    decision = fleet.one.take(fleet.order)
    assert (decision.outcome.kind, decision.again is not None) == (Kind.RETRY, True)
    assert decision.again is not None
    assert wire.LOOK_UP not in decision.again.headers, "it is urgent, and look-ups have a part only"
    fleet.wait(60)
    fleet.over()
    fleet.must_be("accepted")
    expected = dict.fromkeys(fleet.steps, 1) | {fleet.next(step): 2}
    assert fleet.truth.requests == expected


# Replies that are lost


@each_step
@with_or_without_its_fact
def test_a_lost_reply_is_resolved_by_its_steps_guarantee(
    fleet: Fleet, adapter: str, step: Act, lost: Loses
) -> None:
    fleet.treat(step, loses=lost, times=1)
    fleet.over()
    fleet.must_be(resolved(step), standing=True)
    for earlier in fleet.steps[: fleet.steps.index(step)]:
        assert fleet.truth.requests[earlier] == 1, "an earlier step is never asked again"


@each_step
def test_a_fact_that_comes_late_is_not_made_twice(fleet: Fleet, adapter: str, step: Act) -> None:
    """The fact comes after the first look-up."""
    fleet.treat(step, loses=Loses.REQUEST, times=1)
    waiting: list[Any] = []
    look_up = Act.FIND if step is Act.CREATE else Act.SHOW

    def ask(request: Any) -> Any:
        asked = fleet.pos.asked(
            request.method,
            request.url.removeprefix("https://pos.example.com"),
            request.headers.get("Idempotency-Key", ""),
            request.body or b"",
        )
        if asked is not None and asked.act is step and not waiting:
            waiting.append(asked)
            fleet.after[look_up] = partial(fleet.pos.do, asked, Manner())
        return answer(request)

    answer, fleet.two.pos = fleet.two.pos, ask
    fleet.over()
    fleet.must_be(resolved(step))


@each_step
def test_a_step_that_is_pending_is_looked_up_until_decided(
    fleet: Fleet, adapter: str, step: Act
) -> None:
    if step is Act.PRINT:
        pytest.skip("no POS decides later of a step that cannot be looked up")
    fleet.pos.undecided = frozenset({step})
    decision = fleet.one.take(fleet.order)
    assert (decision.outcome.kind, decision.again is not None) == (Kind.PENDING, True)
    fleet.pos.undecided = frozenset()
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("accepted")
    assert fleet.truth.requests[step] == 1


@each_adapter
def test_a_pos_that_forgets_its_keys_gets_no_second_order(fleet: Fleet, adapter: str) -> None:
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    fleet.pos.keys_kept = 0
    fleet.over()
    fleet.must_be("accepted")


# Expired


@each_step
@with_or_without_its_fact
def test_expired_within_a_step(fleet: Fleet, adapter: str, step: Act, lost: Loses) -> None:
    fleet.treat(step, loses=lost, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.wait(LATE)
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    is_complete = step is fleet.steps[-1] and lost is Loses.REPLY
    end = "accepted" if is_complete else "expired"
    fleet.must_be("in_doubt" if step is Act.PRINT else end)


@each_step_but_the_last
def test_expired_while_a_step_is_taken(fleet: Fleet, adapter: str, step: Act) -> None:
    fleet.after[step] = lambda: fleet.one.wait(LATE)
    fleet.over()
    fleet.must_be("expired")
    assert fleet.truth.requests.get(fleet.next(step), 0) == 0


@each_step_but_the_last
def test_expired_between_two_steps(fleet: Fleet, adapter: str, step: Act) -> None:
    """A slot is needed for undoing, and may not come for hours: without one the order is in doubt."""
    fleet.refuse(fleet.next(step), 429, times=1)
    decision = fleet.one.take(fleet.order)
    assert decision.again is not None
    fleet.wait(LATE)
    headers = dict(decision.again.headers)
    decision = fleet.two.take(fleet.order, expired=True, **headers)
    assert fleet.one.recorded() == [("in_doubt", "http_429")]
    assert decision.again is not None
    fleet.over(**dict(decision.again.headers))
    fleet.must_be("expired")
    assert fleet.one.recorded() == [("in_doubt", "http_429"), ("expired", "http_429")]


@each_step_but_the_last
def test_undone_as_soon_as_it_expires_between_two_steps(
    fleet: Fleet, adapter: str, step: Act
) -> None:
    """Its last attempt before its deadline leaves the undo to the next one."""
    fleet.refuse(fleet.next(step), 429, times=400)
    fleet.over()
    fleet.must_be("expired")
    assert fleet.one.recorded() == [("expired", "http_429")]


@pytest.mark.parametrize("adapter", ["paid"])
@pytest.mark.parametrize("status", [401, 429])
def test_an_order_between_two_steps_that_cannot_be_undone_is_in_doubt_at_its_deadline(
    fleet: Fleet, adapter: str, status: int
) -> None:
    """The credential has ended between the two: neither is the order told nothing, nor is it left."""
    for act in (Act.PAY, Act.CANCEL):
        fleet.refuse(act, status, times=400)
    decision = fleet.two.take(fleet.order)
    assert decision.again is not None
    fleet.wait(LATE)
    decision = fleet.two.take(fleet.order, **dict(decision.again.headers))
    fleet.must_be("in_doubt", standing=True)
    assert decision.again is not None, "its undo is tried again"
    fleet.treat(Act.CANCEL)
    fleet.over(**dict(decision.again.headers))
    fleet.must_be("expired")
    assert [kind for kind, _ in fleet.one.recorded()] == ["in_doubt", "expired"]


@pytest.mark.parametrize("adapter", ["paid"])
def test_an_order_between_two_steps_at_a_paused_merchant_is_an_operators_at_its_deadline(
    fleet: Fleet, adapter: str
) -> None:
    """It gets no slot while its merchant is paused."""
    fleet.refuse(Act.PAY, 429)
    decision = fleet.two.take(fleet.order)
    record = {"id": "m", "adapter": "paid", "base_url": "https://pos.example.com", "paused": True}
    MerchantStore(fleet.one.database).put([Merchant.parse(record)])
    fleet.wait(LATE)
    assert decision.again is not None
    fleet.two.take(fleet.order, expired=True, **dict(decision.again.headers))
    fleet.must_be("in_doubt", standing=True)
    admin = OrderAdmin(fleet.one.database, Payloads(Vault()), fleet.one.hand)
    no_publisher: Any = None
    resolution = Resolution(admin, no_publisher, "kim", Split(), fleet.one.hand)
    resolution.not_sent(admin.find("o1", "m"), None)
    assert fleet.two.row_state() == "cancelled"


# Refused


@each_step
@pytest.mark.parametrize(
    ("status", "kind", "code"), [(422, "rejected", "sold_out"), (403, "failed", "http_403")]
)
def test_refused_at_a_step(
    fleet: Fleet, adapter: str, step: Act, status: int, kind: str, code: str
) -> None:
    fleet.refuse(step, status, "sold_out")
    fleet.over()
    fleet.must_be(kind)
    assert fleet.one.recorded() == [(kind, code)]
    assert fleet.one.dead() == ([code] if kind == "failed" else [])
    for later in fleet.steps[fleet.steps.index(step) + 1 :]:
        assert fleet.truth.requests.get(later, 0) == 0


@each_adapter
def test_an_order_at_another_total_is_undone_and_rejected(fleet: Fleet, adapter: str) -> None:
    fleet.pos.adds = 153
    fleet.over()
    fleet.must_be("rejected")
    assert fleet.one.recorded() == [("rejected", "price_mismatch")]
    assert fleet.truth.paid == 0


@each_step
def test_refused_once_in_doubt_before(fleet: Fleet, adapter: str, step: Act) -> None:
    """A POS may refuse a step although the step is done: the look-up decides."""
    if step is Act.PRINT:
        pytest.skip("in doubt, a print is never asked for again")
    fleet.treat(step, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.refuse(step)
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("accepted")


# Undo refused, lost, killed


@each_undo
@pytest.mark.parametrize("status", [409, 403])
def test_refused_and_not_undone(fleet: Fleet, adapter: str, undo: Act, status: int) -> None:
    """An order that stands at the POS is never rejected: an operator decides."""
    fleet.refuse(fleet.steps[-1])
    fleet.refuse(undo, status)
    fleet.over()
    fleet.must_be("in_doubt", standing=True)
    assert fleet.truth.requests["cancel" if undo is Act.CANCEL else "refund"] >= 1
    assert [kind for kind, _ in fleet.one.recorded()] == ["in_doubt"]


@each_undo
def test_expired_and_not_undone(fleet: Fleet, adapter: str, undo: Act) -> None:
    fleet.refuse(undo, 409)
    fleet.refuse(fleet.steps[-1], 429, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.wait(LATE)
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("in_doubt", standing=True)


@each_undo
@with_or_without_its_fact
def test_an_undo_whose_reply_is_lost_is_completed(
    fleet: Fleet, adapter: str, undo: Act, lost: Loses
) -> None:
    fleet.refuse(fleet.steps[-1], code="sold_out")
    fleet.treat(undo, loses=lost, times=1)
    fleet.over()
    fleet.must_be("rejected")
    assert fleet.told == ("rejected", "sold_out"), "the reason is the refusal's"
    assert fleet.truth.requests[fleet.steps[-1]] == 1


@each_undo
@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_within_an_undo(
    fleet: Fleet, adapter: str, undo: Act, point: str, process: bool
) -> None:
    fleet.refuse(fleet.steps[-1], code="sold_out")
    getattr(fleet, point)[undo] = die
    fleet.killed(process=process)
    fleet.over()
    fleet.must_be("rejected")
    assert fleet.told == ("rejected", "sold_out")
    assert fleet.truth.requests[fleet.steps[-1]] == 1, "undoing goes on, and never forward"


@each_adapter
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_when_an_undo_is_recorded(fleet: Fleet, adapter: str, process: bool) -> None:
    fleet.refuse(fleet.steps[-1], code="sold_out")
    dies_at("undo.recorded", 1)
    fleet.killed(process=process)
    fleet.over()
    fleet.must_be("rejected")
    assert fleet.told == ("rejected", "sold_out")


# Cancelled


@each_step_but_the_last
def test_cancelled_between_two_steps(fleet: Fleet, adapter: str, step: Act) -> None:
    fleet.refuse(fleet.next(step), 429, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.cancelled()
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")
    assert fleet.truth.requests[fleet.next(step)] == 1


@each_step
@with_or_without_its_fact
def test_cancelled_within_a_step(fleet: Fleet, adapter: str, step: Act, lost: Loses) -> None:
    """The step is decided first, by a look-up alone."""
    if step is Act.PRINT:
        pytest.skip("in doubt for an operator: see the test of lost replies")
    fleet.treat(step, loses=lost, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.cancelled()
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")
    assert fleet.truth.requests[step] == 1


@each_step_but_the_last
def test_cancelled_while_a_step_is_taken(fleet: Fleet, adapter: str, step: Act) -> None:
    """The request waits for the claim, and the walk stops for the request."""
    request = fleet.one.a_request(seconds=LATE)
    again: list[Any] = []

    def ask() -> None:
        again.append(fleet.two.take(request, Action.CANCEL).again)

    fleet.after[step] = ask
    decision = fleet.one.take(fleet.order)
    assert again[0] is not None
    fleet.over(request, Action.CANCEL, **dict(again[0].headers))
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")
    assert fleet.truth.requests.get(fleet.next(step), 0) == 0


@each_undo
def test_a_cancel_request_that_the_pos_refuses_lets_the_order_go_on(
    fleet: Fleet, adapter: str, undo: Act
) -> None:
    last = fleet.steps[-1]
    if (adapter, undo) == ("printed", Act.CANCEL):
        pytest.skip("its payment is refunded by then: in doubt, see the test of undoing")
    fleet.refuse(last, 429, times=1)
    fleet.refuse(undo, 409)
    decision = fleet.one.take(fleet.order)
    request = fleet.one.a_request(seconds=LATE)
    assert fleet.two.take(request, Action.CANCEL).again is None, "the order waits for its end"
    assert fleet.one.recorded() == []
    assert fleet.two.row_state(action="cancel") == "rejected"
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["paid"])
def test_an_accepted_order_is_cancelled_with_the_facts_of_its_steps(
    fleet: Fleet, adapter: str
) -> None:
    fleet.over()
    fleet.cancelled()
    truth = fleet.truth
    assert [kind for kind, _ in fleet.one.recorded()] == ["accepted", "cancelled"]
    assert (truth.standing, truth.paid, truth.refunded) == (0, 1, 1)


@pytest.mark.parametrize("adapter", ["printed"])
def test_an_order_whose_last_step_cannot_be_undone_is_not_undone_in_part(
    fleet: Fleet, adapter: str
) -> None:
    """The last step is undone first: where that is impossible, the order stays complete."""
    fleet.over()
    fleet.cancelled(seconds=60)
    truth = fleet.truth
    assert (truth.standing, truth.refunded, truth.printed) == (1, 0, 1)
    assert fleet.told == ("accepted", "not_cancelled")


@pytest.mark.parametrize("adapter", ["paid"])
def test_an_order_whose_cancellation_is_lost_and_then_refused_stays_accepted(
    fleet: Fleet, adapter: str
) -> None:
    """One undo undoes both of its steps: none of them is undone in part."""
    fleet.over()
    fleet.pos.treat(Act.CANCEL, Manner(loses=Loses.REQUEST, times=1))
    request = fleet.one.a_request(seconds=LATE)
    decision = fleet.one.take(request, Action.CANCEL)
    assert decision.again is not None
    fleet.refuse(Act.CANCEL, 409)
    fleet.over(request, Action.CANCEL, **dict(decision.again.headers))
    assert (fleet.told, fleet.two.dead()) == (("accepted", "not_cancelled"), [])
    assert fleet.truth.standing == 1


@each_undo
@with_or_without_its_fact
def test_a_cancel_request_whose_reply_is_lost_is_completed(
    fleet: Fleet, adapter: str, undo: Act, lost: Loses
) -> None:
    fleet.refuse(fleet.steps[-1], 429, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.treat(undo, loses=lost, times=1)
    fleet.cancelled()
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")


@each_adapter
def test_an_order_that_the_restaurant_has_cancelled_is_not_undone_once_more(
    fleet: Fleet, adapter: str
) -> None:
    """The facts that the POS gives of it say nothing of what stands there."""
    fleet.treat(Act.CREATE, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    cancel = fleet.pos.asked("POST", "/orders/o1/cancel", "", b"{}")
    assert cancel is not None
    fleet.pos.do(cancel, Manner())
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")
    assert Act.CANCEL not in fleet.truth.requests


# The lease is lost


@each_step
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_worker_whose_lease_is_lost_within_a_step_sends_no_byte_of_the_next(
    fleet: Fleet, adapter: str, step: Act, point: str
) -> None:
    """The second worker has taken the order over, and has finished, or left a print to an operator."""

    def lose() -> None:
        fleet.wait(LATE / 10)
        fleet.over()

    getattr(fleet, point)[step] = lose
    if point == "before":  # the request is lost with its connection
        fleet.treat(step, loses=Loses.REQUEST, times=1)
    fleet.one.take(fleet.order, settled=False)
    fleet.must_be(resolved(step))
    index = fleet.steps.index(step)
    for later in fleet.steps[index + 1 :]:
        assert fleet.truth.requests[later] == 1, "the second worker's alone"


# The POS calls back


def called(
    fleet: Fleet, meaning: Kind | Lifecycle, *, waiting_since: float | None = None
) -> CallbackResult:
    """The POS calls back; the server's process applies the callback."""
    gate = fleet.one
    merchant = gate.directory.get("m")
    said = Callback("1", meaning, "o1", "o1")
    known = {"m": (endpoint(merchant, ADAPTERS[fleet.adapter]),)}
    ledger = CallbackLedger(gate.database, Payloads(Vault()), dehydrated, gate.clock)
    try:
        received = Received(
            fleet.adapter, "m", said, known, waiting_since, several_steps(ADAPTERS[fleet.adapter])
        )
        [applied] = ledger.apply([received])
        return applied.result
    finally:
        ledger.close()


@each_step_but_the_last
@pytest.mark.parametrize("between", [False, True], ids=["within", "between"])
def test_a_callback_before_the_last_step_accepts_no_order(
    fleet: Fleet, adapter: str, step: Act, between: bool
) -> None:
    headers: dict[str, Any] = {}
    if between:
        fleet.refuse(fleet.next(step), 429, times=1)
        decision = fleet.one.take(fleet.order)
        headers = dict(decision.again.headers if decision.again else {})
        called(fleet, Kind.ACCEPTED)
    else:
        fleet.after[step] = partial(called, fleet, Kind.ACCEPTED)
    if between:
        assert fleet.one.recorded() == []
    fleet.over(**headers)
    fleet.must_be("accepted")
    assert fleet.one.recorded() == [("accepted", None)]


@each_step_but_the_last
@pytest.mark.parametrize("kind", [Kind.CANCELLED, Kind.REJECTED])
def test_a_callback_between_two_steps_ends_an_order_that_the_restaurant_ends(
    fleet: Fleet, adapter: str, step: Act, kind: Kind
) -> None:
    fleet.refuse(fleet.next(step), 429, times=1)
    decision = fleet.one.take(fleet.order)
    cancel = fleet.pos.asked("POST", "/orders/o1/cancel", "", b'{"refund": true}')
    assert cancel is not None
    fleet.pos.do(cancel, Manner())
    called(fleet, kind)
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be(kind)
    assert fleet.truth.requests[fleet.next(step)] == 1


@each_undo
def test_a_callback_ends_no_order_that_is_being_undone(
    fleet: Fleet, adapter: str, undo: Act
) -> None:
    """Nothing of the undo was done yet: the POS may say so because it was asked to, or not."""
    fleet.refuse(fleet.steps[-1], code="sold_out")
    fleet.refuse(undo, 429, times=1)
    decision = fleet.one.take(fleet.order)
    assert called(fleet, Kind.CANCELLED) is CallbackResult.WAITING
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    assert fleet.one.recorded() == [("rejected", "sold_out")]


#: What a POS says of an order that is left to it or an operator, and the events that follow.
LEFT = [
    (Kind.ACCEPTED, []),  # created, which says nothing of the steps behind
    (Lifecycle.COMPLETED, ["accepted", "completed"]),
    (Kind.CANCELLED, ["cancelled"]),
]


@pytest.mark.parametrize(("said", "events"), LEFT)
@pytest.mark.parametrize("adapter", ["printed"])
def test_a_callback_ends_an_order_that_no_worker_looks_up_any_more(
    fleet: Fleet, adapter: str, said: Kind | Lifecycle, events: list[str]
) -> None:
    fleet.treat(Act.PRINT, loses=Loses.REPLY, times=1)
    fleet.over()
    assert fleet.told == ("in_doubt", "timeout")
    called(fleet, said)
    assert [kind for kind, _ in fleet.one.recorded()] == ["in_doubt", *events]


@pytest.mark.parametrize(("said", "events"), LEFT)
@each_undo
def test_a_callback_ends_an_order_that_its_pos_has_not_undone(
    fleet: Fleet, adapter: str, undo: Act, said: Kind | Lifecycle, events: list[str]
) -> None:
    fleet.refuse(fleet.steps[-1])
    fleet.refuse(undo, 409)
    fleet.over()
    called(fleet, said)
    assert [kind for kind, _ in fleet.one.recorded()] == ["in_doubt", *events]


@pytest.mark.parametrize("adapter", ["paid"])
def test_a_callback_waits_for_a_step_in_doubt_while_the_step_is_looked_up(
    fleet: Fleet, adapter: str
) -> None:
    """It is not dropped, however long that takes: until an hour after ``deliver_by``."""
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    fleet.one.take(fleet.order)
    came = fleet.one.clock.now().timestamp()
    for seconds, result in [
        (0.0, CallbackResult.WAITING),
        (WAIT + 1, CallbackResult.WAITING),
        (LATE, CallbackResult.APPLIED),
    ]:
        fleet.one.wait(seconds)
        assert called(fleet, Lifecycle.COMPLETED, waiting_since=came) is result
    assert [kind for kind, _ in fleet.one.recorded()] == ["accepted", "completed"]
