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
        auth = {"type": "none", **vendor.record.get("auth", {}), "webhook_signature_key": self.key}
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

# Square

ORDER_ID = "eA3vssLHKJrv9H0IdJCM3gNqfdcZY"


def square_event(name: str, **fields: Any) -> bytes:
    """As in the webhooks reference."""
    said = {"order_id": ORDER_ID, "location_id": "L1", "state": "OPEN", "updated_at": WHEN}
    content = {"created_at": "2020-04-16T23:14:26.129Z", "version": 6, **said, **fields}
    kind = f"order_{name.replace('.', '_')}"
    return compact(
        {
            "merchant_id": "5S9MXCS9Y99KK",
            "type": f"order.{name}",
            "event_id": "b3adf364-4937-436e-a833-49c72b4baee8",
            "created_at": "2020-04-16T23:16:30.789Z",
            "data": {"type": "order", "id": ORDER_ID, "object": {kind: content}},
        }
    )


def square_fulfilled(new_state: str, **fields: Any) -> bytes:
    update = {"fulfillment_uid": "VWJ1", "old_state": "PROPOSED", "new_state": new_state}
    return square_event("fulfillment.updated", fulfillment_update=[update], **fields)


def square_body(meaning: Kind | Lifecycle) -> bytes | None:
    match meaning:
        case Kind.CANCELLED:
            return square_event("updated", state="CANCELED")
        case Lifecycle.PREPARING:
            return square_fulfilled("RESERVED")
        case Lifecycle.READY:
            return square_fulfilled("PREPARED")
        case Lifecycle.COMPLETED:
            return square_fulfilled("COMPLETED", state="COMPLETED")
    return None


def square_signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    return {"x-square-hmacsha256-signature": signature(key.encode(), url.encode(), body)}


SQUARE = Caller("square", "asdf1234", square_body, square_signed, None, ORDER_ID)

# Toast

TOAST_GUID = "f6d98b95-2816-4f54-b1ab-7a5d71e83769"


def toast_event(**fields: Any) -> bytes:
    """As in "Orders webhook": the order has no ``externalId``."""
    restaurant = VENDORS["toast"].merchant.pos["restaurant"]
    order = {"guid": TOAST_GUID, "entityType": "Order", "externalId": None, "checks": [], **fields}
    return compact(
        {
            "timestamp": WHEN,
            "eventCategory": "order_updated",
            "eventType": "order_updated",
            "guid": "534bf25a-b657-45aa-9a63-47f8f35400d6",
            "details": {"restaurantGuid": restaurant, "order": order},
        }
    )


def toast_body(meaning: Kind | Lifecycle) -> bytes | None:
    match meaning:
        case Kind.ACCEPTED:
            return toast_event(approvalStatus="APPROVED")
        case Kind.REJECTED:
            return toast_event(approvalStatus="NOT_APPROVED")
        case Kind.CANCELLED:
            return toast_event(approvalStatus="APPROVED", voided=True)
        case Lifecycle.PREPARING | Lifecycle.READY | Lifecycle.COMPLETED:
            statuses = {
                Lifecycle.PREPARING: "IN_PREPARATION",
                Lifecycle.READY: "READY_FOR_PICKUP",
                Lifecycle.COMPLETED: "CLOSED",
            }
            return toast_event(approvalStatus="APPROVED", guestOrderStatus=statuses[meaning])
    return None


def toast_signed(key: str, url: str, body: bytes, at: str = WHEN) -> Mapping[str, str]:
    return {"toast-signature": signature(key.encode(), body, at.encode())}


TOAST = Caller("toast", "toast-secret", toast_body, toast_signed, None, TOAST_GUID)

# Clover


def clover_body(
    meaning: Kind | Lifecycle, object_id: str = "O:8WAD6KV8D90KR", kind: str = "DELETE"
) -> bytes | None:
    if meaning is not Kind.CANCELLED:
        return None
    update = {"objectId": object_id, "type": kind, "ts": NOW * 1000}
    return compact({"appId": "DRKVJT2ZRRRSC", "merchants": {"M1": [update]}})


CLOVER = Caller(
    "clover",
    "0307e264-b33a-4913-88aa-37b10014a0b8",
    clover_body,
    lambda key, url, body: {"x-clover-auth": key},
    None,
    "8WAD6KV8D90KR",
    signs_body=False,
)

# HubRise

HUBRISE_STATUSES = {
    Kind.ACCEPTED: "received",
    Kind.REJECTED: "rejected",
    Kind.CANCELLED: "cancelled",
    Lifecycle.PREPARING: "in_preparation",
    Lifecycle.READY: "awaiting_collection",
    Lifecycle.COMPLETED: "completed",
}


def hubrise_event(status: str, **fields: Any) -> bytes:
    """As in "Callbacks"."""
    money = {"total": "17.00 EUR", "payments": [{"id": "w2qq8", "amount": "17.00 EUR"}]}
    order = {"id": "5dpm9", "location_id": "3r4s3-1", "status": status, **money, **fields}
    of_order = {"order_id": "5dpm9", "location_id": "3r4s3-1", "new_state": order}
    return compact(
        {
            "id": "ks8f6",
            "resource_type": "order",
            "event_type": "update",
            "created_at": WHEN,
            **of_order,
        }
    )


def hubrise_body(meaning: Kind | Lifecycle) -> bytes | None:
    status = HUBRISE_STATUSES.get(meaning)
    return None if status is None else hubrise_event(status)


def hubrise_signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    return {"x-hubrise-hmac-sha256": hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}


HUBRISE = Caller("hubrise", "client-secret", hubrise_body, hubrise_signed, None, "5dpm9")

CALLERS = {caller.name: caller for caller in (REST, SQUARE, TOAST, CLOVER, HUBRISE)}
