"""A location's opening hours: times of day in the location's time zone."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any
from zoneinfo import ZoneInfo

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True, slots=True)
class Hours:
    """When a location is open, by the clock on the wall, to the minute; the closing minute is open.

    Hours with a closing time before the opening time, or equal, close on the next day. An hour shown twice, or
    left out, as summer time ends or begins, needs no rule.
    """

    zone: ZoneInfo
    #: Opening and closing times by day of the week, Monday first; a day without is closed.
    week: tuple[tuple[tuple[time, time], ...], ...]

    @classmethod
    def read(cls, zone: Any, week: Iterable[Iterable[tuple[Any, Any]]]) -> "Hours | None":
        """Hours from an IANA time zone and times in ISO 8601; None if any cannot be read, or there are none.

        A week without any is of a shop that has set no hours, more often than of one that never opens.
        """
        try:
            days = tuple(tuple(map(_span, day)) for day in week)
            return cls(ZoneInfo(zone), days) if any(days) else None
        except (ValueError, TypeError, AttributeError, LookupError, OSError):
            return None

    def local(self, when: datetime) -> datetime:
        """The time by the location's clock."""
        return local(when, self.zone)

    def are_open(self, when: datetime) -> bool:
        """Whether the location is open then."""
        local = self.local(when)
        at, day = local.time().replace(second=0, microsecond=0), local.weekday()
        return any(
            opens <= at and (at <= closes or closes <= opens) for opens, closes in self.week[day]
        ) or any(closes <= opens and at <= closes for opens, closes in self.week[day - 1])


def zone_of(name: Any) -> ZoneInfo | None:
    """The time zone of an IANA name; None: not given, or not known here."""
    try:
        return ZoneInfo(name)
    except (ValueError, TypeError, AttributeError, LookupError, OSError):
        return None


def local(when: datetime, zone: ZoneInfo) -> datetime:
    """The time by the clock of a zone; at the calendar's end by the given one."""
    try:
        return when.astimezone(zone)
    except OverflowError:
        return when


def _span(given: tuple[Any, Any]) -> tuple[time, time]:
    opens, closes = (time.fromisoformat(each).replace(tzinfo=None) for each in given)
    return opens, closes
