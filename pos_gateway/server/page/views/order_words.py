"""An order's state in words, and what happens next: for one who has to decide something at night."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.steps import Step
from pos_gateway.administration.doubts import is_left_to_a_person
from pos_gateway.administration.order_steps import (
    StepStanding,
    StepWords,
    step_words,
    steps_at_pos,
)
from pos_gateway.attempt.doubt import KEY_KEPT_FOR
from pos_gateway.domain.outcome import RESOLVED, Kind
from pos_gateway.domain.retry import Backoff
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.order_search import OVERDUE_AFTER
from pos_gateway.ledger.states import RESOLVE_FOR, State
from pos_gateway.reports.fleet_view import FleetTrouble
from pos_gateway.server.page.words import counted, moment

#: The states as operators read them.
STATES = {
    State.NEW: "waits",
    State.CLAIMED: "claimed",
    State.SENDING: "is sent",
    State.PENDING: "pending",
    State.IN_DOUBT: "in doubt",
    State.ACCEPTED: "accepted",
    State.REJECTED: "rejected",
    State.CANCELLED: "cancelled",
    State.EXPIRED: "expired",
    State.FAILED: "failed",
}
_TONES = {State.ACCEPTED: "good", State.IN_DOUBT: "warn", State.FAILED: "bad"}
_TONES |= {State.EXPIRED: "warn", State.REJECTED: "warn", State.CANCELLED: "warn"}
_OTHERWISE = "What the POS has is not what was sent: the reason says how. It is looked up no more."
#: Reasons for which the gateway does not ask the POS.
_ONLY_ASKED = {
    "blind": "This POS can be asked by a person alone: its API has no look-up.",
    "moved": "The merchant's record names another POS than the one that may have it, "
    "which the gateway asks no more. Ask about the POS that the merchant had before.",
    "not_undone": "The order should not be there, and the POS did not undo it: the reason says why, and has "
    "the POS's id of it.",
    "other": "It was combined with another order there, or removed: ask whether its food is made.",
    "poison": "Workers died while they had it: it is neither sent nor looked up again.",
    "facts": "What the POS said of it cannot be kept, so that its next step cannot be taken: its adapter is "
    "to be mended.",
}
#: Reasons of orders that were seen at the POS; so was any other one that an adapter leaves to a person.
_SEEN = {"price_mismatch", "payment_required", "text_too_long", "not_undone", "other", "facts"}
_OVERDUE = (
    "Its time was over {}, and its message has not come back: it is in the dead letters, or lost. "
    "Replay it; if it is not there, have the backend submit it again, which is harmless."
)
_RETRY_WITHIN = Backoff().longest


class MerchantFacts(NamedTuple):
    """What decides how an order goes on."""

    adapter: str
    provider: str | None
    paused: bool
    #: None: no adapter has that name here.
    guarantee: Guarantee | None
    #: Its adapter's steps at the POS.
    steps: Sequence[Step] = ()


class StateWords(NamedTuple):
    """A state in words."""

    title: str
    #: ``good``, ``warn``, ``bad`` or nothing.
    tone: str
    #: Sentences about what is known, and about what happens next.
    known: Sequence[Markup]
    following: Sequence[Markup]


class Facts(NamedTuple):
    """All that the words depend on."""

    order: OrderStanding | None
    #: When it came over HTTP (Unix time).
    submitted_at: float | None
    merchant: MerchantFacts | None
    trouble: FleetTrouble | None
    now: float

    @property
    def steps(self) -> list[StepStanding]:
        """The order's steps at its POS."""
        if self.order is None or self.merchant is None:
            return []
        return steps_at_pos(self.order, self.merchant.steps, self.now)

    @property
    def guarantee(self) -> Guarantee | None:
        """The protection of the step that the order is in; None: no adapter is known."""
        if self.merchant is None:
            return None
        present = next((each.name for each in self.steps if each.since is not None), None)
        of_it = (each.guarantee for each in self.merchant.steps if each.name == present)
        return next(of_it, self.merchant.guarantee)


def standing(facts: Facts) -> StateWords:
    """The order's state in words."""
    order = facts.order
    if order is None:
        return _unseen(facts)
    said = step_words(order, facts.steps)
    if said is not None and not order.is_leased:
        return _in_steps(order, said, facts)
    if order.is_in_doubt:
        return StateWords("in doubt", "warn", *_in_doubt(order, facts))
    if order.state.is_final:
        return StateWords(STATES[order.state], _TONES.get(order.state, ""), *_ended(order))
    words = _leased if order.state.is_leased else _waits if order.state is State.NEW else _pending
    known, following = words(order, facts)
    return StateWords(STATES[order.state], "", [*_plain(said and said.known), *known], following)


