"""One run: a gateway of its own, locust that plays the order backends, and what was seen."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.candidate import OURS
from loadtests.bench.filling import declare
from loadtests.bench.gauge import PRODUCER, WORKER, Gauge, Reading
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer
from loadtests.bench.worker import ROOT, Worker, child
from loadtests.bench.world import World, world
from loadtests.load.scenario import LoadScenario
from loadtests.load.scraper import Sample, Scraper
from pos_gateway.demo.record import RunRecord
from testkit.faults.adapters import install
from testkit.servers.process import free_port

#: Seconds between two looks at whether locust and the worker still run.
_LOOK = 0.5


class ProducerEndedError(RuntimeError):
    """Raised when locust has ended without a record of what it saw."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen of a run, before anything is made of it. Moments are of the wall clock."""

    scenario: LoadScenario
    record: RunRecord
    #: The worker's own metrics.
    samples: Sequence[Sample]
    #: CPU time and memory by part.
    readings: Sequence[Reading]
    #: By how many seconds the simulated merchants replied late: ``p99`` and ``worst``.
    simulator_late: Mapping[str, float]


def play(servers: Servers, scenario: LoadScenario) -> Run:
    """Bring the load on a worker that knows nothing of it.

    Raises:
        WorkerEndedError: the worker has ended by itself.
        ProducerEndedError: locust has.
    """
    merchants = scenario.merchant_ids
    port = free_port()
    with world(
        servers, merchants, scenario.profiles(0.0), scenario.terms, seed=scenario.seed
    ) as place:
        environment = {
            **place.environment,
            "POS_GATEWAY_METRICS_PORT": str(port),
            "PYTHONPATH": install(place.folder),
        }
        declare(place.broker_url)
        with Worker(OURS.command, environment, place.folder) as worker:
            wait_for_consumer(place.broker_url, worker)
            with Scraper(port, place.broker_url) as scraper:
                record, readings = _have_locust_play(scenario, place, worker)
            worker.check()
            late = place.merchants.summary()["late"]
    return Run(scenario, record, scraper.samples, readings, late)


def _have_locust_play(
    scenario: LoadScenario, place: World, worker: Worker
) -> tuple[RunRecord, Sequence[Reading]]:
    path, log = place.folder / "record.json", place.folder / "locust.log"
    options = {
        "--locustfile": ROOT / "loadtests" / "locustfile.py",
        "--scenario": scenario.file,
        "--seconds": scenario.seconds,
        "--simulator": f"{place.merchants.host}:{place.merchants.port}",
        "--record": path,
    }
    command = [sys.executable, "-m", "locust", "--headless", "--only-summary", "--take-events"]
    with (
        log.open("wb") as output,
        child(
            [*command, *(part for option in options.items() for part in option)],
            env={**os.environ, "LOCUST_BROKER_URL": place.broker_url},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as locust,
        Gauge({**place.parts(worker), PRODUCER: locust.pid}, waiting=WORKER) as gauge,
    ):
        while locust.poll() is None:
            worker.check()
            time.sleep(_LOOK)
    if not path.exists():
        raise ProducerEndedError(f"locust ended. Its output:\n{log.read_text()[-3000:]}")
    return RunRecord.read(path), gauge.readings
