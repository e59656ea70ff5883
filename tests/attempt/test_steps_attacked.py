"""Attacks on orders at POSes with steps: each is a fault that was found, and that the table lacked."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.steps import Step
from pos_gateway.administration.replay import Replay
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.facts import FACTS_LIMIT
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import NotSent
from testkit.steps.adapters import (
    PaidAdapter,
    PrintedAdapter,
    cancel,
    cancel_and_refund,
    create,
    find,
    paid,
    pay,
    print_,
    refund,
)
from testkit.steps.pos import Act, Loses
from tests.attempt import test_steps
from tests.attempt.test_steps import Fleet, called


class KeyedPayAdapter(PrintedAdapter):
    """Create and pay, both keyed; a refund goes before a cancel."""

    name = "keyed_pay"
    guarantee = Guarantee.KEYED
    steps = (
        Step("create", Guarantee.KEYED, create, find, cancel),
        Step("pay", Guarantee.KEYED, pay, paid, refund),
    )


class RepeatingAdapter(KeyedPayAdapter):
    """A POS that repeats a key's first reply, 202, whatever it has decided since."""

    name = "keyed_pay"

    @staticmethod
    def _pay(*of: Any) -> Outcome:
        known = paid(*of)
        return pay(*of) if known is None else Outcome(Kind.PENDING, facts=known.facts)

    steps = (KeyedPayAdapter.steps[0], replace(KeyedPayAdapter.steps[1], run=_pay))


class ForgetfulAdapter(PrintedAdapter):
    """Create, print blind; no step brings facts: our id is the POS's."""

    name = "forgetful"
    steps = (
        Step(
            "create",
            Guarantee.KEYED,
            lambda *a: replace(create(*a), facts=None),
            lambda *a: replace(find(*a), facts=None),
            lambda o, m, _, s: cancel_and_refund(o, m, {"pos_id": "o1"}, s),
        ),
        Step(
            "pay",
            Guarantee.BLIND,
            lambda o, m, _, s: replace(
                pay(o, m, {"pos_id": "o1", "total": o.total}, s), facts=None
            ),
            None,
            lambda o, m, _, s: refund(o, m, {"pos_id": "o1"}, s),
        ),
    )


class AskingAdapter(PrintedAdapter):
    """Looks at the payment before it prints, as Clover's adapter looks for a ticket."""

    name = "printed"

    @staticmethod
    def _print(*of: Any) -> Outcome:
        known = paid(*of)
        assert known is not None
        return print_(*of) if known.kind is Kind.ACCEPTED else known

    steps = (*PrintedAdapter.steps[:2], replace(PrintedAdapter.steps[2], run=_print))


class BlindAdapter(RestAdapter):
    """The reference API without a promise."""

    guarantee = Guarantee.BLIND


