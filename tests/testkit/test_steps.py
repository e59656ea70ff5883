"""The POS with steps and its adapters, over a socket: each step taken, looked up and undone."""

import threading
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.registry import GROUP, collect
from pos_gateway.adapters.steps import COVERED, Step, steps_of
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send, Transport
from pos_gateway.transport.guard import Guard
from testkit.faults.adapters import install
from testkit.patience import PATIENCE
from testkit.steps.adapters import PaidAdapter, PrintedAdapter
from testkit.steps.client import StepMerchants
from testkit.steps.pos import Act, Loses, Manner, StepPos, Truth
from tests.orders import an_order

ADAPTERS = {"paid": PaidAdapter(), "printed": PrintedAdapter()}
CREATE, PAY, PRINT = steps_of(ADAPTERS["printed"])
#: The act of each step, and how often it is a fact.
ACTS: dict[str, tuple[Act, Callable[[Truth], int]]] = {
    "create": (Act.CREATE, lambda truth: truth.created),
    "pay": (Act.PAY, lambda truth: truth.paid),
    "print": (Act.PRINT, lambda truth: truth.printed),
}


@pytest.fixture(scope="module")
def merchants() -> Iterator[StepMerchants]:
    with StepMerchants() as server:
        yield server


class Shop:
    """One merchant, one order, and the steps that were taken of it."""

    def __init__(self, merchants: StepMerchants, name: str) -> None:
        self.merchants, self.name = merchants, name
        self.order = Order.parse(an_order("order/1", name))
        record = {"id": name, "adapter": "printed", "base_url": merchants.base_url(name)}
        self.merchant = Merchant.parse(record)
        assert ADAPTERS["printed"].check(self.merchant) == []
        self._transport = Transport(guard=Guard(allow_all=True))
        self.facts: dict[str, str | int] = {}
        #: Seconds that a reply is waited for.
        self.seconds = PATIENCE

    def send(self, request: Request) -> Reply:
        return self._transport.send(request, key="m", connections=1, seconds=self.seconds)

    def call(self, function: Callable[..., Any]) -> Any:
        return function(self.order, self.merchant, dict(self.facts), Send(self.send))

    def taken(self, step: Step, *others: Step) -> Outcome:
        """The outcome of the last of these steps; each before is done."""
        outcome: Outcome = self.call(step.run)
        if outcome.kind is Kind.ACCEPTED:
            self.facts |= outcome.facts or {}
        return self.taken(*others) if others else outcome

    def take_all_before(self, step: Step) -> None:
        for each in takewhile(lambda each: each is not step, (CREATE, PAY, PRINT)):
            facts_of(self.taken(each))

    def looked_up(self, step: Step) -> Outcome | None:
        assert step.look_up is not None
        found: Outcome | None = self.call(step.look_up)
        return found

    def undone(self, step: Step) -> Outcome:
        assert callable(step.undo)
        outcome: Outcome = self.call(step.undo)
        return outcome

    def treat(self, act: Act, **manner: Any) -> None:
        self.merchants.treat(self.name, act, **manner)

    @property
    def truth(self) -> Truth:
        return self.merchants.truth(self.name, self.order.order_id)


@pytest.fixture
def shop(merchants: StepMerchants, request: pytest.FixtureRequest) -> Shop:
    return Shop(merchants, request.node.name.replace("[", "-").rstrip("]")[:120])


def facts_of(outcome: Outcome | None) -> Facts:
    assert outcome is not None
    assert outcome.kind is Kind.ACCEPTED
    return outcome.facts or {}


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_step_is_taken_once_and_its_look_up_has_the_same_facts(shop: Shop, name: str) -> None:
    for step in steps_of(ADAPTERS[name]):
        if step.look_up is not None:
            assert shop.looked_up(step) is None
        facts = facts_of(shop.taken(step))
        if step.look_up is not None:
            assert facts_of(shop.looked_up(step)) == facts
    is_printed = name == "printed"
    truth = shop.truth
    assert (truth.created, truth.standing, truth.paid, truth.refunded) == (1, 1, 1, 0)
    assert truth.printed == is_printed
    assert truth.requests == {
        "create": 1,
        "find": 2,
        "pay": 1,
        "show": 2,
        **({"print": 1} if is_printed else {}),
    }


def test_the_external_id_is_the_poss(shop: Shop) -> None:
    assert shop.taken(CREATE).external_id == shop.facts["pos_id"]


