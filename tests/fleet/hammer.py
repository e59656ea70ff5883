"""One pod in a separate process: ``python -m tests.fleet.hammer URL ORDERS``.

It sends this many orders to each of three merchants as fast as it may, and counts the calls in
flight in Redis beside the fleet's keys: this count is independent of the code under test.
"""

import random
import sys
import threading
import time

from redis import Redis

from pos_gateway.fleet.sync import SyncTiming
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from tests.fleet.pods import Pod

LIMITS = {"one": 1, "few": 3, "many": 10}
#: A pod that lives keeps its lease, however busy the machine.
TIMING = SyncTiming(lease=60.0, beat=0.05, pulse=0.01, turn=0.02, idle=0.2, settle=0.0, retry=0.2)
COUNT = """
redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
local sum = 0
for _, value in ipairs(redis.call('HVALS', KEYS[1])) do sum = sum + value end
if sum > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], sum) end
"""


class Hammer:
    """The pod, its orders in flight, and their count."""

    def __init__(self, url: str, orders: int) -> None:
        self.pod = Pod(url, timing=TIMING, clock=SYSTEM_CLOCK, limits=LIMITS)
        self._count = Redis.from_url(url).register_script(COUNT)
        self._left = dict.fromkeys(LIMITS, orders)
        self._counted = dict.fromkeys(LIMITS, 0)
        self._calls: list[tuple[float, str]] = []
        self._chance = random.Random(self.pod.permits.pod)

    @property
    def is_done(self) -> bool:
        waiting = any(lane.waiting for lane in self.pod.admission.lanes.values())
        return not (waiting or self._calls or any(self._left.values()))

    def run(self) -> None:
        pause = threading.Event()
        while not self.is_done:
            self._submit()
            self.pod.step()
            self.pod.admission.start_what_may()  # orders that arrived while this process was paused
            self._note_what_started()
            self._finish_what_is_due()
            pause.wait(0.001)
        self.pod.coordinator.leave()

    def _submit(self) -> None:
        for merchant, left in self._left.items():
            number = min(left, self._chance.randrange(4))
            if number and self.pod.admission.lane(merchant).waiting < 20:
                self._left[merchant] -= number
                self.pod.submit(merchant, number)

    def _note_what_started(self) -> None:
        for merchant in LIMITS:
            while self._counted[merchant] < self.pod.running(merchant):
                self._add(merchant, 1)
                ends = time.monotonic() + self._chance.uniform(0.002, 0.02)
                self._calls.append((ends, merchant))

    def _finish_what_is_due(self) -> None:
        self._calls.sort()
        while self._calls and self._calls[0][0] <= time.monotonic():
            _, merchant = self._calls.pop(0)
            self._add(merchant, -1)
            self.pod.finish(merchant)
        self._note_what_started()

    def _add(self, merchant: str, number: int) -> None:
        self._counted[merchant] += number
        keys = [f"use:{merchant}", f"most:{merchant}"]
        self._count(keys=keys, args=[self.pod.permits.pod, number])


if __name__ == "__main__":
    hammer = Hammer(sys.argv[1], int(sys.argv[2]))
    print(hammer.pod.permits.pod, flush=True)
    hammer.run()
