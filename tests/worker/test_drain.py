"""How long orders in flight may take when a worker is told to stop."""

import subprocess
import sys

SCRIPT = """
from gevent import monkey; monkey.patch_all()
import os, signal
from gevent.event import Event
from pos_gateway.worker import drain as module

now = 1000.0
module.monotonic = lambda: now
drain = module.Drain(lambda: None)
drain.listen()
os.kill(os.getpid(), signal.SIGTERM)
now += 100.0
let_go = Event()
drain.bound(60.0, let_go.set)
print(let_go.wait(30))
"""


def test_the_drain_timeout_counts_from_the_signal() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
