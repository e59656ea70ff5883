"""The documents' examples: one order of which everything is shown."""

from typing import Any

from pydantic_core import to_json

IDS = {"order_id": "A-1001", "merchant_id": "m-8"}

ORDER: dict[str, Any] = {
    **IDS,
    "placed_at": "2026-11-20T07:26:16Z",
    "deliver_by": "2099-12-31T23:59:59Z",  # in the future: the example is submitted as it is
    "currency": "EUR",
    "items": [{"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}],
    "total": 1700,
}
ORDERS = [ORDER, {**ORDER, "order_id": "A-1002"}]
CANCEL_REQUEST = {"deliver_by": "2099-12-31T23:59:59Z"}

SUBMITTED = {**IDS, "state": "submitted"}
ENDED = {**IDS, "state": "accepted"}
PROBLEM: dict[str, Any] = {
    "type": "urn:pos-gateway:problem:invalid_order",
    "title": "Unprocessable Entity",
    "status": 422,
    "code": "invalid_order",
    "detail": "the order breaks the contract: currency: string should match pattern '^[A-Z]{3}$'"
    " (got 'euro')",
    "errors": [
        {
            "field": "currency",
            "problem": "string should match pattern '^[A-Z]{3}$'",
            "value": "euro",
        }
    ],
}
BATCH = [
    {"status": 202, **SUBMITTED},
    {
        "type": "urn:pos-gateway:problem:order_differs",
        "title": "Conflict",
        "status": 409,
        "code": "order_differs",
        "detail": "order 'A-1002' of merchant 'm-8' was submitted with other content; an order that"
        " has changed needs another order_id",
    },
]

_OF_ORDER: dict[str, Any] = {
    "id": "2f0f4ce1-8dbd-54a0-9f5c-0d0f3e4f0c11",
    "position": 4711,
    "type": "order.accepted",
    "occurred_at": "2026-11-20T07:26:17.204Z",
    "external_id": "pos-99",
    "reason": None,
    "attempts": 1,
}
EVENT = {
    **_OF_ORDER,
    **IDS,
    "merchant": {"provider": "toast", "adapter": "toast"},
    "order": ORDER,
}
EVENTS = {"events": [EVENT], "next": 4711}
STREAM = (
    f"retry: 1000\nid: 4710\n\nid: 4711\nevent: order.accepted\ndata: {to_json(EVENT).decode()}\n\n"
)
SHOWN = {
    **IDS,
    "state": "accepted",
    "submitted_at": "2026-11-20T07:26:16.310Z",
    "external_id": "pos-99",
    "reason": None,
    "attempt_count": 1,
    "deliver_by": ORDER["deliver_by"],
    "in_doubt_since": None,
    "created_at": "2026-11-20T07:26:16.402Z",
    "updated_at": "2026-11-20T07:26:17.204Z",
    "attempts": [
        {
            "at": "2026-11-20T07:26:16.404Z",
            "did": "send",
            "came": 201,
            "outcome": "accepted",
            "reason": None,
            "waited_seconds": 0.002,
            "claim_seconds": 0.004,
            "connect_seconds": 0.0,
            "first_byte_seconds": 0.792,
            "seconds": 0.794,
            "worker": "gateway-7d9f-x2x4z/17/a41c",
        }
    ],
    "cancellation": None,
    "events": [_OF_ORDER],
}

CALLBACK = {
    "type": "order.ready",
    "order_id": IDS["order_id"],
    "occurred_at": "2026-11-20T07:39:02Z",
}
CALLED_BACK = {"results": ["applied"]}
