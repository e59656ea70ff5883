"""Bulk runs: previews to confirm, progress, and how to stop and resume them."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from pos_gateway.administration.bulk.previews import SILENT, UNCONFIRMED
from pos_gateway.administration.bulk.run import BulkRun, RunState, Subject
from pos_gateway.domain.errors import AdminError
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.bulk_threads import BulkThreads
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Get, Nav, Page, Part, View, Viewer
from pos_gateway.server.page.views.bulk_forms import in_words
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Capability, Role

#: Runs that are listed, and those whose pace is known.
_LISTED, _PACES = 50, 32
#: Seconds over which a pace is measured.
_OVER = 30.0
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_VERBS = {
    "dlq.replay": "Replay",
    "dlq.discard": "Discard",
    "orders.accepted": "Resolve as accepted",
    "orders.not_sent": "Resolve as not sent",
}


class Runs(View):
    """The list at ``/runs``, and each run."""

    nav = Nav("Runs", "/runs")

    def __init__(self, threads: BulkThreads, clock: Clock) -> None:
        self._threads = threads
        self._store = threads.store
        self._clock = clock
        #: When a run was seen, and how many of its items were acted on then.
        self._paces: dict[int, deque[tuple[float, int]]] = {}
        path = "/runs/{run_id}"
        self.routes = (
            Get("/runs", lambda _: Page("runs.html", "Runs", parts=("runs",))),
            Get(path, self._page),
            *(
                FormAction(
                    f"{path}/{name}", f"bulk.{name}", page=self._form(name), run=run, audits=True
                )
                for name, run in (
                    ("start", self._start),
                    ("stop", self._stop),
                    ("resume", self._resume),
                )
            ),
        )
        self.parts = (
            Part("runs", "runs_list.html", self._list, every=2.0),
            Part("run", "run_progress.html", self._read, takes=("run_id",)),
        )

    def _page(self, visit: Visit) -> Page:
        run = self._run(visit.values)
        return Page("run.html", f"Run {run.id}", parts=("run",), run=run, verb=_VERBS[run.action])

    def _list(self, _viewer: Viewer) -> Mapping[str, Any]:
        return {
            "now": self._now(),
            "verbs": _VERBS,
            "runs": [(each, _meant(each)) for each in self._store.runs(_LISTED)],
        }

    def _read(self, viewer: Viewer) -> Mapping[str, Any]:
        try:
            run = self._run(viewer.values)
        except Problem as error:
            return {"run": None, "problem": error.detail}
        pace = self._pace(run)
        expected = pace or float(run.options.get("rate") or 0)
        return {
            **self._about(run, viewer.role),
            "problem": None,
            "may_act": viewer.role.allows(Capability.ACT),
            "pace": pace,
            "remaining": run.left / expected if expected else None,
        }

    def _about(self, run: BulkRun, role: Role) -> dict[str, Any]:
        is_preview = run.state in (RunState.PREPARING, RunState.PREVIEWED)
        now = self._now()
        active = self._store.active(run.action.subject)
        return {
            "run": run,
            "now": now,
            "verb": _VERBS[run.action],
            "meant": _meant(run),
            "things": _things(run),
            "is_preview": is_preview,
            # Operators' words may have personal data in them.
            "may_reveal": role.allows(Capability.REVEAL),
            "is_silent": run.state is RunState.PREPARING and abs(now - run.updated_at) > SILENT,
            "refusals": self._store.refusals(run.id),
            "other": None if active is None or active.id == run.id else active,
            "kept_until": run.updated_at + UNCONFIRMED,
            "list": "/dead-letters" if run.action.subject is Subject.LETTERS else "/in-doubt",
        }

    def _form(self, name: str) -> Any:
        def page(visit: Visit) -> Page:
            run = self._run(visit.values)
            why = _why_not(name, run)
            about = self._about(run, visit.role)
            return Page(
                f"run_{name}.html", f"{name.capitalize()} run {run.id}", why_not=why, **about
            )

        return page

    def _start(self, act: Act) -> Done:
        run = self._run(act.values)
        self._require(run, "start")
        total, refused = (_count(act.form.get(name, "")) for name in ("total", "refused"))
        self._threads.start(
            run.id,
            act.operator,
            total=total,
            refused=refused,
            reason=act.reason,
            may_go_on=act.may_go_on,
        )
        return _done(run, f"Run {run.id} has started.")

    def _stop(self, act: Act) -> Done:
        run = self._run(act.values)
        self._require(run, "stop")
        self._store.stop(run.id, operator=act.operator, reason=act.reason)
        return _done(run, f"Run {run.id} stops after its present item.")

    def _resume(self, act: Act) -> Done:
        run = self._run(act.values)
        self._require(run, "resume")
        self._threads.start(run.id, act.operator, reason=act.reason, may_go_on=act.may_go_on)
        return _done(run, f"Run {run.id} goes on.")

    def _require(self, run: BulkRun, name: str) -> None:
        why = _why_not(name, run)
        if why is not None:
            raise AdminError(why)

    def _run(self, values: Mapping[str, str]) -> BulkRun:
        text = values.get("run_id", "")
        try:
            if _NUMBER.fullmatch(text):
                return self._store.run(int(text))
        except AdminError:
            pass
        raise Problem(
            404,
            "not_found",
            f"there is no run {text[:40]!r}; one that was not confirmed for an hour is removed",
        )

    def _pace(self, run: BulkRun) -> float | None:
        """Items a second of late; None: it is not known yet."""
        if not run.is_leased:
            self._paces.pop(run.id, None)
            return None
        while len(self._paces) >= _PACES and run.id not in self._paces:
            self._paces.pop(next(iter(self._paces)), None)
        seen = self._paces.setdefault(run.id, deque(maxlen=64))
        at, acted = self._now(), run.total - run.left
        while len(seen) > 1 and at - seen[0][0] > _OVER:
            seen.popleft()
        seen.append((at, acted))
        took = at - seen[0][0]
        return (acted - seen[0][1]) / took if took >= 1.0 else None

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _why_not(name: str, run: BulkRun) -> str | None:
    if name == "start":
        if run.state is RunState.PREPARING:
            return "its preview is not complete"
        if run.state is not RunState.PREVIEWED:
            return f"{run} was started already, by {run.operator}"
        return None if run.left else "nothing is left that would not be refused"
    if name == "stop":
        is_running = run.state is RunState.RUNNING
        return None if is_running else f"{run} is not at work: it is {run.said}"
    if run.state is RunState.STOPPED or run.is_interrupted:
        return None
    return f"{run} is {run.said}: there is nothing to resume"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise AdminError("the form does not say what its preview showed; open it again")
    return int(text)


def _things(run: BulkRun) -> str:
    return "letter" if run.action.subject is Subject.LETTERS else "order"


def _meant(run: BulkRun) -> str:
    is_letters = run.action.subject is Subject.LETTERS
    return in_words(run.filter, "letters" if is_letters else "orders in doubt")


def _done(run: BulkRun, says: str) -> Done:
    return Done(says, link("/runs/{}", str(run.id)))