@pytest.mark.parametrize("step", [CREATE, PAY, PRINT], ids=lambda step: step.name)
@pytest.mark.parametrize("lost", [Loses.REQUEST, Loses.REPLY])
def test_what_is_lost_shows_in_the_look_up_alone(shop: Shop, step: Step, lost: Loses) -> None:
    shop.take_all_before(step)
    act, count = ACTS[step.name]
    shop.treat(act, loses=lost, times=1)
    with pytest.raises(NoValidReply):
        shop.taken(step)
    assert count(shop.truth) == (lost is Loses.REPLY)
    if step.look_up is not None:
        found = shop.looked_up(step)
        assert (found is not None) is (lost is Loses.REPLY)
    shop.taken(step)
    assert shop.truth.requests[act] == 2
    assert count(shop.truth) == 1 + (lost is Loses.REPLY and step is not CREATE)


def test_a_key_makes_one_order_until_the_pos_forgets_the_key(shop: Shop) -> None:
    one, again = shop.taken(CREATE), shop.taken(CREATE)
    assert (facts_of(again), shop.truth.created) == (facts_of(one), 1)
    shop.merchants.set(shop.name, keys_kept=0)
    another = shop.taken(CREATE)
    assert facts_of(another) != facts_of(one)
    assert (shop.truth.created, shop.truth.standing) == (2, 2)
    shop.facts = dict(facts_of(one))
    assert shop.undone(CREATE).kind is Kind.CANCELLED
    assert facts_of(shop.looked_up(CREATE)) == facts_of(another), "the standing order"


def test_a_key_is_kept_for_its_seconds() -> None:
    now = [0.0]
    pos = StepPos(lambda: now[0])
    pos.keys_kept = 60

    def create(total: int) -> int:
        asked = pos.asked("POST", "/orders", "o", b'{"reference": "o", "total": %d}' % total)
        assert asked is not None
        return pos.do(asked, Manner())[0]

    for seconds, status in ((0.0, 201), (59.9, 200), (60.0, 201), (119.9, 200)):
        now[0] = seconds
        assert create(1) == status
    assert create(2) == 409
    assert pos.truth("o").created == 2


@pytest.mark.parametrize("step", [CREATE, PAY, PRINT], ids=lambda step: step.name)
@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, Kind.REJECTED), (403, Kind.FAILED), (429, Kind.RETRY), (500, Kind.IN_DOUBT)],
)
def test_a_refused_step_leaves_no_fact(shop: Shop, step: Step, status: int, kind: Kind) -> None:
    shop.take_all_before(step)
    act, count = ACTS[step.name]
    shop.treat(act, refuses=status, code="sold_out")
    outcome = shop.taken(step)
    assert (outcome.kind, outcome.facts) == (kind, None)
    assert outcome.reason is not None
    assert outcome.reason.code == ("sold_out" if status == 422 else f"http_{status}")
    assert count(shop.truth) == 0


def test_an_order_at_another_total_stands_and_is_not_as_agreed(shop: Shop) -> None:
    shop.merchants.set(shop.name, adds=153)
    outcome = shop.taken(CREATE)
    assert outcome.reason is not None
    assert (outcome.kind, outcome.reason.code) == (Kind.REJECTED, "price_mismatch")
    assert outcome.reason.message == "the POS says 1853 instead of 1700"
    assert shop.looked_up(CREATE) == outcome
    assert (shop.truth.created, shop.truth.standing) == (1, 1)
    assert outcome.facts is not None
    shop.facts = dict(outcome.facts)
    assert shop.undone(CREATE).kind is Kind.CANCELLED
    assert shop.truth.standing == 0


def test_a_step_is_pending_until_the_pos_has_decided(shop: Shop) -> None:
    shop.merchants.set(shop.name, undecided=[Act.CREATE, Act.PAY])
    created = shop.taken(CREATE)
    assert (created.kind, shop.looked_up(CREATE)) == (Kind.PENDING, created)
    assert created.facts is not None
    shop.facts = dict(created.facts)
    shop.merchants.set(shop.name, undecided=[Act.PAY])
    assert facts_of(shop.looked_up(CREATE)) == shop.facts
    paid = shop.taken(PAY)
    assert (paid.kind, shop.looked_up(PAY)) == (Kind.PENDING, paid)
    shop.merchants.set(shop.name)
    assert facts_of(shop.looked_up(PAY)) == paid.facts
    assert shop.truth.paid == 1


def test_an_order_is_undone_step_by_step(shop: Shop) -> None:
    shop.taken(CREATE, PAY)
    refused = shop.undone(CREATE)  # the last step first
    assert refused.reason is not None
    assert (refused.kind, refused.reason.code) == (Kind.REJECTED, "paid")
    for step in (PAY, CREATE):
        assert [shop.undone(step).kind for _ in range(2)] == [Kind.CANCELLED] * 2
        found = shop.looked_up(step)
        assert found is not None
        assert found.kind is Kind.CANCELLED
    truth = shop.truth
    assert (truth.created, truth.standing, truth.paid, truth.refunded) == (1, 0, 1, 1)
    refused = shop.taken(PAY)
    assert refused.reason is not None
    assert (refused.kind, refused.reason.code) == (Kind.REJECTED, "cancelled")
    assert PRINT.undo is None


