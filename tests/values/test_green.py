"""Yielding between green threads."""

import subprocess
import sys

#: A green thread counts its turns, before and while another iterates.
PROGRAM = """\
from gevent import monkey; monkey.patch_all()
import gevent
from pos_gateway.runtime import green

seen = []

def look_through():
    seen.extend(green.cooperatively({arguments}))
    print(*seen)

def have_turns():
    while True:
        if seen[-1:] != ["turn"]:
            seen.append("turn")
        gevent.sleep(0)

gevent.spawn(have_turns)
gevent.spawn(look_through).get()
"""


def seen(arguments: str) -> str:
    command = [sys.executable, "-c", PROGRAM.format(arguments=arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_an_iteration_yields_every_few_items() -> None:
    assert seen("range(1, 8), 3") == "turn 1 2 3 turn 4 5 6 turn 7"
    assert seen("range(1, 8), 7") == "turn 1 2 3 4 5 6 7"


def test_heavy_items_count_for_more() -> None:
    assert seen("[1, 1, 5, 1, 2, 1], 3, float") == "turn 1 1 5 turn 1 2 turn 1"


#: One green thread waits for a socket, and another one iterates with yields.
READY = """\
from gevent import monkey; monkey.patch_all()
import gevent, socket
from pos_gateway.runtime import green

here, there = socket.socketpair()
reader = gevent.spawn(there.recv, 1)
gevent.sleep(0)
here.send(b"x")
for number, _ in enumerate(green.cooperatively(range(1000), 1)):
    if reader.ready():
        break
print(number)
"""


def test_an_iteration_yields_to_threads_whose_socket_is_ready() -> None:
    command = [sys.executable, "-c", READY]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 2