def _unseen(facts: Facts) -> StateWords:
    if facts.submitted_at is None:
        known = _say("Only a cancel request is known: the order itself has not come.")
        next_ = _say("If it comes before the request's end, it is never sent.")
        return StateWords("not known", "warn", known, next_)
    known = _say("Came over HTTP {}; no worker has had it in its hands yet.", facts, "submitted_at")
    following = _say("It waits in the broker or in a worker, or is parked.") + _why_it_waits(facts)
    return StateWords("submitted", "", known, following)


def _in_steps(order: OrderStanding, said: StepWords, facts: Facts) -> StateWords:
    """The words of an order that its POS has in part."""
    known, following = _plain(said.known), _plain(said.following)
    if not order.is_in_doubt:
        title = "is being undone" if order.is_being_undone else STATES[order.state]
        return StateWords(title, "warn" if order.is_being_undone else "", known, following)
    since = moment(order.first_doubt or order.updated_at, facts.now)
    known = [*_say("In doubt since {}.", since), *known]
    alike = [] if order.is_being_undone else _in_doubt(order, facts)[1]
    next_ = alike if said.is_asked else [*alike[:1], *following]
    return StateWords("in doubt", "warn", known, next_)


def _plain(text: str | None) -> list[Markup]:
    return _say("{}", text) if text else []


def _waits(order: OrderStanding, facts: Facts) -> tuple[Sequence[Markup], Sequence[Markup]]:
    if order.reason_code == RESOLVED:
        known = _say("An operator said that the POS does not have it: it is queued again.")
    elif order.attempts:
        known = _say(
            "Not sent, or certainly not processed, after {}: it waits for its retry.",
            counted(order.attempts, "attempt"),
        )
    else:
        known = _say("Waits for its first attempt.")
    if order.deliver_by is None:
        return known, _why_it_waits(facts)
    until = moment(order.deliver_by, facts.now)
    if order.deliver_by > facts.now:
        following = _say("It is tried until {}, and ends as expired after that.", until)
        return known, [*following, *_why_it_waits(facts)]
    return known, _say(_OVERDUE, until)


def _why_it_waits(facts: Facts) -> list[Markup]:
    said: list[Markup] = []
    if facts.merchant is None:
        said += _say(
            "No merchant has this id: as soon as a worker has it, it fails as unknown_merchant."
        )
    elif facts.merchant.paused:
        said += _say("The merchant is paused: it waits until the merchant is resumed, or expires.")
    trouble = facts.trouble
    if trouble is not None:
        said += _say(
            "Its merchant is in trouble: {} wait in workers, {} are parked, {} of {} slots are in use.",
            counted(trouble.waiting, "order"),
            counted(trouble.parked, "order"),
            trouble.in_flight,
            trouble.limit,
        )
    return said


def _leased(order: OrderStanding, facts: Facts) -> tuple[Sequence[Markup], Sequence[Markup]]:
    since = moment(order.updated_at, facts.now)
    if not order.is_leased:
        known = _say("A worker had it {}, and that worker's lease is gone.", since)
        return known, _say("Nothing was sent: the worker that gets its message next goes on.")
    what = "may send it" if order.state is State.SENDING else "has it in its hands"
    known = _say("The worker {} {}, since {}.", order.owner or "", what, since)
    following = _say(
        "Its outcome follows within the merchant's time limit. If this stays for ten minutes, the worker "
        "has died: another one takes it over."
    )
    return known, following


def _pending(order: OrderStanding, facts: Facts) -> tuple[Sequence[Markup], Sequence[Markup]]:
    known = _say("The POS has it, and has not decided.")
    if order.deliver_by is None:
        return known, ()
    if order.deliver_by + OVERDUE_AFTER < facts.now:
        return known, _say(_OVERDUE, moment(order.deliver_by, facts.now))
    end = moment(order.deliver_by + RESOLVE_FOR, facts.now)
    return known, _say(
        "It is looked up by itself, seldom at first, until {}; if there is no decision by then, it is left "
        "to you in doubt.",
        end,
    )


