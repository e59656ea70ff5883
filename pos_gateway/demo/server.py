"""The demo's HTTP server: ``python -m pos_gateway.demo.server PORT``.

It is the real one, on an in-memory broker. Its first line on standard output has its URL, as JSON;
each further one is a message for the worker (``shovel.py``). It stops when standard input ends, as it
does when the process that has started it is gone.
"""

import json
import logging
import os
import signal
import sys
import threading

from pos_gateway.demo import shovel
from pos_gateway.server.serving import listening, serve
from pos_gateway.server.site import Site
from pos_gateway.settings import Settings
from pos_gateway.telemetry import log

_HOST = "127.0.0.1"


def main() -> int:
    """Serve until SIGTERM; 1 if it cannot listen."""
    port = int(sys.argv[1])
    log.configure(logging.WARNING)
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    threading.Thread(target=shovel.consume, args=(_write,), daemon=True).start()

    def ready(address: str, bound: int) -> None:
        _write(json.dumps({"url": f"http://{address}:{bound}"}) + "\n")

    try:
        listener = listening(_HOST, port)
    except OSError as error:
        why = str(error.strerror or error).partition(" (")[0]
        sys.stderr.write(f"pos-gateway: cannot listen at {_HOST} port {port}: {why}; ")
        sys.stderr.write("choose another with --port\n")
        return 1
    with listener:
        serve(Site(Settings.from_environment()), listener, on_ready=ready)
    return 0


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _stop_at_end_of_input() -> None:
    os.read(sys.stdin.fileno(), 1)  # unbuffered: the process may end meanwhile
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
