"""The workers that are compared: the gateway, and what a user would pick instead."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from loadtests import baselines
from loadtests.baselines import plain_celery
from loadtests.bench.orders import PlacedOrder
from loadtests.bench.world import World
from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message
from testkit.servers.process import free_port


class RivalMissingError(RuntimeError):
    """Raised when a candidate's package is not installed."""


def _to_gateway(order: PlacedOrder) -> Message:
    return wire.submit_message(order.order_id, order.json, routing_key=topology.orders_queue.name)


def _to_celery(order: PlacedOrder) -> Message:
    message = _to_gateway(order)
    return replace(message, headers={**message.headers, "task": baselines.TASK})


def _to_dramatiq(order: PlacedOrder) -> Message:
    message = {
        "queue_name": topology.orders_queue.name,
        "actor_name": baselines.ACTOR,
        "args": [json.loads(order.json)],
        "kwargs": {},
        "options": {},
        "message_id": order.order_id,
        "message_timestamp": 0,
    }
    return replace(_to_gateway(order), body=json.dumps(message).encode(), headers={})


def _alone(order: PlacedOrder) -> Message:
    return replace(_to_gateway(order), body=order.json, headers={})


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A worker to run: its command line, its environment and its messages."""

    name: str
    #: What follows ``python``.
    command: tuple[str, ...]
    #: Orders that it can have in flight at once.
    slots: int
    #: The message that asks it to deliver an order.
    message: Callable[[PlacedOrder], Message]
    #: Its processes that work, each of which can fill a core.
    processes: int = 1
    #: It is the gateway: it publishes every order's outcome, and is held to account for it.
    accountable: bool = False
    #: It shows metrics, which are asked for as Prometheus would.
    scraped: bool = False
    #: What else the gateway is told.
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Packages that it needs beside ours.
    needs: tuple[str, ...] = ()

    def environment(self, world: World, timeout: float) -> dict[str, str]:
        """What it is told; ``timeout`` is that of one exchange with a merchant, in seconds."""
        if self.accountable:
            return {
                **world.environment,
                "POS_GATEWAY_REQUEST_TIMEOUT": str(timeout),
                "POS_GATEWAY_METRICS_PORT": str(free_port() if self.scraped else 0),
                **self.settings,
            }
        return {
            "PLAIN_BROKER_URL": world.broker_url,
            "PLAIN_MERCHANTS_URL": world.merchants.base_url("").rstrip("/"),
            "PLAIN_TIMEOUT": str(timeout),
        }

    def check(self) -> None:
        """Raises RivalMissingError unless its packages are there."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise RivalMissingError(
                f"{self.name} needs {' and '.join(missing)}: `make bench` installs what the "
                "candidates need, and so does `pip install -r requirements-bench.txt`"
            )


def _celery(*arguments: str) -> tuple[str, ...]:
    return ("-m", "celery", "-A", *arguments)


_GATEWAY = _celery("pos_gateway.gcelery", "worker")
_PLAIN = (plain_celery.__name__, "worker")
#: Flags that an expert would give a worker without others to talk to: without them Celery 5.7 on
#: gevent starts ten orders a second.
_ALONE = ("--without-gossip", "--without-mingle", "--without-heartbeat")

#: The gateway as it is meant to be run: no flags at all.
OURS = Candidate("gateway", _GATEWAY, 200, _to_gateway, accountable=True)
#: The same with all that there is to see of it: a line for each attempt, and metrics that are read.
WATCHED = replace(OURS, command=(*_GATEWAY, "--loglevel", "INFO"), scraped=True)
#: The gateway the way to move back to: synchronous, as before the seed's change.
SYNCHRONOUS = Candidate(
    "gateway, prefork -c 4",
    _celery("pos_gateway", "worker", "-P", "prefork", "-c", "4"),
    4,
    _to_gateway,
    processes=4,
    accountable=True,
)
#: The seed's worker with every flag that an expert would give it.
PLAIN = Candidate(
    "plain Celery", _celery(*_PLAIN, "-P", "gevent", "-c", "200", *_ALONE), 200, _to_celery
)
#: The seed's worker without them.
PLAIN_WITHOUT_FLAGS = Candidate(
    "plain Celery, no flags", _celery(*_PLAIN, "-P", "gevent", "-c", "200"), 200, _to_celery
)
#: One native thread for each order instead.
THREADS = Candidate(
    "Celery threads", _celery(*_PLAIN, "-P", "threads", "-c", "200", *_ALONE), 200, _to_celery
)
#: The seed's worker before the change: four processes, one order each.
PREFORK = Candidate(
    "Celery prefork",
    _celery(*_PLAIN, "-P", "prefork", "-c", "4", "--without-mingle"),
    4,
    _to_celery,
    processes=4,
)
DRAMATIQ = Candidate(
    "dramatiq-gevent",
    (
        str(Path(sys.executable).with_name("dramatiq-gevent")),
        *("loadtests.baselines.plain_dramatiq", "--processes", "1", "--threads", "200"),
    ),
    200,
    _to_dramatiq,
    needs=("dramatiq", "pika"),
)
ASYNCIO = Candidate(
    "bare asyncio",
    ("-m", "loadtests.baselines.plain_asyncio"),
    200,
    _alone,
    needs=("aiohttp", "aio_pika"),
)

#: By name, for a process that is told which one it works for.
BY_NAME = {
    each.name: each
    for each in (OURS, SYNCHRONOUS, PLAIN, PLAIN_WITHOUT_FLAGS, THREADS, PREFORK, DRAMATIQ, ASYNCIO)
}
