"""A merchant's record for an editor, with masked secrets; a mask means "unchanged".

A change of another field needs no secret, nor the key of the vault: a record whose secrets cannot
be opened has a single mask for all of ``auth``, which stays sealed.
"""

from typing import Any

from pos_gateway.domain.credentials import FIELDS, TLS_FIELDS, Credentials, UnreadableCredentials
from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.merchant import Merchant

#: A record as decoded JSON.
Document = dict[str, Any]


def document(merchant: Merchant) -> Document:
    """The record with masked secrets, without empty fields."""
    shown = merchant.model_dump(mode="json", exclude={"auth"}, exclude_none=True)
    auth = masked_auth(merchant.auth)
    shown["auth"] = auth
    return {name: each for name, each in shown.items() if each not in ({}, None)}


def masked_auth(auth: Credentials) -> Document | str:
    """Credentials with masked secrets; ``{}`` without any; the mask for unreadable credentials."""
    if isinstance(auth, UnreadableCredentials):
        return MASK
    shown = auth.model_dump(mode="json", exclude_none=True)
    if shown == {"type": "none"}:
        return {}
    for values, fields in _parts(shown):
        values.update({name: MASK for name in values if fields.get(name)})
    return shown


def restored(edited: Document, before: Merchant) -> Merchant:
    """The merchant of an edited ``document``, with each mask replaced by the secret before.

    Raises:
        InvalidMerchant: names every wrong field without its value.
    """
    if edited.get("id") != before.id:
        problem = "cannot be changed: import a record with the new id, and remove this one"
        raise InvalidMerchant([FieldError("id", problem)])
    others = {"paused": before.paused, **edited}
    others.pop("auth", None)
    auth = edited.get("auth", {})
    if auth == masked_auth(before.auth):
        return Merchant.trusted({**vars(Merchant.parse(others)), "auth": before.auth})
    if isinstance(auth, dict):
        auth = _with_secrets(auth, before)
    return Merchant.parse({**others, "auth": auth})


def _with_secrets(auth: Document, before: Merchant) -> Document:
    was = {} if isinstance(before.auth, UnreadableCredentials) else before.auth.reveal()
    new = {**auth}
    if isinstance(new.get("tls"), dict):
        new["tls"] = {**new["tls"]}
    for values, fields in _parts(new):
        known = was if values is new else was.get("tls", {})
        for name, each in values.items():
            if each == MASK and fields.get(name) and name in known:
                values[name] = known[name]
    return new


def _parts(auth: Document) -> list[tuple[Document, dict[str, bool]]]:
    """``auth`` and ``auth.tls``, each with its fields (True: a secret)."""
    fields = {name: is_secret for kind in FIELDS.values() for name, is_secret in kind.items()}
    parts = [(auth, fields)]
    if isinstance(auth.get("tls"), dict):
        parts.append((auth["tls"], TLS_FIELDS))
    return parts
