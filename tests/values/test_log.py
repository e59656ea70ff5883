"""Logs as programs write them."""

import json
import subprocess
import sys

PROGRAM = """
import structlog
from pos_gateway.telemetry.log import configure

configure()
secret = "hunter2"
try:
    len(secret) / 0
except ZeroDivisionError:
    structlog.get_logger().exception("it.failed", order_id="o-1")
"""


def test_a_mistake_is_one_line_that_says_where_it_was_made_and_no_values() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    [line] = done.stderr.splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["order_id"]) == ("it.failed", "error", "o-1")
    assert 'File "<string>", line 8, in <module>' in said["exception"]
    assert said["exception"].endswith("ZeroDivisionError: division by zero")
    assert "hunter2" not in line
