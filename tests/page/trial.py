"""A view for tests: a page with a live part and data, and an action that does as the test says.

``serve_trial.py`` is ``pos-gateway serve`` with it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select

from pos_gateway.database.schema import audit
from pos_gateway.domain.errors import AdminError, UnknownMerchant
from pos_gateway.server import site
from pos_gateway.server.page import render
from pos_gateway.server.page.links import link
from pos_gateway.server.page.listed import Sources, views
from pos_gateway.server.page.view import (
    Act,
    Done,
    FormAction,
    Get,
    Nav,
    Page,
    Part,
    View,
    Viewer,
)
from pos_gateway.server.page.visit import Visit

#: One with what a person holds, one that changes with it, and one that does not change.
_PARTS = ("trial", "also", "still")


class Trial(View):
    """What it did is in the audit, as ``trial.did``: two processes share it."""

    nav = Nav("Trial", "/trial")

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.rendered = 0
        self.fails: Exception | None = None
        self.routes = (
            Get("/trial", lambda visit: Page("trial.html", "Trial", says=visit.query.get("says"))),
            Get("/trial/live", lambda _: Page("trial_live.html", "Live", parts=_PARTS)),
            Get("/trial/fails", self._fail),
            Get("/trial/of/{merchant_id}", self._of),
            FormAction(
                "/trial/{merchant_id}/pause", "trial.pause", page=self._form, run=self._pause
            ),
        )
        self.parts = (
            Part("trial", "trial_part.html", self._read, takes=("of",)),
            Part("also", "trial_also.html", lambda _: self._count()),
            Part("still", "trial_still.html", lambda _: {}),
        )

    def _of(self, visit: Visit) -> Page:
        if visit.values["merchant_id"] == "nobody":  # words: ok
            raise UnknownMerchant("nobody")  # words: ok
        return Page("trial.html", visit.values["merchant_id"], says=visit.values["merchant_id"])

    def _fail(self, _visit: Visit) -> Page:
        raise ValueError("a secret of the inside")

    def _form(self, _visit: Visit) -> Page:
        return Page("trial_form.html", "Pause")

    def _pause(self, act: Act) -> Done:
        how = act.form.get("how", "")
        if how == "refuse":
            raise AdminError("the merchant is paused already; resume it first")
        if how == "break":
            raise ValueError("a secret of the inside")
        if how.startswith("slow"):
            time.sleep(0.5)
        with self._sources.database.begin() as connection:
            row = {"at": time.time(), "operator": act.operator, "what": "trial.did"}
            row |= {"merchant_id": act.values["merchant_id"], "order_id": "", "details": act.reason}
            connection.execute(insert(audit).values(row))
        return Done(f"Paused {act.values['merchant_id']}.", link("/trial"))

    def _read(self, viewer: Viewer) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        self.rendered += 1
        self._sources.orders.audit  # noqa: B018
        values = {"role": viewer.role, "of": viewer.values.get("of", "")}
        return self._count() | values

    def _count(self) -> dict[str, Any]:
        with self._sources.database.connect() as connection:
            return {"count": len(connection.execute(select(audit.c.id)).all())}


#: Those that were made.
trials: list[Trial] = []


def _views(sources: Sources) -> Sequence[View]:
    trials.append(Trial(sources))
    return [*views(sources), trials[-1]]


def add() -> None:
    """Have sites that are made from now on have it."""
    site.views = _views  # type: ignore[assignment]
    render.FOLDER = [render.FOLDER, Path(__file__).parent / "templates"]  # type: ignore[assignment]


@contextmanager
def added() -> Iterator[None]:
    """Have those that are made while entered have it."""
    before = site.views, render.FOLDER
    add()
    try:
        yield
    finally:
        site.views, render.FOLDER = before
