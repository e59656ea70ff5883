"""Toast's ``order_updated``: the whole order, signed.

Of the guides ("Orders webhook", "Message signing", "Timeouts", "Retry support"): what a message omits; an
HMAC-SHA256 of body and timestamp; two seconds for an answer; sent again twice, after five and ten
minutes, if there is no answer, a 404, a 429 or a 5xx. Judgement: the timestamp that is signed is the
body's own text. The minutes are not played: what comes again comes soon.
"""

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from testkit.vendors.toast.menu import Body

_OMITTED = ["firstName", "lastName", "phone", "address1", "address2", "city", "state", "zipCode"]
#: Seconds for an answer, and deliveries of one message.
TIMEOUT, ATTEMPTS = 2.0, 3


def comes_again(status: int) -> bool:
    """Whether Toast sends a message again after this answer; 0: there was none."""
    return status in (0, 404, 429) or status >= 500


def order_updated(order: Body, restaurant: str, guid: str, now: datetime) -> bytes:
    """The message's body. ``guid`` is the message's own."""
    content = copy.deepcopy(order)
    content["externalId"] = None
    for each in [content["deliveryInfo"], *(check.get("customer") for check in content["checks"])]:
        for name in _OMITTED:
            (each or {}).pop(name, None)
    message = {
        "timestamp": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
        "eventCategory": "order_updated",
        "eventType": "order_updated",
        "guid": guid,
        "details": {"restaurantGuid": restaurant, "order": content},
    }
    return json.dumps(message).encode()


def signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    """The message's headers."""
    message = json.loads(body)
    made = hmac.digest(key.encode(), body + message["timestamp"].encode(), hashlib.sha256)
    return {
        "Toast-Event-Category": "order_updated",
        "Toast-Event-Type": "order_updated",
        "Toast-Restaurant-External-ID": message["details"]["restaurantGuid"],
        "Toast-Signature": base64.b64encode(made).decode(),
    }
