"""The canary: its share and its pilots, how it does, and the way back."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from pos_gateway.broker.queue_state import QueueState, queue_states
from pos_gateway.canary import administration
from pos_gateway.canary.verdict import CanaryDecision, CanaryFinding
from pos_gateway.domain.errors import AdminError, InvalidSplit, PublishError
from pos_gateway.domain.split import Split
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.clock import Clock
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.server.page.view import Act, Done, FormAction, Get, Nav, Page, Part, View, Viewer
from pos_gateway.server.page.visit import Visit
from pos_gateway.settings import Settings
from pos_gateway.tokens.token import Capability

_PATH = "/canary"
_TONES: Mapping[str, str] = {
    **dict.fromkeys((CanaryDecision.PROMOTE, CanaryFinding.FINE), "good"),
    **dict.fromkeys((CanaryDecision.HOLD, CanaryFinding.UNKNOWN), "warn"),
    **dict.fromkeys((CanaryDecision.ABORT, CanaryFinding.WORSE), "bad"),
    CanaryFinding.LEFT_OUT: "",
}
#: A verdict, and what to do.
_NEXT = {
    CanaryDecision.PROMOTE: "It does as well as the stable workers: give it a larger share, a peak hour for each.",
    CanaryDecision.HOLD: "It is not known yet: wait for more orders.",
    CanaryDecision.ABORT: "It does worse: move all merchants back. No order is lost or sent twice.",
}


class Canary(View):
    """``/canary``, and the forms that change the split."""

    nav = Nav("Canary", _PATH)

    def __init__(
        self,
        settings: Settings,
        database: Engine,
        payloads: Payloads,
        split: Callable[[], Split],
        clock: Clock,
    ) -> None:
        self._settings, self._database, self._payloads = settings, database, payloads
        self._split, self._clock = split, clock
        self.routes = (
            Get(_PATH, lambda _: Page("canary.html", "Canary", parts=("canary", "verdict"))),
            FormAction(f"{_PATH}/share", "canary.set", page=self._form, run=self._set),
            FormAction(f"{_PATH}/abort", "canary.abort", page=self._abort_form, run=self._abort),
        )
        self.parts = (
            Part("canary", "canary_now.html", self._now, every=5.0),
            # It reads up to an hour of orders.
            Part("verdict", "canary_verdict.html", self._verdict, every=60.0),
        )

    def _now(self, viewer: Viewer) -> Mapping[str, Any]:
        split, problem = self._split(), None
        queues: Sequence[QueueState] = ()
        try:
            queues = queue_states(self._settings.broker_url)
        except PublishError as error:
            problem = str(error)
        return {
            "split": split,
            "changed_at": _seconds(split),
            "queues": queues,
            "own_workers": queues[1].consumers - queues[0].consumers if queues else None,
            "problem": problem,
            "may_act": viewer.role.allows(Capability.ACT),
            "now": self._clock.now().timestamp(),
        }

    def _verdict(self, _viewer: Viewer) -> Mapping[str, Any]:
        verdict, why_not, split = None, "", self._split()
        try:
            if (unjudged := administration.unjudged(split)) is not None:
                raise AdminError(unjudged)
            queues = queue_states(self._settings.broker_url)
            verdict = administration.verdict(split, queues, self._database, self._payloads)
        except (AdminError, PublishError, CannotOpen) as error:
            why_not = str(error)
        return {
            "verdict": verdict,
            "next": "" if verdict is None else _NEXT[verdict.decision],
            "why_not": why_not,
            "tones": _TONES,
            "now": self._clock.now().timestamp(),
        }

    def _form(self, _visit: Visit) -> Page:
        split = self._split()
        return Page(
            "canary_share.html",
            "The canary's share",
            split=split,
            percent=f"{split.percent:g}",
            pins=" ".join(sorted(split.pins)),
            seen=_stamp(split),
        )

    def _set(self, act: Act) -> Done:
        percent, seen = _percent(act.form.get("percent", "")), act.form.get("seen", "")
        wanted, split = set(act.form.get("pins", "").split()), self._split()
        try:
            at = datetime.fromisoformat(seen) if seen else None
        except ValueError:
            raise AdminError("the form does not say which share it shows: open it again") from None
        try:
            done = administration.change(
                *(self._settings.broker_url, self._settings.canary_percent, act.operator, percent),
                pins=wanted,
                unpins=split.pins - wanted,
                seen=at,
            )
        except InvalidSplit as error:
            raise AdminError(
                "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
            ) from None
        return Done(f"The canary has {done}. Order backends follow within seconds.", _PATH)

    def _abort_form(self, _visit: Visit) -> Page:
        return Page("canary_abort.html", "Move all merchants back", split=self._split())

    def _abort(self, act: Act) -> Done:
        administration.abort(self._settings.broker_url, act.operator)
        says = "All merchants' orders go to the stable workers within seconds."
        try:
            left = administration.left_behind(self._settings.broker_url)
        except PublishError as error:
            left = str(error)
        return Done(says if left is None else f"{says} But {left}.", _PATH, warns=left is not None)


def _percent(text: str) -> float:
    """Raises AdminError."""
    if not re.fullmatch(r"\d{1,3}(\.\d{1,6})?", text.strip(), re.ASCII) or float(text) > 100:
        raise AdminError(f"Share: {text[:40]!r} is no percentage, 0 to 100")
    return float(text)


def _seconds(split: Split) -> float | None:
    return None if split.changed_at is None else split.changed_at.timestamp()


def _stamp(split: Split) -> str:
    """Which split a form shows."""
    return "" if split.changed_at is None else split.changed_at.isoformat()
