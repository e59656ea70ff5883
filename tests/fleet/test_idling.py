"""An idle pod."""

from typing import Any, cast

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.fleet.coordinator import Coordinator
from pos_gateway.fleet.sync import Answer, Grant, Report
from tests.fleet.pods import PROMPT, ManualClock


class HalfOfEverything:
    """A fleet that grants this pod five permits of each merchant."""

    def sync(self, report: Report) -> Answer:
        grants = [
            Grant(n, n, True) for n in (max(a.permits, min(5, a.wanted)) for a in report.asks)
        ]
        return Answer(grants, [], {}, [], settling=0.0, forgotten=False, pods=2)

    def close(self) -> None: ...


def test_a_merchant_that_stays_short_of_permits_causes_no_busy_loop() -> None:
    clock = ManualClock()

    def ask(merchant_id: str) -> None:
        fleet.short(merchant_id)

    admission: Admission[int] = Admission(
        AdmissionLimits(), lambda _: Terms(10), on_short=ask, in_fleet=True
    )
    fleet = Coordinator(
        cast("Any", HalfOfEverything()),
        admission,
        on_change=lambda: None,
        timing=PROMPT,
        clock=clock,
    )
    fleet.begin()
    for order in range(12):
        admission.offer("m", order, clock.seconds)
    fleet.step()
    while admission.next_start(clock.seconds):
        pass
    assert (admission.in_flight, admission.waiting) == (5, 7)
    for _ in range(3):
        fleet.step()
    assert not fleet._short
