"""What the forms of work lists say: which letters or orders are meant, and how a run acts on them."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pos_gateway.administration.bulk.filter import ONLY, BulkFilter
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import RATE
from pos_gateway.domain.errors import AdminError
from pos_gateway.runtime.clock import shown
from pos_gateway.server.page.view import Act
from pos_gateway.server.page.views.order_acts import TIMES
from pos_gateway.server.problems import Problem

#: The fields of a filter, in a query.
FIELDS = ("reason", "merchant", "provider", "since", "until", "only")
_LENGTH = re.compile(r"([1-9]\d{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: Slowest and fastest runs: letters or orders a second.
_RATES = (0.1, 1000.0)
_MAX_LIMIT = 1_000_000


def given(values: Mapping[str, str]) -> dict[str, str]:
    """The filter's fields that say something."""
    found = {name: values.get(name, "").strip() for name in FIELDS}
    return {name: value for name, value in found.items() if value}


def filter_of(fields: Mapping[str, str], now: float) -> BulkFilter:
    """The filter of these fields. Raises Problem 422."""
    only = fields.get("only")
    if only is not None and only not in ONLY:
        raise _wrong(f"only: {only[:40]!r} is none of {', '.join(ONLY)}")
    since, until = (_moment(name, fields.get(name), now) for name in ("since", "until"))
    if since is not None and until is not None and until <= since:
        raise _wrong("until: is not after since, so nothing can be between them")
    codes, merchants, providers = (
        (fields[name],) if name in fields else () for name in ("reason", "merchant", "provider")
    )
    return BulkFilter(codes, merchants, providers, since=since, until=until, only=only)


def in_words(filter_: Mapping[str, Any], things: str) -> str:
    """Which ones a filter's record means: ``letters with the reason token, of the provider p``."""
    parts = []
    for name, words in (
        ("codes", "with the reason"),
        ("merchants", "of the merchant"),
        ("providers", "of the provider"),
    ):
        if filter_.get(name):
            parts.append(f"{words} {' or '.join(filter_[name])}")
    if filter_.get("since") is not None:
        parts.append(f"since {shown(filter_['since'])}")
    if filter_.get("until") is not None:
        parts.append(f"before {shown(filter_['until'])}")
    if filter_.get("only"):
        parts.append(f"only {filter_['only']}")
    return f"{things} {', '.join(parts)}" if parts else f"all {things}"


def options_of(act: Act) -> BulkOptions:
    """How the run acts. Raises AdminError."""
    minutes = act.form.get("minutes", "")
    if minutes and minutes not in TIMES:
        raise AdminError(f"New time: {minutes[:40]!r} is none of those offered")
    return BulkOptions(
        rate=_rate(act.form.get("rate", "")),
        seconds=60.0 * int(minutes) if minutes else None,
        even_open=act.form.get("open") == "yes",
        reason=act.reason,
    )


def limit_of(act: Act) -> int | None:
    """The first how many. Raises AdminError."""
    text = act.form.get("limit", "").strip()
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= 9
    if not (is_number and 1 <= int(text) <= _MAX_LIMIT):
        raise AdminError(f"The first: {text[:40]!r} is no number from 1 to {_MAX_LIMIT:,}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text.strip() or RATE)
    except ValueError:
        rate = math.nan
    if not _RATES[0] <= rate <= _RATES[1]:
        raise AdminError(f"At most a second: {text[:40]!r} is no number from 0.1 to 1000")
    return rate


def _moment(name: str, text: str | None, now: float) -> float | None:
    if text is None:
        return None
    length = _LENGTH.fullmatch(text)
    if length is not None:
        return now - int(length[1]) * _UNITS[length[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        problem = f"{name}: {text[:40]!r} is no time; 2h (ago) or 2026-01-31T12:00:00Z is one"
        raise _wrong(problem) from None


def _wrong(problem: str) -> Problem:
    return Problem(422, "invalid_request", problem)
