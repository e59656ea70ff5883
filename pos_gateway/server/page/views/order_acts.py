"""What an operator can do with one order. Each form explains first; the ledger decides.

A form has what its page showed of the order: if that changed meanwhile, the act is refused, with what
happened since. The write itself is guarded by the ledger, too.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pos_gateway.administration.extend import Extension, require_extendable
from pos_gateway.administration.replay import Replay
from pos_gateway.administration.resolve import Resolution
from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.broker.publisher import Publisher
from pos_gateway.client import CANCEL_FOR, home_of
from pos_gateway.domain.errors import AdminError, OrderChanged, PublishError
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.outcome import RESOLVED, Kind, one_line
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.clock import from_unix, shown
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Page
from pos_gateway.server.page.views.order_reading import OrderReading
from pos_gateway.server.page.views.order_words import STATES, Facts, standing
from pos_gateway.server.page.visit import Visit
from pos_gateway.settings import Settings

PATH = "/merchants/{merchant_id}/orders/{order_id}"
#: New time that forms offer: minutes and their name.
TIMES = {"15": "15 minutes", "30": "30 minutes", "60": "an hour", "120": "two hours"}
#: Maximum minutes of new time.
_LONGEST = 7 * 24 * 60
_HELD = (
    "another reader of the dead letters has some at this moment, and this order's may be among them; "
    "submit this again in a moment"
)
#: Characters of a POS's id.
_ID = 256


class _OrderToActOn(NamedTuple):
    """An order as an act has it: its key, and what is known of it."""

    key: Key
    facts: Facts

    def order(self) -> OrderStanding:
        """Raises AdminError: no worker has had it yet."""
        if self.facts.order is None:
            raise AdminError("no worker has had the order yet; wait until one has, or cancel it")
        return self.facts.order


class OrderActs:
    """The actions' forms and what they do.

    Args:
        split: the canary split in force.
    """

    def __init__(
        self, reading: OrderReading, settings: Settings, split: Callable[[], Split]
    ) -> None:
        self._reading = reading
        self._settings = settings
        self._split = split
        self.routes = tuple(
            FormAction(
                f"{PATH}/{name}",
                f"orders.{name}",
                page=self._form(name),
                run=run,
                audits=name != "cancel",  # which changes no order, and is a message alone
            )
            for name, run in (
                ("cancel", self._cancel),
                ("resolve", self._resolve),
                ("extend", self._extend),
                ("replay", self._replay),
            )
        )

    def _form(self, name: str) -> Callable[[Visit], Page]:
        def page(visit: Visit) -> Page:
            facts = self._reading.facts(visit.values)
            named: dict[str, Any] = dict(visit.values)
            return Page(
                f"order_{name}.html",
                f"{name.capitalize()} order {visit.values['order_id']}",
                facts=facts,
                order=facts.order,
                now=facts.now,
                standing=standing(facts),
                seen=_token(name, facts.order),
                refusal=_refusal(name, facts),
                times=TIMES,
                **_of_resolve(facts),
                **named,
            )

        return page

    def _cancel(self, act: Act) -> Done:
        seen = self._seen(act, "cancel")
        key = seen.key
        minutes = _minutes(act, default=CANCEL_FOR)
        until = self._reading.clock.now() + minutes
        request = CancelRequest.parse(
            {
                "order_id": key.order_id,
                "merchant_id": key.merchant_id,
                "deliver_by": until.isoformat(),
            }
        )
        home = home_of(key.merchant_id, self._split())
        message = wire.cancel_message(key.order_id, request.to_json(), routing_key=home)
        publisher = Publisher(self._settings.broker_url)
        try:
            publisher.publish(message)
        except PublishError as error:
            raise AdminError(
                f"the broker has not confirmed the cancel request ({error}): it is stored, or not. Submit "
                "this again: to ask twice is harmless"
            ) from error
        finally:
            publisher.close()
        return _done(key, f"is asked to be cancelled, until {shown(until.timestamp())}")

    def _resolve(self, act: Act) -> Done:
        answer, external_id = act.form.get("answer"), act.form.get("external_id", "").strip()
        until = self._until(act)
        if answer not in ("accepted", "not_sent"):
            raise AdminError("Answer: say what the merchant said: the POS has it, or not")
        if answer == "accepted" and until is not None:
            raise AdminError("New time: is for an order that the POS does not have")
        if answer == "not_sent" and external_id:
            raise AdminError("The POS's id: is for an order that the POS has")
        if external_id and (len(external_id) > _ID or one_line(external_id) != external_id):
            raise AdminError(
                f"The POS's id: has 1 to {_ID} characters on one line that can be printed"
            )
        seen = self._seen(act, "resolve")
        publisher = Publisher(self._settings.broker_url)
        try:
            if answer == "not_sent":  # before anything is written: it must be published afterwards
                publisher.connect()
            resolution = Resolution(
                self._reading.orders,
                publisher,
                act.operator,
                self._split(),
                self._reading.clock,
                reason=act.reason,
            )
            if answer == "accepted":
                done = resolution.accepted(seen.order(), external_id or None)
            else:
                done = resolution.not_sent(seen.order(), until)
        finally:
            publisher.close()
        return _done(seen.key, done)

    def _extend(self, act: Act) -> Done:
        until = self._until(act)
        if until is None:
            raise AdminError("New time: say how long from now")
        seen = self._seen(act, "extend")
        extension = Extension(
            self._reading.orders, act.operator, self._reading.clock, reason=act.reason
        )
        return _done(seen.key, extension.extend(seen.order(), until))

    def _replay(self, act: Act) -> Done:
        until = self._until(act)
        seen = self._seen(act, "replay")
        publisher = Publisher(self._settings.broker_url)
        refused: list[str] = []
        try:
            with DeadLetterQueue(self._settings.broker_url) as letters:
                replay = Replay(
                    self._reading.orders,
                    publish=publisher.publish,
                    acknowledge=letters.acknowledge,
                    operator=act.operator,
                    split=self._split(),
                    until=until,
                    largest=self._settings.max_order_bytes,
                    dry_run=False,
                    clock=self._reading.clock,
                    reason=act.reason,
                )
                found = [each for each in letters if _is_of(each, seen.key)]
                for letter in found:
                    if (why_not := replay.replay(letter)) is not None:
                        refused.append(str(why_not))
        finally:
            publisher.close()
        if not found:
            raise AdminError(_HELD if letters.others else _no_letter(seen.facts.order))
        if len(refused) == len(found):
            raise AdminError(f"it cannot be replayed: {refused[0]}")
        rest = (
            f"; of its {len(found)} messages {len(refused)} stay: {refused[0]}" if refused else ""
        )
        return _done(seen.key, f"is replayed: it is on the queue again{rest}")

    def _seen(self, act: Act, name: str) -> _OrderToActOn:
        """The order now. Raises OrderChanged: it is not as the form's page had it."""
        key, facts = self._reading.to_act_on(act.values)
        if (why_not := _refusal(name, facts)) is not None:
            raise AdminError(self._with_last(key, why_not))
        if act.form.get("seen") != _token(name, facts.order):
            state = standing(facts).title
            since = "" if facts.order is None else f", since {shown(facts.order.updated_at)}"
            why = f"something has happened to this order since its form was opened: it is {state} now{since}"
            raise OrderChanged(
                self._with_last(key, why)
                + ". Look at it, ask the merchant again if you had asked, and then "
                "submit this again"
            )
        return _OrderToActOn(key, facts)

    def _with_last(self, key: Key, sentence: str) -> str:
        """The sentence, with what an operator did last."""
        done = self._reading.orders.audit(key)
        if not done:
            return sentence
        last = done[-1]
        return f"{sentence} (the last in the audit: {last['operator']}, {last['what']}, at {shown(last['at'])})"

    def _until(self, act: Act) -> datetime | None:
        minutes = act.form.get("minutes", "").strip()
        return self._reading.clock.now() + _minutes(act) if minutes else None


