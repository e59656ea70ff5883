"""Events of a worker under load, one by one and in bulks, by the way in which they are published."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles

from loadtests.bench.attacks.producer import Producer, Schedule
from loadtests.bench.candidate import OURS
from loadtests.bench.cores import on_the_workers_core
from loadtests.bench.events import bulk
from loadtests.bench.events.stream import Stream
from loadtests.bench.filling import declare
from loadtests.bench.orders import spread
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer
from loadtests.bench.worker import Worker, child
from loadtests.bench.world import World, world
from pos_gateway.database.engine import open_database

#: Orders a second beside it, and the seconds after which their merchants reply.
RATE, REPLY = 200.0, 0.05
#: Seconds for a bulk to come, at most; the producer is ended with the run.
_PATIENCE, _LONGEST = 240.0, 600.0
_MERCHANTS = [f"healthy-{number}" for number in range(100)]

OURS_NAME, SINGLY, CHUNKS = "gateway", "one by one", "equal chunks"


@dataclass(frozen=True, slots=True)
class Live:
    """What a consumer saw, in seconds."""

    pipeline: str
    #: From an outcome to its event, of the worker's own orders.
    p50: float
    p95: float
    #: From its commit to 95 % of a bulk, and to all of it, by its size.
    bulks: Mapping[int, tuple[float, float]]


def play(servers: Servers, pipeline: str, *, seconds: float, sizes: Sequence[int]) -> Live:
    """Have a worker under load for ``seconds``, then write bulks one after the other.

    Raises:
        InvalidRunError: events did not come, or not in their order.
    """
    profiles = {"healthy": {"kind": "accept", "latency": REPLY}}
    with world(servers, _MERCHANTS, profiles) as place:
        declare(place.broker_url)
        engine = open_database(place.database_url)
        ours = pipeline == OURS_NAME
        environment = {
            **OURS.environment(place, 10.0),
            "POS_GATEWAY_PUBLISH_EVENTS": str(ours).lower(),
        }
        schedule = Schedule(RATE, _LONGEST)
        whose = spread(schedule.orders, _MERCHANTS)
        worker = Worker(OURS.command, environment, place.folder)
        producer = Producer(place.broker_url, OURS, schedule, whose, place.folder)
        naive = nullcontext() if ours else _naive(place, pipeline)
        with Stream(place.broker_url) as stream, worker, naive:
            wait_for_consumer(place.broker_url, worker)
            with producer:
                time.sleep(2)  # connections are made
                stream.latencies.clear()
                time.sleep(seconds)
                alone = list(stream.latencies)
                bulks = {}
                for size in sizes:
                    committed = bulk.write(engine, f"bulk{size}", size)
                    came = stream.wait_for(f"bulk{size}", size, seconds=_PATIENCE)
                    after = sorted(at - committed for at in came)
                    bulks[size] = after[int(0.95 * size)], after[-1]
                worker.check()
        engine.dispose()
        stream.check_order()
    cuts = quantiles(alone, n=100)
    return Live(pipeline, cuts[49], cuts[94], bulks)


def _naive(place: World, pipeline: str) -> AbstractContextManager[object]:
    how = "singly" if pipeline == SINGLY else "chunks"
    command = [sys.executable, "-m", "loadtests.baselines.naive_events", how]
    return child(
        on_the_workers_core([*command, place.broker_url, place.database_url]),
        start_new_session=True,
    )
