"""Merchants: those in trouble, the worst first, a search for any other, and their providers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, func, select

from pos_gateway.administration.providers import providers_in_trouble
from pos_gateway.administration.troubles import troubles
from pos_gateway.database.schema import merchants
from pos_gateway.merchants.search import search
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.reports.report import MAX_TROUBLES
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Get, Nav, Page, Part, View, Viewer
from pos_gateway.server.page.visit import Visit
from pos_gateway.tokens.token import Capability

#: Merchants of a page that a search has found, and most characters of what is looked for.
FOUND, _LONGEST = 50, 128


class Merchants(View):
    """``/merchants``."""

    nav = Nav("Merchants", "/merchants")

    def __init__(self, database: Engine, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._fleet = FleetView(database)
        self.routes = (Get("/merchants", self._page),)
        self.parts = (
            Part("troubles", "merchants_troubles.html", self._troubles),
            Part("providers", "merchants_providers.html", self._providers, every=5.0),
        )

    def _page(self, visit: Visit) -> Page:
        wanted = visit.query.get("find")
        part = (wanted or "").strip()[:_LONGEST]
        after = visit.query.get("after", "")
        found = []
        if wanted is not None:
            found = list(search(self._database, part, FOUND + 1, after))
        more = None
        if len(found) > FOUND:
            more = link("/merchants", find=part, after=found[FOUND - 1].merchant_id)
        with self._database.connect() as connection:
            number = connection.scalar(select(func.count()).select_from(merchants)) or 0
        return Page(
            "merchants.html",
            "Merchants",
            parts=("troubles", "providers"),
            number=number,
            is_search=wanted is not None,
            looked_for=part,
            found=found[:FOUND],
            more=more,
            first=link("/merchants", find=part) if after else None,
        )

    def _troubles(self, viewer: Viewer) -> Mapping[str, Any]:
        reveal = viewer.role.allows(Capability.REVEAL)
        found = troubles(self._database, MAX_TROUBLES, self._clock, self._fleet, reveal=reveal)
        return {"found": found, "now": self._clock.now().timestamp()}

    def _providers(self, viewer: Viewer) -> Mapping[str, Any]:
        fleet = self._fleet.now()
        found = providers_in_trouble(self._database, fleet)
        return {"providers": found, "may_act": viewer.role.allows(Capability.ACT)}
