"""Commands that call POSes as a worker does: on green threads."""

import os
import sys

from pos_gateway.runtime.green import green


def become_green(*words: str) -> None:
    """Restart the command of these words on green threads: the worker's resolver and time limits. Idempotent."""
    if green():
        return
    again = ["-P", "-m", "gevent.monkey", "--module", "pos_gateway"]
    os.execv(sys.executable, [sys.executable, *again, *words])  # noqa: S606
