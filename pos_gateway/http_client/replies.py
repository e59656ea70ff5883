"""What a reply of the server, or none, means: which replies are right, and which error the others are."""

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from socket import gaierror
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import DecodeError, HTTPError, InvalidHeader

from pos_gateway.domain.errors import (
    ABSENT,
    BrokerUnavailable,
    FieldError,
    InvalidOrder,
    OrderDiffers,
    PosGatewayError,
    Unauthorized,
)
from pos_gateway.domain.http_limits import REPLY_BYTES
from pos_gateway.domain.order import Order
from pos_gateway.domain.record import WHOLE
from pos_gateway.domain.submit_result import SubmitResult
from pos_gateway.settings import PREFIX
from pos_gateway.transport.urllib3_internals import ReplyTooLarge

#: Statuses after which the same request may succeed. 502 and 504 are a proxy's.
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
#: Statuses of an order that is taken, or has ended.
TAKEN = (200, 202)
#: Maximum characters of a header that an error quotes.
_QUOTED = 200


class ServerReply(NamedTuple):
    """A complete reply, of the gateway or not."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def content_as_json(self) -> Any:
        """None: it is no JSON.

        pydantic's parser is not for it: it ends at 200 levels, which an order may have, and a page
        of events has three more. Python's ends at the recursion limit.
        """
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


class NoReply(NamedTuple):
    """Why there is no reply."""

    why: str
    #: Whether another try may have one.
    may_come: bool = True


def is_about(order_id: str, merchant_id: str, content: Any) -> bool:
    """Whether it names this order."""
    return (
        isinstance(content, dict)
        and content.get("order_id") == order_id
        and content.get("merchant_id") == merchant_id
    )


def is_order(order_id: str, merchant_id: str, content: Any) -> bool:
    """Whether it names this order and its state."""
    return is_about(order_id, merchant_id, content) and isinstance(content.get("state"), str)


def is_batch(orders: Sequence[Order], content: Any) -> bool:
    """Whether it has a result for each of the orders, in their order."""
    return (
        isinstance(content, list)
        and len(content) == len(orders)
        and all(map(_is_result, orders, content))
    )


def _is_result(order: Order, content: Any) -> bool:
    if is_problem(content):
        return True
    is_orders = is_order(order.order_id, order.merchant_id, content)
    return is_orders and content.get("status") in TAKEN


def is_page(after: int, content: Any) -> bool:
    """Whether its events follow this position, and ``next`` is that of the last."""
    if not isinstance(content, dict) or not isinstance(content.get("events"), list):
        return False
    last = after
    for event in content["events"]:
        position = event.get("position") if isinstance(event, dict) else None
        if type(position) is not int or position <= last:
            return False
        last = position
    return type(content.get("next")) is int and content["next"] == last


def is_problem(content: Any) -> bool:
    """Whether it is a problem detail of the gateway's."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("code"), str)
        and type(content.get("status")) is int
        and content["status"] >= 400
        and isinstance(content.get("detail"), str)
        and isinstance(errors := content.get("errors", []), list)
        and all(map(_is_field_error, errors))
    )


def _is_field_error(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("field"), str)
        and isinstance(content.get("problem"), str)
    )


def code_of(reply: ServerReply) -> str | None:
    """The problem's code; None: the reply is none of the gateway's problems."""
    content = reply.content_as_json()
    return content["code"] if is_problem(content) else None


def failure(reply: ServerReply | NoReply) -> str:
    """Why a request failed, and the remedy, which a problem of the gateway's names itself."""
    if isinstance(reply, ServerReply) and is_problem(content := reply.content_as_json()):
        return f"it replied {reply.status}: {content['detail']}"
    if isinstance(reply, NoReply):
        why = reply.why
    else:
        why = f"it replied {reply.status}{described(reply)}"
    return f"{why}; send the same again: that is harmless"


def described(reply: ServerReply) -> str:
    """What a reply that is not the gateway's looks like, in parentheses."""
    if "Location" not in reply.headers:
        return f" ({reply.headers.get('Content-Type', 'without a type')[:_QUOTED]})"
    try:
        to = urlsplit(reply.headers["Location"])
        shown = to._replace(netloc=to.hostname or "", query="", fragment="")
        target = shown.geturl()[:_QUOTED]
    except ValueError:
        target = "what is no URL"
    return f" (a redirect to {target}, which is not followed)"


def error_of(status: int, problem: Mapping[str, Any]) -> PosGatewayError:
    """The error that a call raises for the gateway's problem."""
    detail = problem["detail"]
    match status:
        case 401 | 403:
            return Unauthorized(f"{PREFIX}TOKEN: {detail}")
        case 409:
            return OrderDiffers(detail)
        case 413:
            return InvalidOrder([FieldError(WHOLE, detail)])
        case 422 if problem["code"] != "invalid_request":
            named = problem.get("errors") or [{"field": WHOLE, "problem": detail}]
            return InvalidOrder(
                [FieldError(e["field"], e["problem"], e.get("value", ABSENT)) for e in named]
            )
        case _ if status in RETRIED:
            return BrokerUnavailable(detail)
        case _:
            return PosGatewayError(detail)


def result_of(order: Order, reply: Mapping[str, Any]) -> SubmitResult:
    """An order's result, from its part of a batch's reply."""
    if is_problem(reply):
        return SubmitResult(order.order_id, None, error_of(reply["status"], reply))
    return SubmitResult(order.order_id, reply["state"])


def not_the_gateway(did: str) -> str:
    """The sentence for a peer that is not the gateway, with the remedy."""
    remedy = f"check the URL ({PREFIX}HTTP_URL), and what is in between"
    return f"it is not the gateway that {did}; {remedy}"


def no_reply(error: OSError | HTTPError) -> NoReply:
    """Why there is none. Not requests' own words, which quote the URL."""
    causes = list(_causes(error))
    for each in causes:
        match each:
            case ssl.SSLCertVerificationError(verify_message=message):
                why = f"its certificate is not trusted ({message}); give its authority's PEM file"
                return NoReply(f"{why} as verify", may_come=False)
            case ReplyTooLarge():
                why = not_the_gateway(f"replied more than {REPLY_BYTES} bytes")
                return NoReply(why, may_come=False)
            case DecodeError() | InvalidHeader():
                return NoReply(not_the_gateway("replied what is no HTTP"), may_come=False)
    if isinstance(error, ValueError):  # an invalid URL, header or proxy
        return NoReply(f"it cannot be asked ({type(error).__name__})", may_come=False)
    return NoReply(next(filter(None, map(_reason, causes)), type(error).__name__))


def _reason(error: BaseException) -> str | None:
    """Why there is no reply, if this one of its causes has it."""
    match error:
        case requests.ConnectTimeout():
            return "it does not accept the connection in time"
        case requests.Timeout() | TimeoutError():
            return "it does not reply in time"
        case gaierror() | UnicodeError():
            return "its host is unknown"
        case OSError(strerror=str(words)) if not isinstance(error, requests.RequestException):
            return f"it cannot be reached: {words.lower()}"
        case ConnectionError():
            return "it closed the connection without a reply"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those it was made from, which libraries put into arguments, too."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [*each.args, each.__cause__, each.__context__]
            todo.append(getattr(each, "reason", None))
