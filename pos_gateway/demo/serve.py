"""Serve until Ctrl-C: ``python -m pos_gateway.demo.serve PORT [WELL]``, or ``pos-gateway demo --serve``.

The real HTTP server in a process of its own, the real green worker in this one, simulated merchants,
and the story that the operations page shows, whose trouble begins after WELL seconds. The user's
orders go from the server to the worker through a pipe, events through the database.
"""

from gevent import monkey

monkey.patch_all()

import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import gevent
from gevent.event import Event

from pos_gateway.attempt import gateway
from pos_gateway.demo import story
from pos_gateway.demo.gateway import configure, green_worker, open_merchants
from pos_gateway.demo.guide import guide
from pos_gateway.demo.server_process import ServerProcess
from pos_gateway.http_client import HttpOrderClient
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role

#: Seconds between two looks at what has happened.
_LOOK_EVERY = 1.0


def main() -> int:
    """0 after Ctrl-C or SIGTERM; 130 if it comes before all has started, or twice; 1 if it cannot serve."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="pos-gateway-demo-") as folder:
            configure(
                Path(folder),
                POS_GATEWAY_EVENTS_TO_BROKER="false",  # nothing would take them from its queue
                no_proxy="127.0.0.1",  # for the reader of events
            )
            with SimulatedMerchants(seed=1) as merchants:
                open_merchants(merchants, alone=(story.SLOW, story.SILENT))
                port, *well = sys.argv[1:]
                return _serve(int(port), merchants, float(well[0]) if well else story.WELL)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        return 130


def _serve(port: int, merchants: SimulatedMerchants, well: float) -> int:
    ours = gateway.current()
    tokens = TokenStore(ours.database)
    operator = tokens.create("operator", Role.OPERATOR, operator="demo")
    token = tokens.create("backend", Role.BACKEND, operator="demo")
    with ServerProcess(port, ours.publisher) as server, green_worker():
        is_stopped = _stop_signal()
        print(guide(server.url, operator, token, well), flush=True)
        playing = gevent.spawn(story.play, merchants, well)
        counts = Counter[str]()
        reader = gevent.spawn(_count, server.url, token, counts)
        shown = ""
        while not (is_stopped.wait(_LOOK_EVERY) or server.has_ended):
            line = _line(server.submitted, counts)
            if line != shown:
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
                shown = line
        gevent.killall([reader, playing])
        if not is_stopped.is_set():
            sys.stderr.write("pos-gateway: the server has ended\n")
            return 1
        print("\nstopping: no more requests, orders in flight end", flush=True)
        server.stop()
    return 0


def _stop_signal() -> Event:
    """Set by the first Ctrl-C or SIGTERM, which must not interrupt an order; a second one interrupts."""
    is_stopped = Event()

    def stop(_number: int, _frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        is_stopped.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    return is_stopped


def _count(url: str, token: str, counts: Counter[str]) -> None:
    """Count the events of the user's orders by type, as any backend reads them."""
    with HttpOrderClient(url, token) as client:
        for event in client.events():
            if not event["order_id"].startswith(story.PREFIX):
                counts[event["type"].removeprefix("order.")] += 1


def _line(submitted: int, counts: Counter[str]) -> str:
    parts = [f"{count} {what.replace('_', ' ')}" for what, count in sorted(counts.items())]
    return ", ".join([f"your orders: {submitted} submitted", *parts])


if __name__ == "__main__":
    sys.exit(main())
