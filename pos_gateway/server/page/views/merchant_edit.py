"""Edits of a merchant's record: its limits, and its other fields.

A form has the stamp of the record that it shows: an edit in between refuses it. A secret is not shown,
not even the one that was just typed; left empty, it stays as it is. An edit by which another host
would get the secrets needs all of them typed: else an operator of the page could have them sent
anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from pos_gateway.audit.log import changes_in_words
from pos_gateway.audit.note import By
from pos_gateway.domain.credentials import FIELDS
from pos_gateway.domain.errors import AdminError, FieldError, InvalidMerchant, InvalidRecord
from pos_gateway.domain.masking import MASK
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.assignments import assign, require_name
from pos_gateway.merchants.masked import Document
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Act, Done, FormAction, Page, View
from pos_gateway.server.page.visit import Visit
from pos_gateway.settings import Settings

#: Makes the new record of the present one, as ``MerchantAdmin.change`` has it.
Edit = Callable[[Document], Document]

_LIMITS = ("max_concurrency", "request_timeout")
_PLAIN = ("provider", "adapter", "base_url")
#: Where secrets are sent to, and the one that is sent nowhere: callbacks are verified with it.
_ADDRESSES, _VERIFIES = ("base_url", "auth.token_url"), "auth.webhook_signature_key"


class Field(NamedTuple):
    """A field of the form."""

    name: str
    #: As text; empty for a secret.
    value: str
    is_secret: bool = False
    is_set: bool = True


class MerchantEdits(View):
    """``/merchants/{merchant_id}/limits`` and ``…/edit``."""

    def __init__(self, admin: MerchantAdmin, settings: Settings, adapters: Sequence[str]) -> None:
        self._admin, self._settings, self._adapters = admin, settings, adapters
        self.routes = (
            FormAction(
                "/merchants/{merchant_id}/limits",
                "merchants.set",
                page=self._limits,
                run=self._set_limits,
                audits=True,
            ),
            FormAction(
                "/merchants/{merchant_id}/edit",
                "merchants.edit",
                page=self._edit,
                run=self._set_fields,
                audits=True,
            ),
        )

    def _limits(self, visit: Visit) -> Page:
        merchant_id = visit.values["merchant_id"]
        seen = self._admin.seen(merchant_id)
        return Page(
            "merchant_limits.html",
            f"Limits of {merchant_id}",
            merchant_id=merchant_id,
            stamp=repr(seen.stamp),
            concurrency=_text(seen.document, "max_concurrency"),
            timeout=_text(seen.document, "request_timeout"),
            settings=self._settings,
        )

    def _edit(self, visit: Visit) -> Page:
        merchant_id = visit.values["merchant_id"]
        seen = self._admin.seen(merchant_id)
        auth = seen.document.get("auth", {})
        return Page(
            "merchant_edit.html",
            f"Edit {merchant_id}",
            merchant_id=merchant_id,
            stamp=repr(seen.stamp),
            plain=_plain_fields(seen.document),
            secrets=_secret_fields(seen.document),
            auth_type="" if auth == MASK else auth.get("type", "none"),
            adapters=self._adapters,
        )

    def _set_limits(self, act: Act) -> Done:
        def edit(record: Document) -> Document:
            for name in _LIMITS:
                _set(record, name, act.form, _text(record, name))
            return record

        return self._change(act, edit, "merchants.set")

    def _set_fields(self, act: Act) -> Done:
        def edit(record: Document) -> Document:
            fields, secrets = _plain_fields(record), _secret_fields(record)
            hosts = {name: _host(_text(record, name)) for name in _ADDRESSES}
            for each in fields:
                _set(record, each.name, act.form, each.value)
            for each in secrets:
                if typed := act.form.get(each.name, ""):
                    record.setdefault("auth", {}).setdefault("type", "none")
                    assign(record, each.name, typed)
            _add_pos(record, act.form)
            moved = [name for name in _ADDRESSES if _host(_text(record, name)) != hosts[name]]
            if moved:
                _require_typed(secrets, act.form, moved[0], can_open=record.get("auth") != MASK)
            return record

        return self._change(act, edit, "merchants.edit")

    def _change(self, act: Act, edit: Edit, what: str) -> Done:
        merchant_id = act.values["merchant_id"]
        by = By(act.operator, act.reason)
        try:
            stamp = float(act.form.get("stamp", ""))
        except ValueError:
            raise AdminError("the form does not say which record it shows: open it again") from None
        try:
            changed = self._admin.change(merchant_id, edit, by=by, what=what, stamp=stamp)
        except InvalidRecord as error:  # without values, which may be secret
            raise AdminError(
                "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
            ) from None
        except CannotOpen as error:
            raise AdminError(f"nothing was written: {error}") from None
        says = (
            f"Changed {changes_in_words(changed)}."
            if changed
            else "Nothing is different: nothing was written."
        )
        return Done(says, link("/merchants/{}", merchant_id))


def _require_typed(secrets: Sequence[Field], form: Fields, moved: str, *, can_open: bool) -> None:
    if not can_open:
        raise AdminError(
            f"with this {moved} another host would get credentials that this server cannot open; "
            "give the merchant its credentials as well: pos-gateway merchants set"
        )
    kept = [
        each.name
        for each in secrets
        if each.is_set and each.name != _VERIFIES and not form.get(each.name, "")
    ]
    if kept:
        raise AdminError(
            f"with this {moved} another host would get {' and '.join(kept)}; type "
            f"{'it' if len(kept) == 1 else 'them'} again"
        )


def _host(url: str) -> object:
    """What a connection is made to; an invalid URL, which is refused later, is one by itself."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return url


