"""Green threads."""

import subprocess
import sys

#: A green thread notes each of its turns, before and while another goes through seven items.
PROGRAM = """\
from gevent import monkey; monkey.patch_all()
import gevent, sys
from pos_gateway import green

seen = []

def look_through():
    seen.extend(green.in_turns(range(1, 8), int(sys.argv[1])))
    print(*seen)

def have_turns():
    while True:
        seen.append("turn")
        gevent.sleep(0)

gevent.spawn(have_turns)
gevent.spawn(look_through).get()
"""


def seen(few: int) -> str:
    command = [sys.executable, "-c", PROGRAM, str(few)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_others_have_their_turns_after_every_few() -> None:
    assert seen(3) == "turn 1 2 3 turn 4 5 6 turn 7"
    assert seen(7) == "turn 1 2 3 4 5 6 7"
