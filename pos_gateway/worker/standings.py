"""The status of merchants: gauges, and ``/debug/merchants``.

Ten thousand merchants are read a few hundred at a time, and orders run in between.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Gauge

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.breaker import BreakerState
from pos_gateway.admission.symptoms import MerchantStatus
from pos_gateway.admission.trouble import is_in_trouble, worst
from pos_gateway.runtime.green import cooperatively
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.serving import PageReply

#: Merchants read in a row.
YIELD_EVERY = 200
#: Merchants on a page, by default and at most.
PAGE, LONGEST_PAGE = 100, 500
_BREAKER = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class Standings:
    """A read-only view of admission.

    Args:
        admission: the source of the view.
        provider_of: a merchant's provider; None: the merchant has no provider, or is not known.
    """

    def __init__(self, admission: Admission[Any], provider_of: Callable[[str], str | None]) -> None:
        self._admission = admission
        self._provider_of = provider_of

    def show(self) -> None:
        """Set the gauges."""
        self._show_slots()
        in_trouble = [each for each in self._all() if is_in_trouble(each)]
        metrics.merchants_in_trouble.set(len(in_trouble))
        by_state: Counter[tuple[str, ...]] = Counter(
            (each.breaker.value, metrics.provider_names[self._provider_of(each.merchant_id)])
            for each in cooperatively(in_trouble, YIELD_EVERY)
            if each.breaker is not BreakerState.CLOSED
        )
        named = worst(cooperatively(in_trouble, YIELD_EVERY), metrics.WORST)
        _set_all(metrics.breakers, by_state)
        for gauge, figure in _OF_A_MERCHANT:
            _set_all(gauge, {(each.merchant_id,): figure(each) for each in named})

    def page(self, query: Mapping[str, str]) -> PageReply:
        """``?page=2&per_page=500&troubled=1``: merchants with orders here or in trouble.

        Sorted by id; a merchant coming or going between two pages moves all later merchants.
        """
        try:
            number = _whole(query, "page", 1)
            per_page = min(_whole(query, "per_page", PAGE), LONGEST_PAGE)
        except ValueError as error:
            return PageReply.of({"error": str(error)}, 400)
        found = self._all()
        if query.get("troubled", "0") not in ("", "0", "false"):
            found = filter(is_in_trouble, found)
        merchants = sorted(found)
        shown = merchants[(number - 1) * per_page : number * per_page]
        return PageReply.of(
            {
                "page": number,
                "pages": max(1, -(-len(merchants) // per_page)),
                "total": len(merchants),
                "merchants": [self._described(each) for each in shown],
            }
        )

    def _all(self) -> Iterator[MerchantStatus]:
        for few in cooperatively(self._admission.merchants_by(YIELD_EVERY), 1):
            yield from (each for each in few if each.merchant_id)  # one lane has no merchant

    def _show_slots(self) -> None:
        admission = self._admission
        for state, number in admission.slots.items():
            metrics.slots.labels(state).set(number)
        metrics.cpu_is_scarce.set(admission.cpu.is_used_up)
        metrics.waiting.labels("merchant").set(admission.blocked)
        metrics.waiting.labels("slot").set(admission.waiting - admission.blocked)
        metrics.parked_now.set(admission.parked_count.total)

    def _described(self, standing: MerchantStatus) -> dict[str, Any]:
        described = standing._asdict()
        del described["troubled"]
        return {
            **described,
            "provider": self._provider_of(standing.merchant_id),
            "in_trouble": is_in_trouble(standing),
        }


_OF_A_MERCHANT: tuple[tuple[Gauge, Callable[[MerchantStatus], float]], ...] = (
    (metrics.merchant_parked, lambda each: each.parked),
    (metrics.merchant_waiting, lambda each: each.waiting),
    (metrics.merchant_in_flight, lambda each: each.in_flight),
    (metrics.merchant_silent, lambda each: each.silent),
    (metrics.merchant_breaker, lambda each: _BREAKER[each.breaker]),
)


def _set_all(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    """Replace all of a gauge's values."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def _whole(query: Mapping[str, str], name: str, otherwise: int) -> int:
    text = query.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
        raise ValueError(f"{name}: a whole number from 1 (got {text[:40]!r})")
    return int(text)