def _plain_fields(record: Document) -> list[Field]:
    """The fields that are shown, as a form has them."""
    names = [*_PLAIN, *(f"pos.{each}" for each in record.get("pos", {}))]
    return [Field(name, _text(record, name)) for name in names] + [
        Field(each, _text(record, each)) for each in _auth_fields(record, are_secret=False)
    ]


def _secret_fields(record: Document) -> list[Field]:
    return [
        Field(name, "", is_secret=True, is_set=bool(_text(record, name)))
        for name in _auth_fields(record, are_secret=True)
    ]


def _auth_fields(record: Document, *, are_secret: bool) -> list[str]:
    """Those of its type of credentials; none if they cannot be opened."""
    auth = record.get("auth", {})
    if auth == MASK:
        return []
    fields: Mapping[str, bool] = FIELDS[auth.get("type", "none")]
    return [
        f"auth.{name}"
        for name, is_secret in fields.items()
        if is_secret is are_secret and name not in ("type", "tls")
    ]


def _text(record: Document, name: str) -> str:
    """A field's value as a form has it: a browser takes line ends out of a line."""
    value = record
    for part in name.split("."):
        value = (
            value.get(part, {}) if isinstance(value, dict) else {}
        )  # what is masked has no parts
    if value == {} or value is None:
        return ""
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return text.replace("\r", "").replace("\n", "")


def _set(record: Document, name: str, form: Fields, shown: str) -> None:
    """Set what was typed, unless it is what was shown."""
    typed = form.get(name, shown).strip()
    if typed != shown.strip():
        assign(record, name, typed)


def _add_pos(record: Document, form: Fields) -> None:
    name, value = form.get("new-name", "").strip(), form.get("new-value", "").strip()
    if not name and not value:
        return
    field = f"pos.{name}"
    require_name(field, "the name of another id in pos")
    if not value or not name:
        raise InvalidMerchant([FieldError("another id in pos", "needs a name and a value")])
    if name in record.get("pos", {}):
        raise InvalidMerchant([FieldError(field, "is there already: change it in its own field")])
    assign(record, field, value)