def test_an_order_is_undone_at_once_where_cancelling_refunds(shop: Shop) -> None:
    create, pay = steps_of(ADAPTERS["paid"])
    shop.taken(create, pay)
    assert pay.undo is COVERED
    assert shop.undone(create).kind is Kind.CANCELLED
    assert (shop.truth.standing, shop.truth.refunded) == (0, 1)


def test_undoing_what_the_pos_does_not_have_says_so(shop: Shop) -> None:
    shop.facts = {"pos_id": "o9"}
    for step in (CREATE, PAY):
        outcome = shop.undone(step)
        assert outcome.reason is not None
        assert (outcome.kind, outcome.reason.code) == (Kind.REJECTED, "unknown_order")
    shop.taken(CREATE)
    outcome = shop.undone(PAY)
    assert outcome.reason is not None
    assert (outcome.kind, outcome.reason.code) == (Kind.REJECTED, "unknown_order")


@pytest.mark.parametrize(("step", "act"), [(PAY, Act.REFUND), (CREATE, Act.CANCEL)])
def test_an_undo_may_be_refused_and_its_reply_lost(shop: Shop, step: Step, act: Act) -> None:
    shop.taken(CREATE, PAY)
    if step is CREATE:
        shop.undone(PAY)
    shop.treat(act, refuses=409, code="kitchen_has_begun", times=1)
    refused = shop.undone(step)
    assert refused.reason is not None
    assert (refused.kind, refused.reason.code) == (Kind.REJECTED, "kitchen_has_begun")
    assert facts_of(shop.looked_up(step))
    shop.treat(act, loses=Loses.REPLY, times=1)
    with pytest.raises(NoValidReply):
        shop.undone(step)
    found = shop.looked_up(step)
    assert found is not None
    assert found.kind is Kind.CANCELLED


def test_a_fact_may_come_after_its_client_has_left(shop: Shop) -> None:
    shop.taken(CREATE)
    shop.treat(Act.PAY, late=0.5)
    shop.seconds = 0.1
    with pytest.raises(NoValidReply):
        shop.taken(PAY)
    assert shop.merchants.wait_for(shop.name, shop.order.order_id, paid=1).requests["pay"] == 1


def test_a_reply_may_come_long_after_its_fact(shop: Shop) -> None:
    shop.treat(Act.CREATE, slow=10 * PATIENCE)
    shop.seconds = 0.1
    with pytest.raises(NoValidReply):
        shop.taken(CREATE)
    assert shop.truth.created == 1


def test_a_test_can_wait_for_a_request_and_for_a_fact(shop: Shop) -> None:
    found: list[Truth] = []

    def wait() -> None:
        wait_for = shop.merchants.wait_for
        found.append(wait_for(shop.name, shop.order.order_id, create=1, created=1, find=1))

    waiting = threading.Thread(target=wait)
    waiting.start()
    shop.taken(CREATE)
    assert not found
    shop.looked_up(CREATE)
    waiting.join(PATIENCE)
    assert [truth.requests for truth in found] == [{"create": 1, "find": 1}]


def test_merchants_are_treated_separately(merchants: StepMerchants, shop: Shop) -> None:
    other = Shop(merchants, "another")
    other.treat(Act.CREATE, refuses=422)
    assert shop.taken(CREATE).kind is Kind.ACCEPTED
    assert other.taken(CREATE).kind is Kind.REJECTED
    with pytest.raises(TypeError, match="loose"):
        other.treat(Act.CREATE, loose="reply")
    with pytest.raises(ValueError, match="create_"):
        other.treat("create_")  # type: ignore[arg-type]


def test_only_look_ups_are_no_changes(shop: Shop) -> None:
    sent: list[tuple[str, bool]] = []
    send = shop.send

    def noted(request: Request) -> Reply:
        sent.append((request.method, request.changes))
        return send(request)

    shop.send = noted  # type: ignore[method-assign]
    for step in (CREATE, PAY):
        shop.taken(step)
        shop.looked_up(step)
    shop.taken(PRINT)
    shop.undone(PAY)
    assert sent == [("POST", True), ("GET", False)] * 2 + [("POST", True)] * 2


def test_workers_find_the_adapters_with_steps(tmp_path: Path) -> None:
    folder = install(tmp_path).split(":")[0]
    entries = Distribution.at(next(Path(folder).iterdir())).entry_points.select(group=GROUP)
    found = collect(entries)
    assert [[step.name for step in steps_of(found[name])] for name in ADAPTERS] == [
        ["create", "pay"],
        ["create", "pay", "print"],
    ]
    assert found["printed"].guarantee is Guarantee.BLIND