@pytest.fixture
def fleet(tmp_path: Path, adapter: str, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    more = {"keyed_pay": KeyedPayAdapter(), "forgetful": ForgetfulAdapter()}
    for name, each in more.items():
        monkeypatch.setitem(test_steps.ADAPTERS, name, each)
        monkeypatch.setitem(test_steps.STEPS, name, (Act.CREATE, Act.PAY))
    return Fleet(tmp_path, adapter)


def headers_of(decision: Any) -> dict[str, Any]:
    return dict(decision.again.headers if decision and decision.again else {})


@pytest.mark.parametrize("adapter", ["keyed_pay"])
def test_failed_at_a_keyed_step_that_was_in_doubt(fleet: Fleet, adapter: str) -> None:
    """The payment was made, its reply lost; a 403 says nothing of that: create may not be undone."""
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.refuse(Act.PAY, 403)
    fleet.over(**headers_of(decision))
    assert fleet.truth.requests.get("cancel", 0) == 0, fleet.truth
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["printed"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_step_that_was_answered_in_part_is_in_doubt(
    fleet: Fleet, adapter: str, step: int
) -> None:
    """The POS answered one request, and could not be reached for the next."""
    steps = list(PrintedAdapter.steps)

    def in_part(*of: Any) -> Outcome:
        PrintedAdapter.steps[step].run(*of)
        raise NotSent("refused", "no connection")

    steps[step] = replace(steps[step], run=in_part)
    fleet.one.adapters[adapter] = type("InPart", (PrintedAdapter,), {"steps": tuple(steps)})()
    decision = fleet.one.take(fleet.order)
    assert decision.outcome.kind is Kind.IN_DOUBT
    fleet.over(**headers_of(decision))
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["printed"])
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("how", ["process", "thread", "lost"])
def test_a_blind_step_is_not_in_doubt_before_its_first_changing_request(
    fleet: Fleet, adapter: str, how: str, resumed: bool
) -> None:
    """Killed, or without a reply, while the POS is only asked: the next attempt takes the step."""
    fleet.one.adapters["printed"] = fleet.two.adapters["printed"] = AskingAdapter()
    if resumed:  # nothing of the step before is in doubt any more
        fleet.refuse(Act.PRINT, 429, times=1)
        fleet.one.take(fleet.order)
        fleet.wait(60)
    if how in ("process", "thread"):
        fleet.before[Act.SHOW] = test_steps.die
        fleet.killed(process=how == "process")
    else:
        fleet.treat(Act.SHOW, loses=Loses.REPLY, times=1)
    fleet.over()
    fleet.must_be("accepted")
    requests = {act: number for act, number in fleet.truth.requests.items() if act != Act.SHOW}
    assert requests == dict.fromkeys(fleet.steps, 1) | {Act.PRINT: 1 + resumed}


@pytest.mark.parametrize("adapter", ["printed"])
def test_a_later_step_that_asks_first_costs_no_commit_more(
    fleet: Fleet, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.two.adapters["printed"] = AskingAdapter()
    recorded, sending = [], fleet.two.ledger.sending

    def counted(*of: Any, **named: Any) -> Any:
        recorded.append(named["step"] and named["step"].name)
        return sending(*of, **named)

    monkeypatch.setattr(fleet.two.ledger, "sending", counted)
    fleet.over()
    assert recorded == ["pay", "print"]


@pytest.mark.parametrize("adapter", ["keyed_pay"])
def test_a_keyed_step_that_is_pending_is_looked_up(fleet: Fleet, adapter: str) -> None:
    """Not only once its key may be forgotten: the order would have expired."""
    fleet.one.adapters["keyed_pay"] = fleet.two.adapters["keyed_pay"] = RepeatingAdapter()
    fleet.pos.undecided = frozenset({Act.PAY})
    decision = fleet.one.take(fleet.order)
    assert decision.outcome.kind is Kind.PENDING
    fleet.pos.undecided = frozenset()
    fleet.two.take(fleet.order, **headers_of(decision))
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["printed"])
@pytest.mark.parametrize("status", [409, 403, 429])
def test_a_cancel_request_that_was_carried_out_in_part(
    fleet: Fleet, adapter: str, status: int
) -> None:
    """Refunded, and not cancelled: the order may not go on, and an operator hears of it."""
    fleet.refuse(Act.PRINT, 429, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.refuse(Act.CANCEL, status)
    fleet.cancelled(seconds=60)
    fleet.over(**headers_of(decision))
    assert (fleet.truth.refunded, fleet.truth.requests["print"]) == (1, 1), fleet.truth
    fleet.must_be("in_doubt", standing=True)


@pytest.mark.parametrize("adapter", ["keyed_pay"])
def test_a_payment_in_doubt_is_refunded_by_a_lost_request_and_the_order_not_cancelled(
    fleet: Fleet, adapter: str
) -> None:
    """The refund is found by a look-up: to pay again would repeat the first payment's reply."""
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.treat(Act.REFUND, loses=Loses.REPLY, times=1)
    fleet.refuse(Act.CANCEL, 409)
    fleet.cancelled(seconds=60)
    fleet.over(**headers_of(decision))
    assert fleet.truth.refunded == 1, fleet.truth
    fleet.must_be("in_doubt", standing=True)


@pytest.mark.parametrize("adapter", ["keyed_pay"])
def test_an_accepted_order_is_refunded_and_not_cancelled(fleet: Fleet, adapter: str) -> None:
    fleet.over()
    fleet.refuse(Act.CANCEL, 429)
    fleet.cancelled(seconds=60)
    assert fleet.told == ("accepted", "not_cancelled")
    [[reason]] = fleet.one.rows("select reason_message from orders where action = 'cancel'")
    assert not reason.startswith("cancel_expired"), reason


@pytest.mark.parametrize("adapter", ["printed"])
def test_the_ledger_is_away_when_a_blind_step_is_to_be_recorded(
    fleet: Fleet, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In doubt is the payment, which can be looked up: no operator is needed."""
    sending = fleet.one.ledger.sending

    def away(claim: Any, *args: Any, **named: Any) -> Any:
        if named.get("step") is not None and named["step"].name == "print":
            raise LedgerUnavailable("away")
        return sending(claim, *args, **named)

    monkeypatch.setattr(fleet.one.ledger, "sending", away)
    decision = fleet.one.take(fleet.order)
    assert decision.again is not None
    fleet.over(**headers_of(decision))
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["printed", "paid"])
@pytest.mark.parametrize("kind", [Kind.CANCELLED, Kind.REJECTED])
def test_a_callback_of_our_own_undo(fleet: Fleet, adapter: str, kind: Kind) -> None:
    """The POS says what it was just asked to: the order's word is why it is undone."""
    fleet.refuse(fleet.steps[-1], code="sold_out")
    act = test_steps.UNDO[adapter][0]
    fleet.after[act] = partial(called, fleet, kind)
    fleet.one.take(fleet.order)
    fleet.over()
    fleet.must_be("rejected")
    assert fleet.told == ("rejected", "sold_out")


@pytest.mark.parametrize("adapter", ["forgetful"])
def test_an_accepted_order_without_facts_is_cancelled(fleet: Fleet, adapter: str) -> None:
    fleet.over()
    fleet.cancelled(seconds=60)
    assert [kind for kind, _ in fleet.one.recorded()] == ["accepted", "cancelled"], (
        fleet.one.recorded()
    )


@pytest.mark.parametrize("adapter", ["printed"])
def test_an_order_that_expires_while_its_cancel_request_is_in_doubt(
    fleet: Fleet, adapter: str
) -> None:
    """One refund at a time: the request's may still be at work."""
    fleet.refuse(Act.PRINT, 429, times=1)
    fleet.order = fleet.one.an_order(seconds=60)
    decision = fleet.one.take(fleet.order)
    fleet.wait(58)
    fleet.treat(Act.REFUND, loses=Loses.REQUEST, times=1)
    fleet.one.take(fleet.one.a_request(seconds=600), Action.CANCEL)
    assert fleet.truth.requests["refund"] == 1
    fleet.wait(3)
    fleet.two.take(fleet.order, **(headers_of(decision) | {"x-resolve": True}))
    assert fleet.truth.requests["refund"] == 1


@pytest.mark.parametrize("adapter", ["printed"])
def test_facts_that_are_too_large(fleet: Fleet, adapter: str) -> None:
    """At the last step: the order is complete."""
    step = Step(
        "print",
        Guarantee.BLIND,
        lambda *a: replace(print_(*a), facts={"ticket": "t" * 3000}),
        None,
    )
    steps = (*PrintedAdapter.steps[:2], step)
    one = type("Large", (PrintedAdapter,), {"steps": steps})()
    fleet.one.adapters["printed"] = fleet.two.adapters["printed"] = one
    fleet.over()
    fleet.must_be("accepted")


@pytest.mark.parametrize("adapter", ["paid"])
@pytest.mark.parametrize("step", [Act.CREATE, Act.PAY])
def test_an_undone_order_is_not_replayed(fleet: Fleet, adapter: str, step: Act) -> None:
    """Its key has made an order that is cancelled: the POS would answer with that one."""
    fleet.refuse(step, 403, times=1)
    fleet.over()
    fleet.must_be("failed")
    [dead] = [each for each in fleet.one.stored if each.routing_key == "orders.dead"]
    replay = Replay(
        OrderAdmin(fleet.one.database, Payloads(Vault()), fleet.one.clock),
        publish=lambda _: None,
        acknowledge=lambda _: None,
        operator="kim",
        split=Split(percent=0.0),
        until=None,
        largest=10**6,
        dry_run=True,
        clock=fleet.one.clock,
    )
    letter = DeadLetter("o1", "o1", "m", "", "", None, dict(dead.headers), dead.body, 1, None)
    refusal = replay.replay(letter)
    if step is Act.CREATE:
        assert refusal is None
    else:
        assert refusal is not None and "another order_id" in refusal.why


class KeepingAdapter(PaidAdapter):
    """A POS that cancels an order, and keeps the money."""

    name = "paid"

    @staticmethod
    def _cancel(*of: Any) -> Outcome:
        left = Reason("not_refunded", "refund P-1 there")
        return replace(cancel_and_refund(*of), reason=left)

    steps = (replace(PaidAdapter.steps[0], undo=_cancel), PaidAdapter.steps[1])


@pytest.mark.parametrize("adapter", ["paid"])
def test_an_undone_order_says_what_its_undo_has_left(fleet: Fleet, adapter: str) -> None:
    fleet.two.adapters["paid"] = KeepingAdapter()
    fleet.refuse(Act.PAY, code="sold_out")
    fleet.over()
    [(kind, code, said)] = fleet.one.rows("select type, reason_code, reason_message from events")
    assert (kind, code) == ("rejected", "sold_out")
    assert said.endswith("; refund P-1 there")


class ByPaymentAdapter(PrintedAdapter):
    """A POS that refunds a payment by the payment's id."""

    name = "printed"

    @staticmethod
    def _refund(order: Any, merchant: Any, facts: Any, send: Any) -> Outcome:
        assert facts["payment"]
        return refund(order, merchant, facts, send)

    steps = (
        PrintedAdapter.steps[0],
        replace(PrintedAdapter.steps[1], undo=_refund),
        PrintedAdapter.steps[2],
    )


@pytest.mark.parametrize("adapter", ["printed"])
@pytest.mark.parametrize("lost", [Loses.REQUEST, Loses.REPLY])
def test_a_request_knows_the_facts_of_the_step_that_it_undoes(
    fleet: Fleet, adapter: str, lost: Loses
) -> None:
    """Its look-up found them, for the order was in doubt: the next attempt's does so again."""
    fleet.two.adapters["printed"] = ByPaymentAdapter()
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.treat(Act.REFUND, loses=lost, times=1)
    fleet.cancelled()
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("cancelled")


class ForgettingAdapter(PaidAdapter):
    """A POS that does not know a cancelled order any more."""

    name = "paid"

    @staticmethod
    def _find(*of: Any) -> Outcome | None:
        found = find(*of)
        return None if found is not None and found.kind is Kind.CANCELLED else found

    steps = (replace(PaidAdapter.steps[0], look_up=_find), PaidAdapter.steps[1])


@pytest.mark.parametrize("adapter", ["paid"])
def test_a_request_needs_no_facts_of_a_step_that_the_pos_has_forgotten(
    fleet: Fleet, adapter: str
) -> None:
    """Its undo was carried out, and the reply lost: nothing is left to be undone."""
    fleet.two.adapters["paid"] = ForgettingAdapter()
    fleet.treat(Act.CREATE, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.treat(Act.CANCEL, loses=Loses.REPLY, times=1)
    request, asked = fleet.one.a_request(seconds=test_steps.LATE), None
    for _ in range(3):  # found and undone; forgotten, but not long enough; nothing is left
        asked = fleet.two.take(request, Action.CANCEL, **headers_of(asked))
        fleet.wait(60)
    assert asked is not None and asked.again is None
    fleet.over(**headers_of(decision))
    fleet.must_be("cancelled")
    assert fleet.truth.requests[Act.CANCEL] == 1


class PaidByPaymentAdapter(PaidAdapter):
    """The same, where the payment is the last step."""

    name = "paid"
    steps = (replace(PaidAdapter.steps[0], undo=cancel), ByPaymentAdapter.steps[1])


@pytest.mark.parametrize("adapter", ["paid"])
def test_the_last_steps_facts_are_kept_for_a_cancel_request(fleet: Fleet, adapter: str) -> None:
    fleet.two.adapters["paid"] = PaidByPaymentAdapter()
    fleet.over()
    fleet.cancelled()
    assert [kind for kind, _ in fleet.one.recorded()] == ["accepted", "cancelled"]
    assert (fleet.truth.refunded, fleet.truth.standing) == (1, 0)


@pytest.mark.parametrize("adapter", ["paid", "printed"])
def test_a_cancel_request_waits_for_an_order_that_is_being_undone(
    fleet: Fleet, adapter: str
) -> None:
    undo = Act.CANCEL if adapter == "paid" else Act.REFUND
    fleet.refuse(fleet.steps[-1], code="sold_out")
    fleet.refuse(undo, 429, times=1)
    decision = fleet.one.take(fleet.order)
    assert (fleet.one.row_state(), fleet.truth.requests[undo]) == ("pending", 1)
    request = fleet.one.a_request(seconds=3600)
    waits = fleet.two.take(request, Action.CANCEL)
    assert (waits.again is not None, fleet.truth.requests[undo]) == (True, 1)
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.over(request, Action.CANCEL)
    fleet.must_be("rejected")
    assert fleet.told == ("rejected", "sold_out")


@pytest.mark.parametrize("adapter", ["paid", "printed"])
def test_a_cancel_request_for_an_order_that_is_not_undone_is_answered_at_once(
    fleet: Fleet, adapter: str
) -> None:
    """A person decides: until the request's deadline nothing would change."""
    fleet.refuse(fleet.steps[-1])
    fleet.refuse(test_steps.UNDO[adapter][0], 409)
    fleet.over()
    before = fleet.truth.requests
    request = fleet.one.a_request(seconds=3600)
    assert fleet.two.take(request, Action.CANCEL).again is None
    rows = "select state, reason_code from orders where action = 'cancel'"
    assert fleet.one.rows(rows) == [("failed", "not_undone")]
    assert fleet.truth.requests == before
    fleet.must_be("in_doubt", standing=True)
    assert fleet.told == ("in_doubt", "not_undone")


@pytest.mark.parametrize("adapter", ["paid", "printed"])
def test_an_order_that_a_failover_loses_within_a_step_is_in_doubt_when_it_is_restored(
    fleet: Fleet, adapter: str
) -> None:
    """Its first step is done, and no row says so: restored as never sent, it would be made again."""

    def lose() -> None:
        with fleet.one.database.begin() as connection:
            connection.execute(orders.delete())

    fleet.after[Act.CREATE] = lose
    decision = fleet.one.take(fleet.order)
    assert fleet.one.row_state() == "in_doubt"
    fleet.over(**dict(decision.again.headers if decision.again else {}))
    fleet.must_be("accepted")


class LongAdapter(PaidAdapter):
    """A POS whose facts of a payment are too long to be kept."""

    name = "paid"

    @staticmethod
    def _create(*of: Any) -> Outcome:
        made = create(*of)
        return replace(made, facts={**(made.facts or {}), "note": "x" * FACTS_LIMIT})

    steps = (replace(PaidAdapter.steps[0], run=_create), PaidAdapter.steps[1])


@pytest.mark.parametrize("adapter", ["paid"])
def test_facts_that_cannot_be_kept_leave_an_order_to_an_operator(
    fleet: Fleet, adapter: str
) -> None:
    """Another attempt would make the same ones."""
    fleet.two.adapters["paid"] = LongAdapter()
    fleet.over()
    assert fleet.told == ("in_doubt", "facts")
    assert fleet.truth.requests == {Act.CREATE: 1}


@pytest.mark.parametrize("adapter", ["paid"])
def test_a_secret_that_a_pos_repeats_is_not_kept_while_its_order_is_undone(
    fleet: Fleet, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"id": "m", "adapter": "paid", "base_url": "https://pos.example.com"}
    auth = {"type": "bearer", "token": "s3cr3t-of-the-shop"}
    merchant = Merchant.parse({**record, "auth": auth})
    monkeypatch.setattr(fleet.two.directory, "get", lambda _: merchant)
    fleet.refuse(Act.PAY, code="s3cr3t-of-the-shop")
    fleet.treat(Act.CANCEL, loses=Loses.REPLY, times=1)
    fleet.two.take(fleet.order)
    [(facts,)] = fleet.one.rows("select facts from orders")
    assert "because" in facts and "s3cr3t" not in facts


@pytest.mark.parametrize("adapter", ["paid"])
def test_a_blind_order_that_is_pending(fleet: Fleet, adapter: str, tmp_path: Path) -> None:
    """With one step: left to an operator, and no bug of ours."""
    one = fleet.one
    one.adapters["paid"] = BlindAdapter()
    one.pos = lambda request: (202, {"id": "1", "status": "pending"})
    decision = one.take(fleet.order)
    assert decision.outcome.kind is Kind.PENDING, decision
    fleet.wait(decision.again.delay if decision.again else 0)
    decision = one.take(fleet.order, **headers_of(decision))
    assert decision.outcome.reason is None or decision.outcome.reason.code != "internal_error"


@pytest.mark.parametrize("adapter", ["printed"])
@pytest.mark.parametrize("process", [True, False], ids=["process", "thread"])
def test_killed_between_a_cancel_requests_undos(
    fleet: Fleet, adapter: str, process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refunded by a worker that is dead: past its deadline the request goes on all the same."""
    fleet.refuse(Act.PRINT, 429, times=1)
    decision = fleet.one.take(fleet.order)
    request = fleet.one.a_request(seconds=60)
    fleet.before[Act.CANCEL] = test_steps.die
    if process:
        monkeypatch.setattr(fleet.one.ledger, "abandon", lambda *_, **__: None)
    else:
        fleet.living.append(fleet.one)
    with pytest.raises(test_steps.Killed):
        fleet.one.take(request, Action.CANCEL)
    fleet.wait(120)
    fleet.two.take(fleet.order, **headers_of(decision))
    assert fleet.truth.requests["print"] == 1
    fleet.over(request, Action.CANCEL)
    fleet.over(**headers_of(decision))
    fleet.must_be("cancelled")


@pytest.mark.parametrize("adapter", ["printed", "keyed_pay"])
@pytest.mark.parametrize("status", [409, 429])
def test_a_payment_in_doubt_that_a_cancel_request_refunds_alone(
    fleet: Fleet, adapter: str, status: int
) -> None:
    fleet.treat(Act.PAY, loses=Loses.REPLY, times=1)
    decision = fleet.one.take(fleet.order)
    fleet.refuse(Act.CANCEL, status)
    fleet.cancelled(seconds=60)
    fleet.over(**headers_of(decision))
    truth = fleet.truth
    assert (truth.paid, truth.refunded, truth.requests.get("print", 0)) == (1, 1, 0), truth
    fleet.must_be("in_doubt", standing=True)
