"""Watches which merchants are in trouble, in half a thousandth of a core, however many there are.

Looking at ten thousand merchants takes longer than a report may. All merchants are looked at as often as the CPU share
allows, every two seconds at best, and only the worst merchants for each report.
"""

from collections.abc import Callable
from math import inf
from time import thread_time
from typing import Any

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.symptoms import MerchantStatus, Symptoms
from pos_gateway.admission.trouble import is_in_trouble, severity, worst
from pos_gateway.reports.report import MAX_TROUBLES, Trouble
from pos_gateway.runtime.green import yield_control

#: Merchants looked at in a row.
YIELD_EVERY = 200
#: The part of a core for looking at all merchants.
SHARE = 0.0005


class TroubleWatch:
    """Knows the merchants in trouble, and since when.

    Args:
        admission: the source.
        now: admission's clock.
        cpu: this thread's CPU time.
    """

    def __init__(
        self,
        admission: Admission[Any],
        now: Callable[[], float],
        cpu: Callable[[], float] = thread_time,
    ) -> None:
        self._admission, self._now, self._cpu = admission, now, cpu
        #: Beginning of each merchant's trouble, as of the last look at all merchants, and the worst merchants.
        self._since: dict[str, float] = {}
        self._worst: list[str] = []
        self._look_at = -inf

    @property
    def in_trouble(self) -> int:
        """How many merchants are in trouble."""
        return len(self._since)

    def troubles(self) -> list[Trouble]:
        """The merchants in most trouble, the worst first. Yields to all green threads."""
        if self._now() >= self._look_at:
            self._look_at_all()
        now = self._now()
        known = (self._admission.symptoms(merchant_id, now) for merchant_id in self._worst)
        shown = [each for each in known if each is not None and is_in_trouble(each.status)]
        shown.sort(key=lambda each: severity(each.status), reverse=True)
        return [_trouble(each, now - self._since[each.status.merchant_id]) for each in shown]

    def _look_at_all(self) -> None:
        before, self._since = self._since, {}
        found: list[MerchantStatus] = []
        cpu = 0.0
        now, began = self._now(), self._cpu()
        for few in self._admission.in_trouble_by(YIELD_EVERY):
            for each in few:
                self._since[each.merchant_id] = before.get(each.merchant_id, now)
            found = worst([*found, *few], MAX_TROUBLES) if few else found
            cpu += self._cpu() - began
            yield_control()  # CPU of further green threads is not counted
            began = self._cpu()
        self._worst = [each.merchant_id for each in found]
        self._look_at = now + cpu / SHARE


def _trouble(symptoms: Symptoms, since: float) -> Trouble:
    status = symptoms.status
    return Trouble(
        status.merchant_id,
        since=round(since, 1),
        breaker=status.breaker.value,
        breaker_for=round(symptoms.breaker_for, 1),
        half_opens_in=round(symptoms.half_opens_in, 1),
        silent=status.silent,
        calls=symptoms.calls,
        timed_out=symptoms.timed_out,
        failed=symptoms.failed,
        overloaded=symptoms.overloaded,
        late=symptoms.late,
        latest=_milliseconds(symptoms.latest),
        usual=_milliseconds(symptoms.usual),
        in_flight=status.in_flight,
        limit=status.limit,
        waiting=status.waiting,
        parked=status.parked,
        error=symptoms.error,
        error_ago=round(symptoms.error_ago, 1),
        agreed=status.agreed,
        quota=symptoms.quota,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
