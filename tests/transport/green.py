"""Exchanges on green threads, as the worker makes them: jobs as JSON lines in, results out.

A job has ``url``, ``times`` (how many at once), ``seconds`` (the deadline) and optionally ``again``
(how many more times after that), ``ca_file`` and ``bytes`` (of the body). The result of each is
``200``, or the error's class and code. With ``budget``, in seconds, the job only connects within
that; with ``cut_short`` the attempt was cut short before.
"""

from gevent import monkey

monkey.patch_all()

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gevent

from pos_gateway.transport import dial
from pos_gateway.transport.deadline import CallContext
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard


def play(job: dict[str, Any]) -> dict[str, Any]:
    transport = Transport(guard=Guard(allow_all=True), ca_file=job.get("ca_file"))
    request = Request("POST", job["url"], b"x" * job.get("bytes", 7))

    def once() -> str:
        try:
            if "budget" in job:
                dial.CONNECT_BUDGET = job["budget"]
                transport.reach(job["url"])
                return "reached"
            context = CallContext()
            if job.get("cut_short"):
                context.cancel()
            reply = transport.send(
                request,
                key="m",
                connections=job["times"],
                seconds=job["seconds"],
                context=context,
            )
        except TransportError as error:
            return f"{type(error).__name__} {error.code}"
        return str(reply.status)

    came_of_them: Counter[str] = Counter()
    for _ in range(1 + job.get("again", 0)):
        threads = [gevent.spawn(once) for _ in range(job["times"])]
        gevent.joinall(threads, raise_error=True)
        came_of_them.update(thread.value for thread in threads)
    transport.close()
    return {"came_of_them": came_of_them, "mib": _memory()}


def _memory() -> float:
    """This process's peak memory, in MiB; ``getrusage`` has its parent's, if that is more."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps({"mib": _memory()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)
