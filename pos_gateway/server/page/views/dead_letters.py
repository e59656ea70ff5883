"""Dead letters: which there are and why, what to do about each reason, and runs on many."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pos_gateway.administration.bulk.groups import LetterGroups
from pos_gateway.administration.bulk.run import RATE, BulkAction, Subject
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.page.letter_count import CountedLetters, LetterCount
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Get, Nav, Page, Part, View, Viewer
from pos_gateway.server.page.views.bulk_forms import (
    FIELDS,
    filter_of,
    given,
    in_words,
    limit_of,
    options_of,
)
from pos_gateway.server.page.views.letter_remedies import remedy
from pos_gateway.server.page.views.order_acts import TIMES
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Capability

#: Groups and letters that are shown, and lists that are kept.
_GROUPS, _SAMPLE, _LISTS = 50, 25, 16
_BY = ("provider", "merchant")
_ACTIONS = {"replay": BulkAction.REPLAY, "discard": BulkAction.DISCARD}


class ShownLetterGroup(NamedTuple):
    """Letters with the same reason, and of the same provider or merchant."""

    reason: str | None
    of: str | None
    letters: int
    oldest: float | None
    newest: float | None
    address: str


class Listed(NamedTuple):
    """What a filter means of the letters that were counted."""

    counted: CountedLetters
    number: int
    groups: list[ShownLetterGroup]
    more_groups: int
    sample: list[DeadLetter]
    remedies: list[tuple[str, str]]


class DeadLetters(View):
    """The list at ``/dead-letters``."""

    nav = Nav("Dead letters", "/dead-letters")

    def __init__(self, threads: BulkThreads, count: LetterCount, clock: Clock) -> None:
        self._threads = threads
        self._count = count
        self._clock = clock
        self._lists: dict[tuple[tuple[str, str], ...], Listed] = {}
        self.routes = (
            Get("/dead-letters", self._page),
            *(
                FormAction(
                    f"/dead-letters/{name}",
                    f"dlq.{name}.preview",
                    page=self._form(name),
                    run=self._preview(name),
                )
                for name in _ACTIONS
            ),
        )
        self.parts = (
            Part("letters", "dead_letters_list.html", self._read, takes=(*FIELDS, "by"), every=2.0),
        )

    def _page(self, visit: Visit) -> Page:
        fields = given(visit.query)
        filter_of(fields, self._now())
        self._count.look(again=visit.query.get("again") == "1")
        by = visit.query.get("by")
        return Page(
            "dead_letters.html",
            "Dead letters",
            parts=("letters",),
            given=fields,
            by=by if by in _BY else _BY[0],
            may_act=visit.may_act,
            acts={name: link(f"/dead-letters/{name}", **fields) for name in _ACTIONS},
        )

    def _read(self, viewer: Viewer) -> Mapping[str, Any]:
        fields = given(viewer.values)
        by = viewer.values.get("by", "")
        by = by if by in _BY else _BY[0]
        again = link("/dead-letters", **fields, by=by, again="1")
        listed, problem = None, None
        try:
            listed = self._listed(fields, by)
        except Problem as error:
            problem = error.detail
        return {
            "now": self._now(),
            "listed": listed,
            "problem": problem,
            "is_reading": self._count.is_reading,
            "active": self._threads.store.active(Subject.LETTERS),
            "by": by,
            "again": again,
            "is_filtered": bool(fields),
            # The words of a failure may quote a customer.
            "may_reveal": viewer.role.allows(Capability.REVEAL),
        }

    def _listed(self, fields: dict[str, str], by: str) -> Listed | None:
        counted = self._count.last
        if counted is None:
            return None
        key = (*sorted(fields.items()), ("by", by))
        known = self._lists.get(key)
        if known is not None and known.counted is counted:
            return known
        filter_ = filter_of(fields, counted.at)
        meant = [x for x in counted.letters if filter_.has_letter(x, counted.providers)]
        groups = LetterGroups(("reason", by), counted.providers)
        for letter in meant:
            groups.add(letter)
        largest = [
            ShownLetterGroup(
                each.key["reason"],
                each.key[by],
                each.count,
                each.oldest,
                each.newest,
                _narrowed(fields, by, each.key),
            )
            for each in groups.largest(_GROUPS)
        ]
        reasons = dict.fromkeys(each.reason for each in largest)
        listed = Listed(
            counted,
            len(meant),
            largest,
            len(groups) - len(largest),
            meant[:_SAMPLE],
            [(each, remedy(each)) for each in reasons if each is not None],
        )
        if any(each.counted is not counted for each in list(self._lists.values())):
            self._lists.clear()  # each holds all letters of its count
        while len(self._lists) >= _LISTS:
            self._lists.pop(next(iter(self._lists), key), None)
        self._lists[key] = listed
        return listed

    def _form(self, name: str) -> Any:
        def page(visit: Visit) -> Page:
            fields = given(visit.query)
            filter_ = filter_of(fields, self._now())
            return Page(
                "dead_letters_act.html",
                f"{name.capitalize()} dead letters",
                name=name,
                meant=in_words(filter_.record, "letters"),
                is_all=not fields,
                back=link("/dead-letters", **fields),
                active=self._threads.store.active(Subject.LETTERS),
                times=TIMES,
                rate=RATE,
                reasons=[(fields["reason"], remedy(fields["reason"]))]
                if "reason" in fields
                else [],
            )

        return page

    def _preview(self, name: str) -> Any:
        def run(act: Act) -> Done:
            filter_ = filter_of(given(act.visit.query), self._now())
            run_id = self._threads.preview(
                _ACTIONS[name], filter_, options_of(act), act.operator, limit=limit_of(act)
            )
            return Done(
                "Nothing is done yet: look at the preview, and confirm it.",
                link("/runs/{}", str(run_id)),
            )

        return run

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _narrowed(fields: dict[str, str], by: str, key: Mapping[str, str | None]) -> str:
    more = {name: value for name, value in (("reason", key["reason"]), (by, key[by])) if value}
    return link("/dead-letters", **{**fields, **more}, by="merchant")
