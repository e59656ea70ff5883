"""Requests to Clover's REST API v3, and the words of a refusal.

Sources, on docs.clover.com: "API usage and rate limits", "Manage orders data", "Expand fields", "401
Unauthorized", "Status codes and errors reference".
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import by_status, json_object, no_answer
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send

#: "API usage and rate limits": per token, and per app. An order takes a preview, a
#: creation, a search for doubles, a payment, a print event, three looks at the order's lines and one at the
#: event; without ``pos.tender`` two looks at the tenders, with ``pos.closed_as`` two at the hours, too. Clover
#: documents no longest reply: this one is Toast's.
LIMITS = Limits(
    longest_reply=30.0,
    concurrency=5,
    per_second=16.0,
    app_concurrency=10,
    app_per_second=50.0,
    requests=13,
    request_bytes=2**20,
)
#: Headers of a 429 that is for the whole app: beginnings of their names.
_OF_APP = "x-ratelimit-crosstoken"
_JSON = {"Content-Type": "application/json"}

#: Messages of a 400 ("Manage orders data"). A message not listed is INVALID_ORDER.
REJECTIONS: Mapping[str, Rejection] = {
    "item_does_not_exist": Rejection.ITEM_UNAVAILABLE,
    "invalid_modifier": Rejection.ITEM_UNAVAILABLE,
}


def url(merchant: Merchant, path: str) -> str:
    """The URL of a path below the merchant."""
    return f"{merchant.base_url}/v3/merchants/{merchant.pos['merchant_id']}/{path}"


def order_url(known_as: object, merchant: Merchant, *expand: str) -> str:
    """The URL of the order with Clover's id ``known_as``; ``expand``: lists within the order."""
    query = f"?expand={','.join(expand)}" if expand else ""
    return url(merchant, f"orders/{quote(str(known_as or ''), safe='')}{query}")


def asking(url: str) -> Request:
    """A request that changes nothing."""
    return Request("GET", url, expects=BODY_LIMIT)


def posting(url: str, content: bytes, *, is_search: bool = False) -> Request:
    """A POST; the reply may repeat the order, with each piece of an item. A search changes nothing."""
    return Request("POST", url, content, _JSON, BODY_LIMIT, is_search)


def harmless(send: Send) -> Send:
    """``send`` for reading: without a reply nothing is in doubt.

    Raises NotSent in place of NoValidReply.
    """

    def ask(request: Request) -> Reply:
        try:
            return send(request)
        except NoValidReply as error:
            raise NotSent(error.code, error) from error

    return Send(ask)


def has_failed(event: object, merchant: Merchant, send: Send) -> bool | Outcome:
    """Whether the printer has failed with a print event, which is kept then; an Outcome without an answer."""
    reply = send(asking(url(merchant, f"print_event/{event}")))
    if reply.status == 200:
        return str((json_object(reply) or {}).get("state")).upper() == "FAILED"
    # Discarded events are missing.
    return False if reply.status in (400, 404) else unanswered(reply)


def encoded(value: dict[str, Any]) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def listed(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The elements of a list within a record."""
    value = found.get(name)
    elements = value.get("elements") if isinstance(value, dict) else None
    members = elements if isinstance(elements, list) else ()
    return [each for each in members if isinstance(each, dict)]


def words(reply: Reply) -> str:
    """Clover's words of a refusal."""
    found = json_object(reply) or {}
    said = str(found.get("message") or f"HTTP {reply.status}")
    return f"{said} {found['details']}" if "details" in found else said


def refused(reply: Reply) -> Outcome:
    """The outcome of any status but 200."""
    if reply.status != 400:
        return _whose(by_status(reply, LIMITS.unprocessed), reply)
    said = str((json_object(reply) or {}).get("message"))
    return rejected(REJECTIONS.get(said, Rejection.INVALID_ORDER), words(reply))


def unanswered(reply: Reply) -> Outcome:
    """The outcome of a look-up without an answer about the order: in doubt."""
    return _whose(no_answer(reply), reply)


def _whose(outcome: Outcome, reply: Reply) -> Outcome:
    """The outcome, as the whole app's if the app had too many requests."""
    is_app = reply.status == 429 and any(name.startswith(_OF_APP) for name in reply.headers)
    return outcome.after(CallResult.APP_OVERLOADED) if is_app else outcome
