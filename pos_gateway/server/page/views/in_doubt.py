"""Orders in doubt: which there are, of whom, since when, and one answer for many."""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Engine

from pos_gateway.administration.bulk.doubt import DOUBTFUL
from pos_gateway.administration.bulk.groups import LetterGroup
from pos_gateway.administration.bulk.run import RATE, BulkAction, Subject
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.merchants.providers import provider_of_each
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Action, Done, Get, Nav, Page, View
from pos_gateway.server.page.views.bulk_forms import (
    filter_of,
    given,
    in_words,
    limit_of,
    options_of,
)
from pos_gateway.server.page.views.order_acts import TIMES
from pos_gateway.server.page.visit import Visit

#: Orders and groups on a page.
_ORDERS, _GROUPS = 50, 50
#: Seconds for which what was read counts, and as many times as long as the read took.
_RECENT, _TIMES = 2.0, 10.0
_ANSWERS = {"accepted": BulkAction.ACCEPTED, "not_sent": BulkAction.NOT_SENT}


class Doubts(NamedTuple):
    """All orders in doubt, the longest in doubt first."""

    at: float
    orders: list[OrderStanding]
    providers: dict[str, str | None]


class InDoubt(View):
    """The list at ``/in-doubt``."""

    nav = Nav("In doubt", "/in-doubt")

    def __init__(
        self, database: Engine, orders: OrderAdmin, threads: BulkThreads, clock: Clock
    ) -> None:
        self._database = database
        self._orders = orders
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._read: Doubts | None = None
        self._recent_until = 0.0
        self.routes = (
            Get("/in-doubt", self._page),
            Action(
                "/in-doubt/resolve", "orders.resolve.preview", page=self._form, run=self._preview
            ),
        )

    def _page(self, visit: Visit) -> Page:
        fields = _given(visit)
        doubts = self._doubts()
        filter_ = filter_of(fields, self._now())
        meant = [each for each in doubts.orders if filter_.has_order(each, doubts.providers)]
        number = _page_number(visit.query.get("page", ""))
        first = (number - 1) * _ORDERS
        groups = _groups(meant, doubts.providers)
        return Page(
            "in_doubt.html",
            "In doubt",
            now=self._now(),
            as_of=doubts.at,
            given=fields,
            count=len(meant),
            groups=[(each, _narrowed(fields, each.key)) for each in groups[:_GROUPS]],
            more_groups=max(0, len(groups) - _GROUPS),
            orders=meant[first : first + _ORDERS],
            since={each.key: since_of(each) for each in meant[first : first + _ORDERS]},
            number=number,
            earlier=link("/in-doubt", **fields, page=str(number - 1)) if number > 1 else None,
            later=link("/in-doubt", **fields, page=str(number + 1))
            if len(meant) > first + _ORDERS
            else None,
            may_act=visit.may_act,
            resolve=link("/in-doubt/resolve", **fields),
            active=self._threads.store.active(Subject.DOUBT),
        )

    def _form(self, visit: Visit) -> Page:
        fields = _given(visit)
        filter_ = filter_of(fields, self._now())
        return Page(
            "in_doubt_resolve.html",
            "Resolve orders in doubt",
            meant=in_words(filter_.record, "orders in doubt"),
            is_all=not fields,
            back=link("/in-doubt", **fields),
            active=self._threads.store.active(Subject.DOUBT),
            times=TIMES,
            rate=RATE,
        )

    def _preview(self, act: Act) -> Done:
        answer = act.form.get("answer", "")
        if answer not in _ANSWERS:
            raise AdminError("Answer: say what the merchants said: their POS has them, or not")
        options = options_of(act)
        if answer == "accepted" and options.seconds is not None:
            raise AdminError("New time: is for orders that the POS does not have")
        filter_ = filter_of(_given(act.visit), self._now())
        run_id = self._threads.preview(
            _ANSWERS[answer], filter_, options, act.operator, limit=limit_of(act)
        )
        return Done(
            "Nothing is done yet: look at the preview, and confirm it.",
            link("/runs/{}", str(run_id)),
        )

    def _doubts(self) -> Doubts:
        with self._lock:  # one read for all viewers
            began = time.monotonic()
            if self._read is None or began >= self._recent_until:
                at = self._now()
                found = [x for x in self._orders.orders(states=DOUBTFUL) if x.is_in_doubt]
                found.sort(key=lambda each: (since_of(each), each.key))
                self._read = Doubts(at, found, provider_of_each(self._database))
                now = time.monotonic()
                self._recent_until = now + min(60.0, max(_RECENT, _TIMES * (now - began)))
            return self._read

    def _now(self) -> float:
        return self._clock.now().timestamp()


def since_of(order: OrderStanding) -> float:
    """Since when it is in doubt."""
    return order.updated_at if order.doubt_since is None else order.doubt_since


def _given(visit: Visit) -> dict[str, str]:
    return {name: value for name, value in given(visit.query).items() if name != "only"}


def _page_number(text: str) -> int:
    return (
        int(text) if text.isascii() and text.isdigit() and 1 <= len(text) <= 6 and int(text) else 1
    )


def _groups(orders: list[OrderStanding], providers: Mapping[str, str | None]) -> list[LetterGroup]:
    found: dict[tuple[str | None, ...], LetterGroup] = {}
    for each in orders:
        key = (each.reason_code, each.merchant_id, providers.get(each.merchant_id))
        group = found.get(key)
        if group is None:
            named = dict(zip(("reason", "merchant", "provider"), key, strict=True))
            group = found[key] = LetterGroup(named)
        group.add(since_of(each))
    return sorted(found.values(), key=lambda group: -group.count)


def _narrowed(fields: dict[str, str], key: Mapping[str, str | None]) -> str:
    more = {name: value for name, value in key.items() if value and name != "provider"}
    return link("/in-doubt", **{**fields, **more})
