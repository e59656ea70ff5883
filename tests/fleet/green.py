"""The coordinator on green threads: ``python -m tests.fleet.green URL``. Exits with 0 if it works."""

from gevent import monkey

from testkit.patience import PATIENCE

monkey.patch_all()

import sys

import gevent
from gevent.event import Event

from pos_gateway.fleet.permits import TIMEOUT
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from tests.fleet.pods import PROMPT, Pod


def main(url: str) -> None:
    pod = Pod(url, timing=PROMPT, clock=SYSTEM_CLOCK, limits={"a": 3}, timeout=TIMEOUT)
    started = Event()

    def on_change() -> None:
        pod.admission.start_what_may()
        started.set()

    pod.coordinator._on_change = on_change
    pod.coordinator.start()
    pod.coordinator.start()  # idempotent
    pod.submit("a", 5)
    assert started.wait(PATIENCE)
    assert pod.running("a") == 3, pod.running("a")

    print("paused?", flush=True)  # the test that started this pauses Redis now
    sys.stdin.readline()
    turns = 0
    pod.submit("b", 1)
    with gevent.Timeout(PATIENCE):
        while pod.coordinator._failed_at is None:
            gevent.sleep(0.001)
            turns += 1
    assert turns > 3, turns  # other green threads run while it waits for Redis
    pod.coordinator.stop()
    pod.coordinator.stop()
    assert pod.allotted("a") == 0
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
