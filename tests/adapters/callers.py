"""POSes that call back: what each says, and how it signs, from its public documentation."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle
from tests.adapters.vendors import VENDORS

NOW = 1_800_000_000
URL = "https://orders.example.com/v1/callbacks/{adapter}/fast-1"
WHEN = datetime.fromtimestamp(NOW, UTC).isoformat()


@dataclass(frozen=True)
class Caller:
    """One POS."""

    name: str
    key: str
    #: The body that says this of the order; None: it has no words for it.
    body: Callable[[Kind | Lifecycle], bytes | None]
    #: The headers with which it signs a body: of the key, the URL and the body.
    signed: Callable[[str, str, bytes], Mapping[str, str]]
    #: The callback's order: ours, or the POS's.
    order_id: str | None = "order/1"
    external_id: str | None = None
    #: It signs the body.
    signs_body: bool = True

    @property
    def merchant(self) -> Merchant:
        vendor = VENDORS[self.name]
        auth = {"type": "none", "webhook_signature_key": self.key}
        record = {"id": "fast-1", "adapter": self.name, "base_url": "https://pos.example.com"}
        return Merchant.parse({**record, **vendor.record, "auth": auth})

    def request(
        self, body: bytes, *, key: str | None = None, now: float = NOW, **headers: str
    ) -> CallbackRequest:
        """A call with this body, signed with its key or another."""
        url = URL.format(adapter=self.name)
        signed = dict(self.signed(self.key if key is None else key, url, body))
        return CallbackRequest(url, signed | headers, body, now)

    def read(
        self, request: CallbackRequest, merchant: Merchant | None = None
    ) -> list[Callback] | None:
        adapter: Any = VENDORS[self.name].adapter
        found = adapter.callbacks(request, merchant or self.merchant)
        return None if found is None else list(found)


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def signature(key: bytes, *signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, b"".join(signed), hashlib.sha256)).decode()


# The reference API

REST_TYPES = {
    Kind.ACCEPTED: "order.accepted",
    Kind.REJECTED: "order.rejected",
    Kind.CANCELLED: "order.cancelled",
    Lifecycle.PREPARING: "order.preparing",
    Lifecycle.READY: "order.ready",
    Lifecycle.COMPLETED: "order.completed",
}


def rest_body(meaning: Kind | Lifecycle, **others: Any) -> bytes | None:
    if meaning not in REST_TYPES:
        return None
    said = {"type": REST_TYPES[meaning], "order_id": "order/1", "occurred_at": WHEN}
    return compact({**said, **others})


def rest_signed(
    key: str, url: str, body: bytes, at: float = NOW, message_id: str = "msg_1"
) -> Mapping[str, str]:
    secret = base64.b64decode(key.removeprefix("whsec_"))
    made = signature(secret, f"{message_id}.{int(at)}.".encode(), body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": f"v1,{made}",
    }


REST = Caller(
    "rest",
    "whsec_" + base64.b64encode(b"a key of thirty-two bytes or so.").decode(),
    rest_body,
    rest_signed,
)

CALLERS = {caller.name: caller for caller in (REST,)}
