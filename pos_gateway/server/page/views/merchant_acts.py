"""What an operator does about one merchant: pause and resume it, and have its POS checked."""

from collections.abc import Callable

from pos_gateway.administration.merchant_view import MerchantViews
from pos_gateway.audit.note import By
from pos_gateway.domain.errors import AdminError, UnknownMerchant
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.reports.words import orders
from pos_gateway.server.page.links import link
from pos_gateway.server.page.merchant_check import MerchantCheck
from pos_gateway.server.page.view import Act, Done, FormAction, Page, View
from pos_gateway.server.page.visit import Visit

_PATH = "/merchants/{merchant_id}"


class MerchantActs(View):
    """The forms at ``/merchants/{merchant_id}/…``."""

    def __init__(self, admin: MerchantAdmin, about: MerchantViews) -> None:
        self._admin, self._about, self._check = admin, about, MerchantCheck()
        self.routes = (
            FormAction(
                f"{_PATH}/pause",
                "merchants.pause",
                page=self._form(paused=True),
                run=self._set(paused=True),
                audits=True,
            ),
            FormAction(
                f"{_PATH}/resume",
                "merchants.resume",
                page=self._form(paused=False),
                run=self._set(paused=False),
                audits=True,
            ),
            FormAction(
                f"{_PATH}/check", "merchants.check", page=self._check_form, run=self._check_it
            ),
        )

    def _form(self, *, paused: bool) -> Callable[[Visit], Page]:
        def page(visit: Visit) -> Page:
            merchant_id = visit.values["merchant_id"]
            self._admin.seen(merchant_id)  # raises UnknownMerchant
            now = self._about.now(merchant_id)
            seen = None if now.trouble is None else now.trouble.trouble
            held_up = seen.waiting + seen.parked if seen else 0
            return Page(
                "merchant_pause.html",
                f"{'Pause' if paused else 'Resume'} {merchant_id}",
                merchant_id=merchant_id,
                paused=paused,
                is_so=now.record.paused == paused,
                held_up=orders(held_up, "waits or is parked", "wait or are parked")
                if held_up
                else "",
                in_flight=seen.in_flight if seen else 0,
                workers=now.workers,
            )

        return page

    def _set(self, *, paused: bool) -> Callable[[Act], Done]:
        def run(act: Act) -> Done:
            merchant_id = act.values["merchant_id"]
            by = By(act.operator, act.reason)
            done = self._admin.pause([merchant_id], by, paused=paused)
            if done.missing:
                raise UnknownMerchant(merchant_id)
            if done.same:
                already = "paused" if paused else "not paused"
                raise AdminError(f"it is {already} already: nothing was changed")
            says = (
                f"{merchant_id} is paused: workers send it nothing within seconds. Orders in flight are finished."
                if paused
                else f"{merchant_id} is resumed: workers send it orders within seconds."
            )
            return Done(says, link("/merchants/{}", merchant_id))

        return run

    def _check_form(self, visit: Visit) -> Page:
        merchant_id = visit.values["merchant_id"]
        self._admin.seen(merchant_id)
        return Page("merchant_check.html", f"Check {merchant_id}", merchant_id=merchant_id)

    def _check_it(self, act: Act) -> Done:
        merchant_id = act.values["merchant_id"]
        self._admin.seen(merchant_id)
        found = self._check(merchant_id)
        return Done(found.says, link("/merchants/{}", merchant_id), warns=not found.is_ok)
