"""Thousands of readers of one cached value, in one of several processes. Patched by gevent.

    python -m gevent.monkey --module loadtests.bench.cache_readers CANDIDATE REDIS_URL PORT READERS SECONDS LIFETIME

Prints a JSON object: when each read began and how many seconds it took, and the seconds of CPU of a
read of what is there.
"""

import json
import random
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import gevent

from pos_gateway.cache.refresh_ahead import REFRESH, Loaded, RefreshAheadCache
from pos_gateway.cache.shared import SharedValues
from pos_gateway.runtime.vault import Vault

#: Seconds between two reads of one reader.
THINKING = 1.0
#: Reads that are timed together.
TIMED = 200_000
_KEY = "k"


def load(port: int) -> str:
    """Load the value from the source."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"value, please\n")
        return connection.makefile().readline().strip()


def refresh_ahead(redis_url: str, port: int, lifetime: float) -> Callable[[], object]:
    """The gateway's cache."""
    shared: SharedValues[str] = SharedValues(
        redis_url, "bench", vault=Vault("the same in all processes"), encode=str, decode=str
    )

    def loaded(keys: Sequence[str]) -> dict[str, Loaded[str]]:
        return {key: Loaded(load(port)) for key in keys}

    cache = RefreshAheadCache(
        "bench",
        loaded,
        lifetime=lifetime,
        absent=1.0,
        stale=0.0,
        max_weight=1000,
        failures=(OSError,),
        pause=lambda _: 1.0,
        shared=shared,
    )
    return lambda: cache.get(_KEY)


def naive(_redis_url: str, port: int, lifetime: float) -> Callable[[], object]:
    """Each reader that finds the value expired loads it; as often as the other refreshes it."""
    kept: dict[str, tuple[str, float]] = {}

    def get() -> str:
        value, until = kept.get(_KEY, ("", 0.0))
        if time.monotonic() >= until:
            value = load(port)
            kept[_KEY] = value, time.monotonic() + REFRESH * lifetime
        return value

    return get


CANDIDATES = {"gateway": refresh_ahead, "naive": naive}


def main(
    candidate: str, redis_url: str, port: int, readers: int, seconds: float, lifetime: float
) -> None:
    """Read for ``seconds``."""
    _, max_weight = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_weight, max_weight))
    get = CANDIDATES[candidate](redis_url, port, lifetime)
    end = time.monotonic() + seconds
    reads: list[tuple[float, float]] = []

    def read() -> None:
        gevent.sleep(random.random() * THINKING)
        while time.monotonic() < end:
            at, began = time.time(), time.perf_counter()
            get()
            reads.append((at, time.perf_counter() - began))
            gevent.sleep(THINKING)

    gevent.joinall([gevent.spawn(read) for _ in range(readers)])
    began = time.process_time()
    for _ in range(TIMED):
        get()
    print(json.dumps({"reads": reads, "cpu": (time.process_time() - began) / TIMED}))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(
            sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *map(float, sys.argv[5:])
        )
