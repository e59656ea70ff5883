"""Polls in a fleet: a quota's requests that no order needs are a poll's."""

from typing import Any, cast

from pos_gateway.adapters.hubrise_api import LIMITS
from pos_gateway.admission.admission import Admission
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.attempt.poller import LIMIT, PACE
from pos_gateway.domain.merchant import Merchant
from pos_gateway.fleet.coordinator import Coordinator
from pos_gateway.fleet.sync import Answer, Grant, Report
from pos_gateway.worker.quotas import quotas_of
from tests.fleet.pods import ManualClock

#: Of HubRise's lists, at most.
PAGES = 6


class Idle:
    """Redis, whose other workers have no orders."""

    def __init__(self) -> None:
        self.most = 0

    def sync(self, report: Report) -> Answer:
        self.most = max([self.most, *(each.wanted for each in report.asks)])
        granted = [max(each.permits, each.wanted) for each in report.asks]
        grants = [Grant(each, each, False) for each in granted]
        return Answer(grants, [], {}, [], 0.0, False, 1)

    def close(self) -> None:
        pass


def test_a_poll_of_hubrises_longest_list_has_its_requests_in_time_and_leaves_orders_the_most() -> (
    None
):
    auth = {"type": "bearer", "token": "secret"}
    merchant = Merchant.model_validate({"id": "m", "base_url": "https://pos.example", "auth": auth})
    terms, clock, redis = Terms(5, quotas=quotas_of(merchant, LIMITS)), ManualClock(), Idle()
    short: list[str] = []
    admission: Admission[str] = Admission(
        AdmissionLimits(), lambda _: terms, on_short=short.append, in_fleet=True
    )
    fleet: Any = Coordinator(cast("Any", redis), admission, on_change=lambda: None, clock=clock)
    fleet.begin()
    began, sent = clock.seconds, 0
    while sent < PAGES:
        if (quotas := admission.poll("m", clock.seconds)) is not None:
            admission.polled(quotas, clock.seconds)
            sent += 1
        clock.sleep(PACE)
        for key in short:
            fleet.short(key)
        short.clear()
        fleet.step()
        assert clock.seconds - began < LIMIT / 2, f"{sent} requests"
    [quota] = terms.quotas
    assert redis.most <= admission.demand(quota.key).limit / 4
