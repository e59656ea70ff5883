"""Faults planted in the fleet one at a time: the tests beside this must find every one.

``python -m tests.fleet.faults`` tries them.
"""

from tests.planting import Fault, try_all

FAULTS = [
    Fault(
        "permits whose lease ended before Redis heard of their pod are given up",
        "fleet/coordinator",
        "since = reached if answer.forgotten else now",
        "since = now",
        "outages::whose_lease_ended",
    ),
    Fault(
        "an answer from before a pause is not believed",
        "fleet/coordinator",
        "if self._clock.monotonic() - since >= self._timing.trust:",
        "if False:",
        "outages::answer_from_before",
    ),
    Fault(
        "nothing starts after a pause that was longer than the lease",
        "fleet/coordinator",
        "return self.state is State.ALONE or now - self._reached < self._timing.trust",
        "return True",
        "outages::paused_starts_nothing",
    ),
    Fault(
        "a sync that was held up does not keep permits from being asked for",
        "fleet/coordinator",
        "min(takes, self._timing.lease * _SHARE_OF_REDIS)",
        "takes",
        "outages::after_a_pause_in_a_sync",
    ),
    Fault(
        "permits are taken from admission before Redis hears that they are free",
        "fleet/holdings",
        "            self._allot(holding, kept)\n",
        "            holding.permits = kept\n",
        "sharing::taken_from_admission",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "fleet")
