"""What a stretch of a run cost, by part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.gauge import (
    BROKER,
    DATABASE,
    MACHINE,
    PRODUCER,
    SIMULATOR,
    WAITED,
    WORKER,
    Reading,
    used_between,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Shares of one core; ``machine`` is all cores' sum."""

    worker: float
    #: Share of the time that the worker was ready to run and had no core to run on.
    waited: float
    simulator: float
    rabbitmq: float
    postgresql: float
    machine: float
    producer: float = 0.0

    @classmethod
    def between(cls, readings: Sequence[Reading], start: float, end: float) -> "Cost":
        """The cost between two moments."""
        used = used_between(readings, start, end)
        return cls.of({part: seconds / (end - start) for part, seconds in used.items()})

    @classmethod
    def of(cls, shares: Mapping[str, float]) -> "Cost":
        """The cost from shares by part."""
        return cls(
            worker=shares.get(WORKER, 0.0),
            waited=shares.get(WAITED, 0.0),
            simulator=shares.get(SIMULATOR, 0.0),
            rabbitmq=shares.get(BROKER, 0.0),
            postgresql=shares.get(DATABASE, 0.0),
            machine=shares.get(MACHINE, 0.0),
            producer=shares.get(PRODUCER, 0.0),
        )

    @property
    def shares(self) -> dict[str, float]:
        """The shares by part."""
        return {
            WORKER: self.worker,
            WAITED: self.waited,
            SIMULATOR: self.simulator,
            BROKER: self.rabbitmq,
            DATABASE: self.postgresql,
            MACHINE: self.machine,
            PRODUCER: self.producer,
        }
