"""Pause or resume every merchant of a provider."""

from collections.abc import Callable

from sqlalchemy import Engine

from pos_gateway.administration.providers import ProviderStanding, provider_standing
from pos_gateway.audit.note import By
from pos_gateway.domain.errors import AdminError
from pos_gateway.merchants.admin import MerchantAdmin, Paused
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Page, View
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import counted
from pos_gateway.server.problems import Problem


class ProviderActs(View):
    """The forms at ``/providers/{provider}/pause`` and ``…/resume``."""

    def __init__(self, admin: MerchantAdmin, database: Engine, fleet: FleetView) -> None:
        self._admin, self._database, self._fleet = admin, database, fleet
        self.routes = (
            FormAction(
                "/providers/{provider}/pause",
                "merchants.pause",
                page=self._form(paused=True),
                run=self._set(paused=True),
                audits=True,
            ),
            FormAction(
                "/providers/{provider}/resume",
                "merchants.resume",
                page=self._form(paused=False),
                run=self._set(paused=False),
                audits=True,
            ),
        )

    def _form(self, *, paused: bool) -> Callable[[Visit], Page]:
        def page(visit: Visit) -> Page:
            provider = visit.values["provider"]
            fleet = self._fleet.now()
            found = provider_standing(self._database, fleet, provider)
            if found is None:
                raise Problem(404, "not_found", _unknown(provider))
            return Page(
                "provider_pause.html",
                f"{'Pause' if paused else 'Resume'} {provider}",
                provider=provider,
                paused=paused,
                found=found,
                concerns=_concerned(found, paused=paused),
                workers=fleet.watching,
            )

        return page

    def _set(self, *, paused: bool) -> Callable[[Act], Done]:
        def run(act: Act) -> Done:
            provider, by = act.values["provider"], By(act.operator, act.reason)
            all_of_it = not paused and act.form.get("all") == "yes"
            done = self._admin.pause_provider(provider, by, paused=paused, all_of_it=all_of_it)
            if not (done.changed or done.same or done.kept):
                raise AdminError(_unknown(provider))
            return Done(_says(provider, done, paused=paused), link("/merchants", find=provider))

        return run


def _concerned(found: ProviderStanding, *, paused: bool) -> int:
    """The merchants that it would change."""
    return found.merchants - found.paused if paused else found.paused_with_it


def _says(provider: str, done: Paused, *, paused: bool) -> str:
    word, already = ("paused", "paused") if paused else ("resumed", "not paused")
    says = f"{provider}: {counted(len(done.changed), 'merchant')} {word}"
    if done.same:
        says += f"; {len(done.same):,} {'was' if len(done.same) == 1 else 'were'} {already} already"
    if done.kept:
        one = len(done.kept) == 1
        says += f"; {len(done.kept):,} {'was' if one else 'were'} not paused with the provider, and {'stays' if one else 'stay'} paused"
    return f"{says}."


def _unknown(provider: str) -> str:
    return f"no merchant has the provider {provider!r}"
