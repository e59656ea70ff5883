"""How far an order has come through the steps at its POS, and what an operator may do, in words."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from pos_gateway.adapters.steps import Step
from pos_gateway.administration.doubts import is_left_to_a_person
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import State


class StepState(StrEnum):
    """The state of a step at the POS."""

    TAKEN = "taken"
    SENDING = "sending"
    #: The POS has the step, and has not decided.
    PENDING = "pending"
    IN_DOUBT = "in_doubt"
    #: Certainly not taken, and taken next.
    NEXT = "next"
    LATER = "later"
    UNDOING = "being_undone"
    #: The POS has not undone the step: a person is waited for.
    NOT_UNDONE = "not_undone"
    #: Undone, or never taken.
    GONE = "not_there"


class StepStanding(NamedTuple):
    """A step of an order."""

    name: str
    state: StepState
    #: Since when (Unix time), of the step that the order is in.
    since: float | None = None
    #: Whether the POS can be asked for the step.
    has_look_up: bool = True


def steps_at_pos(order: OrderStanding, steps: Sequence[Step], now: float) -> list[StepStanding]:
    """The order's steps, first to last; none where the POS takes an order in a single step.

    Args:
        order: the order.
        steps: the steps of the merchant's adapter; none, if the adapter is not known here.
        now: Unix time.
    """
    mark = order.step_mark
    look_ups = {step.name: step.look_up is not None for step in steps}
    # A different release's step, or a different adapter's.
    if mark is not None and mark.name not in look_ups:
        look_ups = {mark.name: True}
    elif len(look_ups) < 2:
        return []
    names = list(look_ups)
    if order.state.is_final:
        if order.state is not State.ACCEPTED and not order.was_made:
            return []
        over = StepState.TAKEN if order.state is State.ACCEPTED else StepState.GONE
        return [StepStanding(name, over) for name in names]
    place = 0 if mark is None else names.index(mark.name)
    above = StepState.GONE if order.is_being_undone else StepState.LATER
    since = order.first_doubt or order.updated_at
    present = StepStanding(names[place], _present(order, place, now), since, look_ups[names[place]])
    return [
        *(StepStanding(name, StepState.TAKEN) for name in names[:place]),
        present,
        *(StepStanding(name, above) for name in names[place + 1 :]),
    ]


def _present(order: OrderStanding, place: int, now: float) -> StepState:
    """The state of the step that an open order is in."""
    if order.is_being_undone:
        return StepState.NOT_UNDONE if order.is_left(now) else StepState.UNDOING
    if order.state is State.SENDING and order.is_leased:
        return StepState.SENDING
    if order.state is State.PENDING and (not place or order.doubt_since is not None):
        return StepState.PENDING
    if order.is_in_doubt or order.doubt_since is not None:
        return StepState.IN_DOUBT
    return StepState.PENDING if order.pending and not place else StepState.NEXT


class StepWords(NamedTuple):
    """The steps in sentences: what is known, and what happens next or an operator may do."""

    known: str
    following: str
    #: The gateway asks the POS for the present step.
    is_asked: bool = False


def step_words(order: OrderStanding, steps: Sequence[StepStanding]) -> StepWords | None:
    """The steps of an open order in words; None where they say no more than the order's state does."""
    taken = [step.name for step in steps if step.state is StepState.TAKEN]
    present = next((step for step in steps if step.since is not None), None)
    if present is None or not (taken or order.is_being_undone):
        return None
    at_pos = _listed([*taken, present.name] if order.is_being_undone else taken)
    known_as = f" as {order.external_id}" if order.external_id else ""
    name, following = present.name, ""
    known = f"At the POS{known_as}: {at_pos}."
    match present.state:
        case StepState.NOT_UNDONE:
            known += f" The POS has not undone {name}."
            following = f"{_END_THERE} {_MADE_THERE}"
        case StepState.UNDOING:
            known += f" The step {name} is being undone."
            following = "The order ends once nothing of it is left there. If the POS refuses, it is left to you."
        case StepState.IN_DOUBT:
            known += f" Whether {name} is there, too, is not known."
            following = f"Ask the merchant. {_MADE_THERE} {_END_THERE}"
            if present.has_look_up and not is_left_to_a_person(order):
                until = "The POS is asked for it until an hour after deliver_by; after that it is left to you."
                return StepWords(known, f"{until} {following}", is_asked=True)
        case StepState.PENDING:
            known += f" The POS has {name}, too, and has not completed it."
            following = "The POS is asked for it until an hour after deliver_by; after that it is left to you."
            return StepWords(known, following, is_asked=True)
        case StepState.SENDING:
            known += f" The step {name} may be sent at this moment."
        case _:
            known += f" The step {name} is next."
            following = "If the order expires before that, it is undone."
    return StepWords(known, following)


#: What an operator may do with an order that is at the POS in part.
_MADE_THERE = (
    "If the merchant makes it all the same, and has completed it there, resolve it as accepted."
)
_END_THERE = (
    "To end it, have the merchant cancel it there, and refund what is paid; then resolve it as not sent: "
    "it is not sent again, and ends as cancelled."
)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
