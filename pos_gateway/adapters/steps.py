"""Steps at the POS: the calls that bring an order to the kitchen, first to last.

Most adapters have a single step: ``submit``, with ``look_up`` and ``cancel``. The adapter of a POS
with several calls (create, pay, print) has ``steps``, each with a guarantee, a look-up and an undo.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, runtime_checkable

from pos_gateway.adapters.protocol import Adapter, Guarantee, TakesOrders
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Send

_NAME = re.compile(r"[a-z_]{1,24}")


class Covered(Enum):
    """The type of ``COVERED``."""

    COVERED = "covered"


#: A step's ``undo`` where the undo of an earlier step undoes the step, too.
COVERED: Final = Covered.COVERED


#: The reason's code of an undo after which the order is cancelled at its POS, and a refund is not recorded.
NOT_REFUNDED: Final = "not_refunded"


@dataclass(frozen=True, slots=True)
class Step:
    """A call at the POS. Safe to be used by any number of threads at once.

    The functions get the order, the merchant, the order's facts and ``send``, and let TransportError
    pass. Facts are those of all steps before; ``undo`` gets the step's own, too. The same order and
    facts always make the same requests, byte for byte. ``Outcome.facts`` are merged into the order's
    facts, which are at most 2 KiB as JSON (``domain/facts.py``): the POS's order id, version, total.
    """

    #: Unique in the adapter, ``[a-z_]{1,24}``. Stored with orders: two releases must pass before a
    #: name is changed, or given to a different step.
    name: str
    #: The POS's protection against taking this step twice, whatever protects the adapter's other steps.
    guarantee: Guarantee
    #: Takes the step. ACCEPTED: the step is done. REJECTED or FAILED without facts: the POS has
    #: nothing of the step; with facts: the step stands at the POS, is not as agreed (another total),
    #: and is undone with the steps before. PENDING: the POS has the step and has not decided; a later step's
    #: facts are kept.
    #: RETRY: provably not processed. IN_DOUBT: no valid reply came.
    run: Callable[[Order, Merchant, Facts, Send], Outcome]
    #: The step's state at the POS, as ``run`` returns it, facts included; CANCELLED if the step was
    #: undone. Returns None if the POS does not have the step. A blind step has no look-up; every step
    #: with a different guarantee has a look-up.
    look_up: Callable[[Order, Merchant, Facts, Send], Outcome | None] | None
    #: Undoes the step: CANCELLED, also if the step was undone before; REJECTED if the POS refuses,
    #: with ``unknown_order`` if the POS does not have the step. IN_DOUBT as ``NOT_REFUNDED``: half done, and
    #: REJECTED with facts by a look-up. Without, the step cannot be undone.
    undo: Callable[[Order, Merchant, Facts, Send], Outcome] | Covered | None = None


@runtime_checkable
class HasSteps(Protocol):
    """An adapter whose POS takes an order in several calls."""

    steps: tuple[Step, ...]


#: By an adapter's identity: the adapter, which keeps the identity taken, and its steps.
_KNOWN: dict[int, tuple[Adapter, tuple[Step, ...]]] = {}


def steps_of(adapter: Adapter) -> tuple[Step, ...]:
    """The adapter's steps, first to last; at least a single step. An adapter's steps never change.

    Raises:
        ValueError: a step breaks the contract; names the step and the remedy.
    """
    known = _KNOWN.get(id(adapter))
    if known is None:
        known = _KNOWN[id(adapter)] = adapter, _checked(adapter)
    return known[1]


def several_steps(adapter: Adapter) -> Mapping[str, bool]:
    """The names of the adapter's steps, each with whether it can be looked up; empty for a single step."""
    steps = steps_of(adapter)
    return {each.name: each.look_up is not None for each in steps} if len(steps) > 1 else {}


def _checked(adapter: Adapter) -> tuple[Step, ...]:
    if isinstance(adapter, HasSteps):
        steps = adapter.steps
    elif isinstance(adapter, TakesOrders):
        steps = (_single(adapter, adapter.guarantee),)
    else:
        raise ValueError("steps: is missing; give it, or submit, look_up and cancel")
    if not steps:
        raise ValueError("steps: is empty; leave the attribute out where submit is the only step")
    may_undo = False
    for number, step in enumerate(steps):
        if _NAME.fullmatch(step.name) is None:
            raise ValueError(f"step {step.name!r}: a name is 1 to 24 characters of a-z and _")
        if step.name in {each.name for each in steps[:number]}:
            raise ValueError(f"step {step.name!r}: an earlier step has this name; rename one")
        if (step.look_up is None) is not (step.guarantee is Guarantee.BLIND):
            remedy = "has a look-up: remove it" if step.look_up else "has no look-up: add one"
            raise ValueError(f"step {step.name!r}: is {step.guarantee} and {remedy}")
        if step.look_up is None and adapter.guarantee is not Guarantee.BLIND:
            remedy = "an adapter's guarantee is the weakest step's: make it BLIND"
            raise ValueError(f"step {step.name!r}: is BLIND; {remedy}")
        if step.undo is COVERED and not may_undo:
            raise ValueError(f"step {step.name!r}: COVERED, but no earlier step has an undo")
        may_undo = may_undo or step.undo is not None
    return steps


def _single(adapter: TakesOrders, guarantee: Guarantee) -> Step:
    def run(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome:
        return adapter.submit(order, merchant, send)

    def look_up(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome | None:
        return adapter.look_up(order, merchant, send)

    def undo(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome:
        return adapter.cancel(order, merchant, send)

    return Step("create", guarantee, run, None if guarantee is Guarantee.BLIND else look_up, undo)
