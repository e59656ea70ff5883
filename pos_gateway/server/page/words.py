"""Numbers and times as an operator reads them."""

import re
from datetime import UTC, datetime

from markupsafe import Markup

_DAY = 86_400
#: A refusal names the act, and the command behind it: `` (pos-gateway dlq replay A-1 --for 30m)``.
_COMMAND = re.compile(r" \((?:pos-gateway |--[a-z])[^()]*\)")


def number(value: float | None) -> str:
    """``1,204``; an em dash for none."""
    return "—" if value is None else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A short time: ``23 ms``, ``1.2 s``; an em dash for none."""
    if value is None:
        return "—"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 59.95 else duration(value)


def duration(value: float) -> str:
    """A time in words: ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 days``."""
    whole = max(0, round(value))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 2 * _DAY:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h {minutes} min" if minutes else f"{whole // 3600} h"
    return f"{whole // _DAY} days"


def moment(at: float | None, now: float | None = None) -> Markup:
    """A Unix time, with seconds, in UTC, and how long ago it was; an em dash for none."""
    if at is None:
        return Markup('<span class="none">—</span>')
    try:
        then = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup('<span class="none">no date</span>')
    now = datetime.now(UTC).timestamp() if now is None else now
    shown = f"{then:%H:%M:%S}" if abs(now - at) < _DAY / 2 else f"{then:%Y-%m-%d %H:%M:%S}"
    ago = f"{duration(now - at)} ago" if now >= at else f"in {duration(at - now)}"
    return Markup('<time datetime="{}">{} UTC <small>{}</small></time>').format(
        f"{then:%Y-%m-%dT%H:%M:%SZ}", shown, ago
    )


def counted(value: int, one: str, many: str | None = None) -> str:
    """``1 order``, ``2 orders``."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def at_most_counted(value: int, one: str, most: int) -> str:
    """``2 orders``, and ``more than 10,000 orders`` where no more are counted."""
    return f"more than {counted(most, one)}" if value > most else counted(value, one)


def without_commands(sentence: str) -> str:
    """The sentence without the commands behind its acts, which the page has itself."""
    return _COMMAND.sub("", sentence)