def _minutes(act: Act, default: timedelta = timedelta()) -> timedelta:
    given = act.form.get("minutes", "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 7 and 0 < int(given) <= _LONGEST):
        raise AdminError(f"New time: {given[:40]!r} is no number of minutes, 1 to {_LONGEST}")
    return timedelta(minutes=int(given))


def _token(name: str, order: OrderStanding | None) -> str:
    """What a form has seen of the order; for a cancel request only whether, and how, it has ended."""
    if order is None:
        return "open"
    if name == "cancel":
        return order.state.value if order.state.is_final else "open"
    return f"{order.epoch}:{order.state.value}:{order.updated_at!r}"


def _refusal(name: str, facts: Facts) -> str | None:
    """Why the order allows no such act as it is; the form's page and the act say the same."""
    order = facts.order
    if name == "cancel":
        return _no_cancel(order, facts.now)
    if order is None:
        return "no worker has had the order yet; wait until one has, or cancel it"
    if name == "extend":
        try:
            require_extendable(order)
        except AdminError as error:
            return str(error)
    if name == "resolve" and not order.is_in_doubt and not _is_repeatable(order):
        return f"the order is not in doubt: it is {STATES[order.state]}"
    if name == "replay" and order.state in (State.ACCEPTED, State.REJECTED, State.CANCELLED):
        return f"it is {STATES[order.state]}: the POS has decided, and it is not sent again"
    return None


#: Why no order is cancelled whose undo was given up: a cancel request would end at once.
LEFT_UNDONE = (
    "its POS did not undo it, and no worker tries again: ask the merchant, and decide with Resolve"
)


def _no_cancel(order: OrderStanding | None, now: float) -> str | None:
    if order is None or not (order.state.is_final or order.is_being_undone):
        return None
    if not order.state.is_final:
        is_left = order.is_left(now)
        return LEFT_UNDONE if is_left else "it is being undone at its POS already"
    if order.cancellation is State.CANCELLED or order.state is State.CANCELLED:
        return "it is cancelled already"
    if order.state is not State.ACCEPTED:
        return f"it is {STATES[order.state]}: there is nothing to cancel"
    return None


def _is_repeatable(order: OrderStanding) -> bool:
    """Whether it was resolved so that a message has to follow, which the broker may not have."""
    return order.reason_code == RESOLVED and order.state in (State.NEW, State.EXPIRED)


def _of_resolve(facts: Facts) -> dict[str, Any]:
    """What the form of a decision explains."""
    order = facts.order
    is_late = order is not None and order.deliver_by is not None and order.deliver_by <= facts.now
    return {
        "is_late": is_late,
        "is_final_doubt": order is not None and order.last_event == Kind.IN_DOUBT,
        "has_cancel_request": order is not None and order.cancellation is not None,
        "deliver_by": None
        if order is None or order.deliver_by is None
        else from_unix(order.deliver_by),
    }


def _is_of(letter: DeadLetter, key: Key) -> bool:
    return key.order_id in (letter.order_id, letter.id) and letter.merchant_id == key.merchant_id


def _no_letter(order: OrderStanding | None) -> str:
    gone = "no message of this order is in the dead letters: it was replayed or discarded before"
    if order is not None and not order.state.is_final:
        return f"{gone}, or it waits elsewhere. If it does not move, have the backend submit it again, which is harmless"
    return f"{gone}. An order that has ended is not sent under its id again: have the backend submit it as a new one"


def _done(key: Key, done: str) -> Done:
    notice = f"Order {key.order_id!r} of merchant {key.merchant_id!r} {done}."
    return Done(notice, link("/merchants/{}/orders/{}", key.merchant_id, key.order_id))