def _in_doubt(order: OrderStanding, facts: Facts) -> tuple[Sequence[Markup], Sequence[Markup]]:
    since = order.first_doubt or order.updated_at
    why = "the request left, and no valid reply came. The POS has it, or not."
    guarantee, code = facts.guarantee, order.reason_code or ""
    is_left, is_blind = is_left_to_a_person(order), guarantee is Guarantee.BLIND
    if code in _SEEN or (code == "invalid_reply" and is_left and not is_blind):
        why = "the POS has it, in part or otherwise than agreed."
    known = _say("In doubt since {}: {}", moment(since, facts.now), why)
    if order.state.is_leased:
        known += _say("The worker that had it is gone.")
    if is_left or is_blind:
        otherwise = _ONLY_ASKED["blind"] if is_blind else _OTHERWISE
        following = _say(_ONLY_ASKED.get(code, otherwise))
        return known, following + _say("Ask the merchant, then resolve it.")
    end = None if order.deliver_by is None else order.deliver_by + RESOLVE_FOR
    if end is not None and end < facts.now:
        past = _say("It was looked up until {}, and is looked up no more.", moment(end, facts.now))
        return known, past + _say("Ask the merchant, then resolve it.")
    until = "" if end is None else Markup(", until {}").format(moment(end, facts.now))
    again = moment(order.updated_at + _RETRY_WITHIN, facts.now)
    at_the_latest = order.updated_at + _RETRY_WITHIN > facts.now
    when = Markup(", as a rule by {}").format(again) if at_the_latest else ""
    if order.last_event == Kind.IN_DOUBT:
        following = _say(
            "The POS is looked up again by itself{}{}; it is not sent again.", when, until
        )
        following += _say(
            "It is left to you: ask the merchant, if that cannot wait, and resolve it."
        )
    elif guarantee is Guarantee.KEYED and facts.now - order.created_at <= KEY_KEPT_FOR:
        following = _say(
            "The POS gets it again with the same key{}, so that it cannot make it twice.", when
        )
        following += _say("It ends by itself as soon as the POS answers{}.", until)
    else:
        following = _say(
            "Its POS is looked up again by itself{}{}; it is sent again only if it is not there.",
            when,
            until,
        )
    return known, following + _why_it_waits(facts)


def _ended(order: OrderStanding) -> tuple[Sequence[Markup], Sequence[Markup]]:
    by_operator = _say("An operator resolved it so.") if order.reason_code == RESOLVED else []
    match order.state:
        case State.ACCEPTED:
            return _say("The POS has it.") + by_operator, ()
        case State.REJECTED:
            return _say("The POS has refused it."), _say("It is not tried again.")
        case State.CANCELLED:
            return _say("It is cancelled.") + by_operator, ()
        case State.EXPIRED:
            known = _say("Its deliver_by passed before the POS had it.") + by_operator
        case _:
            known = _say("It cannot succeed as things are.")
    if order.was_undone:
        undone = (
            "It was made at its POS and undone there, and is not replayed: its POS keeps its id."
        )
        return _say(undone), _say(
            "To have it made, have the backend submit it with another order_id."
        )
    following = _say(
        "Its message is in the dead letters, unless it was replayed or discarded: remove the cause, and "
        "replay it with new time."
    )
    return known, following


def cancellation(request: OrderStanding, now: float) -> Markup:
    """The cancel request in a sentence."""
    until = moment(request.deliver_by, now)
    match request.state:
        case State.CANCELLED:
            return Markup("The cancel request was granted.")
        case State.REJECTED:
            return Markup("The cancel request was refused.")
        case State.EXPIRED:
            return Markup("The cancel request has expired: it could not be granted by {}.").format(
                until
            )
        case State.FAILED:
            return Markup("The cancel request has failed.")
        case State.IN_DOUBT:
            said = "The POS was asked to cancel it, and has not said whether it did; it is asked until {}."
            return Markup(said).format(until)  # noqa: S704  (a sentence of ours)
    said = "A cancel request is open until {}: the order is not sent before it is decided."
    return Markup(said).format(until)  # noqa: S704  (a sentence of ours)


def _say(sentence: str, *values: object) -> list[Markup]:
    """A sentence, its values escaped."""
    match values:
        case (Facts() as facts, str() as name):
            values = (moment(getattr(facts, name), facts.now),)
    return [Markup(sentence).format(*values)]  # noqa: S704  (sentences of this file)
