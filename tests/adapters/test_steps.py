"""Steps at the POS: those of an adapter with one call, and what no list of steps may have."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.adapters.protocol import Adapter, Guarantee, Limits
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.steps import COVERED, Step, steps_of
from pos_gateway.domain.outcome import Kind, Outcome
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import REST, order_of

ORDER, MERCHANT = order_of(), REST.merchant


def done(*_: Any) -> Outcome:
    return Outcome(Kind.ACCEPTED)


CREATE = Step("create", Guarantee.KEYED, done, done, done)
PAY = Step("pay", Guarantee.QUERYABLE, done, done, COVERED)
PRINT = Step("print", Guarantee.BLIND, done, None)


def adapter_of(*steps: Step) -> Adapter:
    adapter: Any = RestAdapter()
    adapter.steps = steps
    if any(step.guarantee is Guarantee.BLIND for step in steps):
        adapter.guarantee = Guarantee.BLIND
    assert isinstance(adapter, Adapter)
    return adapter


def test_an_adapter_with_one_call_has_one_step() -> None:
    [create] = steps_of(RestAdapter())
    assert (create.name, create.guarantee) == ("create", Guarantee.KEYED)
    there = REST.accepted(ORDER.order_id)
    submitted = create.run(ORDER, MERCHANT, {}, Scripted(reply(201, there)))
    assert (submitted.kind, submitted.external_id) == (Kind.ACCEPTED, "7")
    assert create.look_up is not None
    assert create.look_up(ORDER, MERCHANT, {}, Scripted(reply(404))) is None
    assert callable(create.undo)
    undone = create.undo(
        ORDER, MERCHANT, {}, Scripted(reply(200, {**there, "status": "cancelled"}))
    )
    assert undone.kind is Kind.CANCELLED


def test_the_one_step_of_a_pos_that_cannot_be_asked_has_no_look_up() -> None:
    class Blind(RestAdapter):
        guarantee = Guarantee.BLIND

    [create] = steps_of(Blind())
    assert create.look_up is None


def test_an_adapter_that_takes_no_orders_is_refused() -> None:
    adapter = SimpleNamespace(name="n", guarantee=Guarantee.KEYED, limits=Limits(), check=done)
    assert isinstance(adapter, Adapter)
    with pytest.raises(ValueError, match="steps: is missing; give it, or submit, look_up and"):
        steps_of(adapter)


def test_an_adapters_own_steps_stay_in_their_order() -> None:
    assert steps_of(adapter_of(CREATE, PAY, PRINT)) == (CREATE, PAY, PRINT)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((), "is empty"),
        ((replace(CREATE, name=""),), "step '': a name is 1 to 24 characters"),
        ((replace(CREATE, name="create pending"),), "1 to 24 characters of a-z and _"),
        ((replace(CREATE, name="-create"),), "1 to 24 characters of a-z and _"),
        ((replace(CREATE, name="c" * 25),), "1 to 24 characters of a-z and _"),
        ((CREATE, replace(PAY, name="create")), "step 'create': an earlier step has this name"),
        ((replace(CREATE, look_up=None),), "is keyed and has no look-up: add one"),
        ((replace(PRINT, look_up=done),), "is blind and has a look-up: remove it"),
        ((PAY, CREATE), "step 'pay': COVERED, but no earlier step has an undo"),
        ((replace(CREATE, undo=None), PAY), "step 'pay': COVERED"),
    ],
)
def test_steps_that_no_row_could_have_are_refused(steps: tuple[Step, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        steps_of(adapter_of(*steps))
