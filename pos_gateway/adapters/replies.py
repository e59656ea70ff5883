"""Parses untrusted replies: what every adapter does with status and body."""

import email.utils
import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from math import isinf
from typing import Any
from urllib.parse import urlsplit

from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED, CallResult, Kind, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.runtime.addresses import is_public
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import ACKNOWLEDGEMENT, BODY_LIMIT, Reply

#: ``Retry-After`` is clamped to these seconds: a year is a mistake, 0 a stampede.
RETRY_AFTER = (1.0, 900.0)
#: Maximum objects, lists and members of both in a reply, together.
_PARTS = 40_000
#: A POS's reply about an order may be this many times as long as the order.
_WORDS = 16
#: Maximum bytes of all the pages of a look-up.
LOOK_UP = 1024 * 1024
#: Maximum characters of a number with a point or an exponent; a longer one adds nothing, and is
#: slow to parse.
_NUMBER = 40
#: Maximum characters of a whole number; 2 to the 63rd.
_DIGITS, _INT64 = 20, 2**63
#: Why an order waits whose POS takes no credential of ours: a token ends, and an operator gives another.
_REFUSED = Reason(CREDENTIAL_REFUSED, "the POS answered 401: it refuses the merchant's credentials")
_SECONDS = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def json_object(reply: Reply, parts: int = _PARTS) -> dict[str, Any] | None:
    """The reply's body as a JSON object, or None when it is not safe to rely on.

    Args:
        reply: the POS's.
        parts: maximum objects, lists and members of both, together.
    """
    value = _json(reply, parts)
    return value if isinstance(value, dict) else None


def json_list(reply: Reply) -> list[Any] | None:
    """The reply's body as a JSON list; None as for ``json_object``."""
    value = _json(reply)
    return value if isinstance(value, list) else None


def json_objects(reply: Reply) -> list[dict[str, Any]] | None:
    """The objects of the reply's body, if that is a JSON list; None as for ``json_object``."""
    listed = json_list(reply)
    return None if listed is None else [each for each in listed if isinstance(each, dict)]


def _json(reply: Reply, parts: int = _PARTS) -> Any:
    """The reply's body as JSON, or None when it is not safe to rely on.

    Duplicate keys, NaN, infinities and whole numbers beyond 64 bits are refused: parsers disagree about
    them. So are overlong numbers, and objects with more parts than a meaningful reply of this size has: each costs as
    much as a whole line of text.
    """
    body = reply.body
    if body.count(b"{") + body.count(b"[") + body.count(b",") > parts:
        return None
    try:
        return json.loads(
            body.decode("utf-8", "strict"),
            object_pairs_hook=_no_duplicates,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError):
        return None


def with_the_order(order: Order) -> int:
    """Maximum bytes of a reply that repeats the whole order."""
    return min(BODY_LIMIT, ACKNOWLEDGEMENT + _WORDS * len(order.source))


def retry_after(reply: Reply) -> float | None:
    """Seconds to wait before the next request, clamped; None when the reply does not say."""
    value = reply.headers.get("retry-after", "").strip()
    if not value:
        return None
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        until, now = _date(value), replied_at(reply)
        if until is None or now is None:  # relative to the peer's clock only
            return None
        seconds = (until - now).total_seconds()
    low, high = RETRY_AFTER
    return min(max(seconds, low), high)


def replied_at(reply: Reply) -> datetime | None:
    """The time by the peer's clock; None: the reply does not say."""
    return _date(reply.headers.get("date", ""))


def _date(text: str) -> datetime | None:
    """An HTTP date; None if it cannot be parsed."""
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def by_status(reply: Reply, unprocessed: Set[int] = frozenset()) -> Outcome:
    """What a status means when the POS's documentation does not say.

    The rule: a reply that says the request was refused before it was processed is final or may
    be retried; one that says something broke on the way (5xx) leaves the order in doubt.
    ``unprocessed``: statuses documented as refused before processing.
    """
    status = reply.status
    reason = Reason.of(f"http_{status}", f"the POS answered {status}")
    if status == 429 or status in unprocessed:
        too_much = CallResult.OVERLOADED
        return Outcome(Kind.RETRY, reason, retry_after=retry_after(reply), contact=too_much)
    if status == 401:
        return Outcome(Kind.RETRY, _REFUSED, contact=CallResult.FAILED)
    if 300 <= status < 400:
        return _redirected(reply)
    if status in (400, 413, 415, 422, 431):
        return Outcome(Kind.REJECTED, reason)
    if 400 <= status < 500 and status not in (408, 409, 425):
        return Outcome(Kind.FAILED, reason)
    contact = CallResult.OVERLOADED if status in (503, 504) else CallResult.FAILED
    return Outcome(Kind.IN_DOUBT, reason, retry_after=retry_after(reply), contact=contact)


