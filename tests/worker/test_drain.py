"""A worker that is stopped while a merchant keeps it waiting."""

import os
import signal
import time
from pathlib import Path

from tests.worker.lab import Lab


def test_a_worker_that_drains_is_idle_while_it_waits_for_a_merchant(lab: Lab) -> None:
    lab.open_merchants("hang-1", max_concurrency=1, request_timeout=30)
    with lab.worker(slow_after=1.0) as worker:
        lab.submit("hang-1", "o1")
        lab.merchants.wait_until(merchant_id="hang-1", in_flight=1)
        worker.send(signal.SIGTERM)
        time.sleep(2)  # the call has become slow meanwhile
        before = cpu_seconds(worker.process.pid)
        time.sleep(2)
        spent = cpu_seconds(worker.process.pid) - before
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)
    assert spent < 0.5


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
