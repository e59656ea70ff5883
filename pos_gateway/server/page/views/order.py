"""One order: its life as a line in time, what happens next, and the order itself."""

from collections.abc import Mapping
from typing import Any

from pos_gateway.adapters.adapted import adapted_in
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import State
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Get, Page, Part, View, Viewer
from pos_gateway.server.page.views.order_acts import PATH, OrderActs
from pos_gateway.server.page.views.order_content import content
from pos_gateway.server.page.views.order_life import gaps, picture, shown_reason
from pos_gateway.server.page.views.order_reading import OrderReading, key_of
from pos_gateway.server.page.views.order_words import Facts, cancellation, standing
from pos_gateway.server.page.visit import Visit
from pos_gateway.tokens.token import Capability

#: What a reveal's notice begins with. No other action's does: it is the reveal's proof.
_REVEALED = "Revealed once, with a line in the audit: order "


class OrderPage(View):
    """The page of an order, and what an operator can do with it."""

    def __init__(self, reading: OrderReading, acts: OrderActs) -> None:
        self._reading = reading
        self.routes = (
            Get(PATH, self._page),
            FormAction(
                f"{PATH}/reveal",
                "orders.reveal",
                page=self._reveal_form,
                run=self._reveal,
                audits=True,
            ),
            *acts.routes,
        )
        self.parts = (
            Part("order", "order_life.html", self._life, takes=("merchant_id", "order_id")),
        )

    def _page(self, visit: Visit) -> Page:
        facts, title = self._reading.facts(visit.values), f"Order {visit.values['order_id']}"
        if visit.notice == _revealed(visit.values) and visit.role.allows(Capability.REVEAL):
            return self._revealed_page(visit, facts, title)
        return Page(
            "order.html",
            title,
            parts=("order",),
            **self._shown(visit, facts, reveal=False),
        )

    def _revealed_page(self, visit: Visit, facts: Facts, title: str) -> Page:
        """Without live parts: nothing reloads it, and the next look is masked again."""
        key = key_of(visit.values)
        assert key is not None  # noqa: S101  (the order was found)
        life = self._reading.life(key, facts, None)
        return Page(
            "order_revealed.html",
            title,
            words=[each for each in life if each.reason is not None],
            **self._shown(visit, facts, reveal=True),
        )

    def _shown(self, visit: Visit, facts: Facts, *, reveal: bool) -> dict[str, Any]:
        key = key_of(visit.values)
        assert key is not None  # noqa: S101  (the order was found)
        shown, why_not = content(self._reading.orders, key, reveal=reveal)
        adapted, adapted_more = adapted_in(self._reading.orders.adapted(key))
        return {
            **visit.values,
            "facts": facts,
            "now": facts.now,
            "content": shown,
            "why_not": why_not,
            "adapted": adapted,
            "adapted_more": adapted_more,
            "address": link("/merchants/{}/orders/{}", key.merchant_id, key.order_id),
        }

    def _life(self, viewer: Viewer) -> Mapping[str, Any]:
        key, facts = key_of(viewer.values), self._reading.find(viewer.values)
        if key is None or facts is None:
            return {"is_known": False}
        order, request = facts.order, self._reading.cancel_request(key)
        life = self._reading.life(key, facts, viewer.role)
        is_over = order is not None and order.state.is_final
        return {
            "is_known": True,
            "merchant_id": key.merchant_id,
            "order_id": key.order_id,
            "now": facts.now,
            "facts": facts,
            "standing": standing(facts),
            "steps": facts.steps,
            "reason": _reason(order, viewer),
            "cancellation": request and cancellation(request, facts.now),
            "cancel_reason": _reason(request, viewer, of_cancel=True),
            "life": list(zip(life, gaps(life), strict=True)),
            "picture": picture(
                life,
                None if order is None else order.deliver_by,
                life[-1].at if is_over else facts.now,
            )
            if life
            else None,
            "acts": _acts(facts) if viewer.role.allows(Capability.ACT) else [],
        }

    def _reveal_form(self, visit: Visit) -> Page:
        facts = self._reading.facts(visit.values)
        named: dict[str, Any] = dict(visit.values)
        return Page("order_reveal.html", "Reveal an order", facts=facts, **named)

    def _reveal(self, act: Act) -> Done:
        key, _ = self._reading.to_act_on(act.values)
        # In its own transaction: without the audit's line nothing is revealed.
        self._reading.orders.note(
            key,
            operator=act.operator,
            what="orders.reveal",
            details=f"page, from {act.visit.client}",
            reason=act.reason,
        )
        return Done(
            _revealed(act.values), link("/merchants/{}/orders/{}", key.merchant_id, key.order_id)
        )


def _revealed(values: Mapping[str, str]) -> str:
    return f"{_REVEALED}{values['order_id']!r} of merchant {values['merchant_id']!r}."


def _reason(order: OrderStanding | None, viewer: Viewer, *, of_cancel: bool = False) -> Any:
    if order is None:
        return None
    # A cancel request's reason is in the POS's words as soon as the POS was asked.
    state = State.REJECTED if of_cancel else order.state
    return shown_reason(viewer.role, state, order.reason_code, order.reason_message)


def _acts(facts: Facts) -> list[tuple[str, str, bool]]:
    """The actions that an operator may want: path's end, name, and whether it is the first to take."""
    order = facts.order
    acts = []
    if order is not None and order.is_in_doubt:
        acts.append(("resolve", "Resolve it …", order.last_event == Kind.IN_DOUBT))
    if order is not None and order.state in (State.FAILED, State.EXPIRED) and not order.was_undone:
        acts.append(("replay", "Replay it …", True))
    is_open = order is not None and order.state in (State.NEW, State.PENDING)
    if order is not None and is_open and not order.is_being_undone:
        acts.append(("extend", "Give it more time …", False))
    if order is not None and order.state is State.NEW and (order.deliver_by or 0) < facts.now:
        acts.append(("replay", "Replay it …", True))
    may_go_on = order is None or not (order.state.is_final or order.is_being_undone)
    if may_go_on or (order is not None and order.state is State.ACCEPTED):
        acts.append(("cancel", "Cancel it …", False))
    return [*acts, ("reveal", "Reveal personal data …", False)]