def _redirected(reply: Reply) -> Outcome:
    where = _host(reply.headers.get("location", ""))
    said = f"the POS redirects to {where or 'another path'}"
    inside, outside = Reason.of("security", said), Reason.of("redirect", said)
    return Outcome(Kind.FAILED, inside if _is_inside(where) else outside)


def merchant_gone(reply: Reply) -> Outcome:
    """A 410 for a URL with the merchant and no order: the POS no longer serves the merchant.

    Any other 410 may be about one order, and must not stop the merchant's others.
    """
    return replace(by_status(reply), merchant_gone=True)


def no_answer(reply: Reply) -> Outcome:
    """A look-up answered with a status that says nothing about the order: in doubt."""
    problem, said = f"asked for the order, the POS answered {reply.status}", by_status(reply)
    reason = _REFUSED if said.reason is _REFUSED else Reason.of(f"http_{reply.status}", problem)
    return Outcome(Kind.IN_DOUBT, reason, retry_after=retry_after(reply), contact=said.contact)


def is_absent(reply: Reply) -> bool:
    """Whether the POS says that it does not have the order: a 404, but no page for people.

    Such a page is an ingress's or a proxy's, whose service may be away.
    """
    kind = reply.headers.get("content-type", "").lower()
    is_page = "html" in kind or reply.body.lstrip()[:1] == b"<"
    return reply.status == 404 and not is_page


def after_refusal(look_up: Callable[[], Outcome | None]) -> Outcome | None:
    """Look up an order that the POS has refused, but may have.

    Raises:
        NoValidReply: also where the look-up was not sent, since the POS may have the order.
    """
    try:
        return look_up()
    except NotSent as error:
        raise NoValidReply(error.code, error) from error


def shorter(error: NoValidReply, orders: int, least: int = 1) -> int:
    """The orders to ask for in a page after one that was too long; raises any other ``error``."""
    if error.code != "reply_too_long" or orders <= least:
        raise error
    return max(least, orders // 2)


def in_doubt(message: object) -> Outcome:
    """The outcome for a reply that cannot be relied on."""
    return Outcome(Kind.IN_DOUBT, Reason.of("invalid_reply", message))


def not_undone(disagreement: Reason, known_as: object, after: Outcome) -> Outcome:
    """In doubt: an order that is not the agreed one stands at the POS, and undoing it was in vain.

    The doubt has no ``external_id``: a callback about the order would accept it.

    Args:
        disagreement: why it is not the agreed one.
        known_as: the POS's id of it, for an operator.
        after: the outcome of undoing it.
    """
    if after.kind is not Kind.IN_DOUBT and after.contact is CallResult.NONE:
        after = after.after(CallResult.ANSWERED)
    why = after.reason.message if after.reason is not None else after.kind
    words = f"{disagreement.message}; it stands at the POS as {known_as}: {why}"
    reason = Reason.of(disagreement.code, words)
    return replace(after, kind=Kind.IN_DOUBT, reason=reason, external_id=None)


def begun(disagreement: Reason, known_as: object) -> Outcome:
    """In doubt, for an operator: the shop has begun with an order that is not the agreed one."""
    why = Reason(disagreement.code, "the shop has begun with it")
    return not_undone(disagreement, known_as, Outcome(Kind.REJECTED, why, for_operator=True))


def decision(states: Mapping[str, Kind], state: object, external_id: object) -> Outcome:
    """The outcome for the POS's order state; in doubt if the state is unknown or the id missing."""
    kind, known_as = states.get(str(state)), identifier(external_id)
    if kind is None or known_as is None:
        return in_doubt(f"an order in the state {state!r} with the id {external_id!r}")
    return Outcome(kind, external_id=known_as)


def _host(location: str) -> str:
    """A redirect's host, without the path, which may hold the order."""
    try:
        return urlsplit(location).hostname or ""
    except ValueError:
        return ""


def _is_inside(host: str) -> bool:
    """Whether a redirect points to an address that is not public. It is never followed."""
    try:
        return not is_public(ip_address(host))
    except ValueError:
        return False


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key stands twice")
    return record


def _finite(number: str) -> float:
    if len(number) > _NUMBER or isinf(value := float(number)):
        raise ValueError("a number that no reader needs, or that not all can read")
    return value


def _whole(number: str) -> int:
    if len(number) > _DIGITS or not -_INT64 <= (value := int(number)) < _INT64:
        raise ValueError("a whole number that not all readers can read")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
