"""How long orders in flight may take when a worker stops, and what interrupts its wait for them."""

import os
import subprocess
import sys

import pytest

from testkit.patience import PATIENCE

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
print(let_go.wait())
"""

INTERRUPTED = """
from gevent import monkey; monkey.patch_all()
import os, signal, sys
from gevent import sleep
from pos_gateway.worker.drain import Drain

drain = Drain(lambda: drain.interrupt())
drain.listen()
os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[1] == "stops":
    drain.bound(60.0, lambda: None)
for _ in range(9):
    sleep(0)
print("waits")
"""

CRASHED = """
from gevent import monkey; monkey.patch_all()
from gevent import sleep
from pos_gateway.worker.crash import end_worker
from pos_gateway.worker.drain import Drain

drain = Drain(lambda: drain.interrupt())
drain.listen()
end_worker(RuntimeError("a mistake of ours"))
for _ in range(9):
    sleep(0)
"""

IDLE = """
from gevent import monkey; monkey.patch_all()
import os, signal, socket
import gevent
from amqp.transport import TCPTransport
from pos_gateway.broker.amqp_internals import BufferedConnection
from pos_gateway.broker.frames import Incoming
from pos_gateway.worker.drain import Drain

here, there = socket.socketpair()
connection = BufferedConnection()
connection._transport = transport = TCPTransport("there")
transport.sock, transport.connected = here, True
transport._quick_recv = connection._incoming = Incoming(here.recv)
connection._is_plain = True
drain = Drain(lambda: drain.end_wait(lambda: connection.waits))
drain.listen()
os.kill(os.getpid(), signal.SIGTERM)
try:
    connection.drain_events(timeout=3600)
except TimeoutError:
    print("ended", connection.waits, transport.connected)
here.settimeout(3600)
for stops in (False, True):
    if stops:
        drain.bound(3600.0, lambda: None)
    drain.end_wait(lambda: stops or connection.waits)
    gevent.spawn_later(0.01, there.sendall, b"later")  # once it has had its turn
    print(here.recv(9))
"""

HURRIED = """
from gevent import monkey; monkey.patch_all()
import os, signal, sys
from gevent import sleep
from gevent.event import Event
from pos_gateway.worker.drain import Drain

first, second = (signal.Signals[name] for name in sys.argv[1:])
drain, let_go = Drain(lambda: None), Event()
drain.listen()
os.kill(os.getpid(), first)
drain.bound(60.0, let_go.set)
for _ in range(9):
    sleep(0)
print(let_go.is_set())
os.kill(os.getpid(), second)
print(let_go.wait())
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return done.stdout


def test_the_drain_timeout_counts_from_the_signal() -> None:
    assert run(SCRIPT) == "True\n"


def test_a_signal_interrupts_a_worker_that_connects_and_none_that_waits_for_orders_in_flight() -> (
    None
):
    """It may find the main thread at work, which then stops before the interruption is due."""
    assert run(INTERRUPTED, "connects") == ""
    assert run(INTERRUPTED, "stops") == "waits\n"


def test_a_worker_that_crashes_while_it_connects_ends_with_a_failure() -> None:
    done = subprocess.run([sys.executable, "-c", CRASHED], capture_output=True, timeout=PATIENCE)
    assert done.returncode == os.EX_SOFTWARE, done.stderr


def test_a_signal_ends_the_wait_for_a_message_and_no_other_wait() -> None:
    assert run(IDLE) == "ended False True\nb'later'\nb'later'\n"


@pytest.mark.parametrize(
    ("first", "second", "at_once"),
    [("SIGTERM", "SIGINT", False), ("SIGQUIT", "SIGTERM", True)],
)
def test_a_second_signal_or_sigquit_waits_for_no_order_in_flight(
    first: str, second: str, at_once: bool
) -> None:
    assert run(HURRIED, first, second) == f"{at_once}\nTrue\n"
