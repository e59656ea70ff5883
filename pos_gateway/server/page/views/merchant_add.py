"""Adds a merchant that orders name and the directory has not."""

from pydantic_core import from_json

from pos_gateway.audit.note import By
from pos_gateway.domain.errors import AdminError, InvalidRecord
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Page, View
from pos_gateway.server.page.visit import Visit


class MerchantAdd(View):
    """The form at ``/merchants/{merchant_id}/add``."""

    def __init__(self, admin: MerchantAdmin) -> None:
        self._admin = admin
        self.routes = (
            FormAction(
                "/merchants/{merchant_id}/add",
                "merchants.import",
                page=self._form,
                run=self._add,
                audits=True,
            ),
        )

    def _form(self, visit: Visit) -> Page:
        merchant_id = visit.values["merchant_id"]
        return Page("merchant_add.html", f"Add {merchant_id}", merchant_id=merchant_id)

    def _add(self, act: Act) -> Done:
        merchant_id = act.values["merchant_id"]
        try:
            record = from_json(act.form.get("record", "").encode("utf-8", "replace"))
        except ValueError as error:
            raise AdminError(f"Its record: is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise AdminError("Its record: is no JSON object")
        if record.setdefault("id", merchant_id) != merchant_id:
            raise AdminError(f"Its record: is of another merchant than {merchant_id}")
        try:
            self._admin.add(Merchant.parse(record), By(act.operator, act.reason))
        except InvalidRecord as error:  # without values, which may be secret
            said = "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
            raise AdminError(said) from None
        except CannotOpen as error:
            raise AdminError(f"nothing was written: {error}") from None
        says = f"{merchant_id} is added: workers send it orders within seconds. Replay its dead letters now."
        return Done(says, link("/merchants/{}", merchant_id))
