"""Orders in doubt: which there are, of whom, since when, and one answer for many."""

import json
import threading
import time
from collections.abc import Mapping

from sqlalchemy import Engine

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.registry import adapters
from pos_gateway.administration.bulk.run import RATE, BulkAction, Subject
from pos_gateway.administration.doubts import DoubtPage, Doubts
from pos_gateway.domain.errors import AdminError
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Get, Nav, Page, View
from pos_gateway.server.page.views.bulk_forms import (
    filter_of,
    given,
    in_words,
    limit_of,
    options_of,
)
from pos_gateway.server.page.views.order_acts import TIMES
from pos_gateway.server.page.views.orders import place_of
from pos_gateway.server.page.visit import Visit

#: Orders and groups on a page.
_ORDERS, _GROUPS = 50, 50
#: Seconds for which what was read counts, and as many times as long as the read took.
_RECENT, _TIMES = 2.0, 10.0
_ANSWERS = {"accepted": BulkAction.ACCEPTED, "not_sent": BulkAction.NOT_SENT}


class InDoubt(View):
    """The list at ``/in-doubt``."""

    nav = Nav("In doubt", "/in-doubt")

    def __init__(self, database: Engine, threads: BulkThreads, clock: Clock) -> None:
        blind = [name for name, each in adapters().items() if each.guarantee is Guarantee.BLIND]
        self._doubts = Doubts(database, blind)
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        #: The last page that was read, of which query, and until when it counts.
        self._read: tuple[object, DoubtPage] | None = None
        self._as_of = self._recent_until = 0.0
        self.routes = (
            Get("/in-doubt", self._page),
            FormAction(
                "/in-doubt/resolve", "orders.resolve.preview", page=self._form, run=self._preview
            ),
        )

    def _page(self, visit: Visit) -> Page:
        fields, after = _given(visit), visit.query.get("after")
        found, as_of = self._found(fields, after)
        more = found.orders[-1].place if found.has_more else None
        return Page(
            "in_doubt.html",
            "In doubt",
            now=self._now(),
            as_of=as_of,
            given=fields,
            found=found,
            groups=[(each, _narrowed(fields, each.key)) for each in found.groups],
            first=link("/in-doubt", **fields) if after else None,
            later=link("/in-doubt", **fields, after=json.dumps(more)) if more else None,
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

    def _found(self, fields: dict[str, str], after: str | None) -> tuple[DoubtPage, float]:
        query = (*fields.items(), after)
        with self._lock:  # one read for all viewers of a page
            began = time.monotonic()
            if self._read is None or self._read[0] != query or began >= self._recent_until:
                at = self._now()
                page = self._doubts.page(
                    filter_of(fields, at), place_of(after), at, most=_ORDERS, groups=_GROUPS
                )
                self._read, self._as_of = (query, page), at
                now = time.monotonic()
                self._recent_until = now + min(60.0, max(_RECENT, _TIMES * (now - began)))
            return self._read[1], self._as_of

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _given(visit: Visit) -> dict[str, str]:
    return {name: value for name, value in given(visit.query).items() if name != "only"}


def _narrowed(fields: dict[str, str], key: Mapping[str, str | None]) -> str:
    more = {name: value for name, value in key.items() if value and name != "provider"}
    return link("/in-doubt", **{**fields, **more})
