"""Sets a record's fields by name: ``max_concurrency``, ``pos.location_id``, ``auth.token``."""

import difflib
import re
from typing import Any

from pos_gateway.domain.credentials import FIELDS, TLS_FIELDS
from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.masked import Document

#: Fields' names, free to show: other text may be a misplaced secret.
_NAME = re.compile(r"[a-z_]{1,64}(\.[a-z_]{1,64}){0,2}")
_POS = re.compile(r"pos\.[a-z_]{1,64}")
_NUMBERS = {"max_concurrency": int, "request_timeout": float}
_YES_OR_NO = {"true": True, "yes": True, "false": False, "no": False}
_AUTH = {
    f"auth.{name}": is_secret
    for kind in FIELDS.values()
    for name, is_secret in kind.items()
    if name != "tls"
} | {f"auth.tls.{name}": is_secret for name, is_secret in TLS_FIELDS.items()}
#: Groups of fields: can be removed, not set.
_GROUPS = ("pos", "auth", "auth.tls")
NAMES = (
    *(name for name in Merchant.model_fields if name not in ("id", *_GROUPS)),
    "pos.NAME",
    *_AUTH,
)


def is_secret(name: str) -> bool:
    """Whether the field is a secret, forbidden on a command line."""
    return _AUTH.get(name, False)


def require_name(name: str, place: str) -> None:
    """Raise InvalidMerchant for an unknown name, at ``place`` if the name may not be shown."""
    if name in NAMES or name in _GROUPS or _POS.fullmatch(name):
        return
    if name == "id":
        problem = "cannot be changed: import a record with the new id, and remove this one"
        raise InvalidMerchant([FieldError("id", problem)])
    if not _NAME.fullmatch(name):
        raise InvalidMerchant([FieldError(place, "does not begin with a field's name and =")])
    near = difflib.get_close_matches(name, [*NAMES, *_GROUPS], n=1)
    advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
    raise InvalidMerchant([FieldError(name, f"is no field of a merchant's record; {advice}")])


def assign(record: Document, name: str, text: str) -> None:
    """Set the field; an empty text removes the field.

    Raises:
        InvalidMerchant: the text is no value of the field; the message does not repeat the text.
    """
    if name in _GROUPS and text:
        raise InvalidMerchant([FieldError(name, f"is set a field at a time: {name}.NAME=VALUE")])
    *path, last = name.split(".")
    if path[:1] == ["auth"] and record.get("auth") == MASK:
        problem = (
            "its secrets cannot be opened with POS_GATEWAY_SECRET_KEY: put the key back that they "
            "are sealed with, or give all of auth anew, after auth="
        )
        raise InvalidMerchant([FieldError(name, problem)])
    group = record
    for part in path:
        group = group.setdefault(part, {})
    if not text:
        group.pop(last, None)
    elif name == "auth.type":
        _set_type(group, text)
    else:
        group[last] = _value(name, text)


def _set_type(auth: Document, name: str) -> None:
    """Set the type, and keep the fields known to the new type."""
    fields = FIELDS.get(name)
    if fields is None:
        problem = f"should be one of {', '.join(FIELDS)}"
        raise InvalidMerchant([FieldError("auth.type", problem)])
    for other in [each for each in auth if each not in fields]:
        del auth[other]
    auth["type"] = name


def _value(name: str, text: str) -> Any:
    if name == "paused":
        if text.lower() not in _YES_OR_NO:
            raise InvalidMerchant([FieldError(name, "should be yes or no")])
        return _YES_OR_NO[text.lower()]
    if name in _NUMBERS:
        try:
            return _NUMBERS[name](text)
        except ValueError:
            a_number = "a whole number" if name == "max_concurrency" else "a number"
            raise InvalidMerchant([FieldError(name, f"should be {a_number}")]) from None
    return text
