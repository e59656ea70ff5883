"""Verifies who has sent a callback. Each comparison takes as long whatever is wrong."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json
from standardwebhooks import Webhook

from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.domain.merchant import Merchant

#: Seconds by which a signed time may differ from ours: as Standard Webhooks has it.
TOLERANCE = 300
#: Maximum signatures that are compared: a sender has two while it changes its key.
_SIGNATURES = 8
_UNIX_TIME = re.compile("[0-9]{1,12}")
#: How a time begins that is neither seconds nor milliseconds.
_DATED = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T")
#: Of merchants that have none: who asks cannot tell that, and knows no such key.
_NO_KEY = base64.b64encode(secrets.token_bytes(32)).decode()


def keys_of(merchant: Merchant) -> tuple[str, ...]:
    """The keys with which the merchant's POS signs: two while it changes its key."""
    return merchant.auth.webhook_signature_keys or (_NO_KEY,)


def share_a_key(one: Merchant, other: Merchant) -> bool:
    """Whether the same vendor's application may call for both."""
    compared = [is_same(a, b) for a in keys_of(one) for b in keys_of(other)]
    return any(compared)


def is_same(given: str, expected: str) -> bool:
    """Whether they are the same, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def said(body: bytes) -> dict[str, Any]:
    """A verified body's JSON object; empty: it is none, and nothing is known of it."""
    try:
        found = from_json(body, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def inside(found: Any, *path: str) -> dict[str, Any]:
    """The object at this path; empty: there is none."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def unix_time(said_at: Any) -> float | None:
    """A vendor's time in ISO 8601, offsets without a colon included; None: no date with an offset."""
    if not (isinstance(said_at, str) and _DATED.match(said_at)):
        return None
    try:
        moment = datetime.fromisoformat(said_at)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def is_signed(
    given: str,
    merchant: Merchant,
    *signed: bytes,
    ends: Sequence[bytes] = (b"",),
    written: Callable[[bytes], str] = _base64,
) -> bool:
    """Whether this is HMAC-SHA256 with one of the merchant's keys, in constant time.

    Args:
        signed: the parts that are signed.
        ends: what may be after them: each is tried, and the parts are hashed once for all.
        written: writes a digest as the POS does.
    """
    compared = []
    for key in keys_of(merchant):
        begun = hmac.new(key.encode(), digestmod=hashlib.sha256)
        for each in signed:
            begun.update(each)
        for end in ends:
            made = begun.copy()
            made.update(end)
            compared.append(is_same(given, written(made.digest())))
    return any(compared)


def is_key(given: str, merchant: Merchant) -> bool:
    """Whether this is one of the merchant's keys, in constant time."""
    compared = [is_same(given, key) for key in keys_of(merchant)]
    return any(compared)


def is_standard_key(key: str) -> bool:
    """Whether Standard Webhooks can sign with it."""
    try:
        Webhook(key)
    except Exception:  # noqa: BLE001  (the library has several for this)
        return False
    return True


def standard_webhook(request: CallbackRequest, merchant: Merchant) -> str | None:
    """The message's id; None: it is not signed as Standard Webhooks has it, or not lately.

    The library's own ``verify`` reads a clock, and raises what it does not document.
    """
    said = [request.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")]
    message_id, at, given = said
    keys = keys_of(merchant)
    if not (message_id and _UNIX_TIME.fullmatch(at) and all(map(is_standard_key, keys))):
        return None
    try:
        body = request.body.decode()
    except UnicodeDecodeError:
        return None
    is_recent = abs(request.now - int(at)) <= TOLERANCE
    moment = datetime.fromtimestamp(int(at) if is_recent else 0, UTC)
    signatures = given.split(" ")[:_SIGNATURES]
    expected = [Webhook(key).sign(message_id, moment, body) for key in keys]
    compared = [is_same(each, right) for each in signatures for right in expected]
    return message_id if any(compared) and is_recent else None
