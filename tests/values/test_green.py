"""Green threads."""

import subprocess
import sys

#: A green thread notes each of its turns, before and while another goes through some items.
PROGRAM = """\
from gevent import monkey; monkey.patch_all()
import gevent
from pos_gateway import green

seen = []

def look_through():
    seen.extend(green.in_turns({arguments}))
    print(*seen)

def have_turns():
    while True:
        seen.append("turn")
        gevent.sleep(0)

gevent.spawn(have_turns)
gevent.spawn(look_through).get()
"""


def seen(arguments: str) -> str:
    command = [sys.executable, "-c", PROGRAM.format(arguments=arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_others_have_their_turns_after_every_few() -> None:
    assert seen("range(1, 8), 3") == "turn 1 2 3 turn 4 5 6 turn 7"
    assert seen("range(1, 8), 7") == "turn 1 2 3 4 5 6 7"


def test_what_is_heavy_counts_for_more() -> None:
    assert seen("[1, 1, 5, 1, 2, 1], 3, float") == "turn 1 1 5 turn 1 2 turn 1"
