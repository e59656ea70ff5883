"""Faults planted in the fleet one at a time: the tests in this folder must find every one.

``python -m tests.fleet.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "a poll wants as many permits as let it end",
        "admission/quota",
        "POLLED if self.terms.at_once is None else 1",
        "1",
        "polls::has_its_requests_in_time",
    ),
    Fault(
        "permits whose lease expired before a sync are given up",
        "fleet/coordinator",
        "since = reached if answer.forgotten else now",
        "since = now",
        "outages::a_pod_whose_lease_expired_before_its_sync_holds_no_permit",
    ),
    Fault(
        "an answer from before a pause is not believed",
        "fleet/coordinator",
        "if self._clock.monotonic() - since >= self._timing.trust:",
        "if False:",
        "outages::answer_from_before",
    ),
    Fault(
        "no order starts after a pause longer than the lease",
        "fleet/coordinator",
        "return self.state is FleetState.ALONE or now - self._reached < self._timing.trust",
        "return True",
        "outages::a_pod_that_was_paused_starts_no_order_before_a_sync",
    ),
    Fault(
        "a slow sync does not delay the next request for permits",
        "fleet/coordinator",
        "min(takes, self._timing.lease * _SHARE_OF_REDIS)",
        "takes",
        "outages::after_a_pause_in_a_sync",
    ),
    Fault(
        "permits are taken from admission before they are returned to Redis",
        "fleet/holdings",
        "            self._allot(holding, kept)\n",
        "            holding.permits = kept\n",
        "sharing::taken_from_admission",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "fleet")
