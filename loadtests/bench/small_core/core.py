"""The parts of a core that a worker is given, and the limits of what others may do there."""

from dataclasses import dataclass

from loadtests.bench.attacks.plays import SteadySize

#: Seconds that a healthy merchant takes over an order.
REPLY = 0.02
#: How long a run lasts, quick or not.
SIZES = {False: SteadySize(20, 20, settle=10), True: SteadySize(10, 10, settle=5)}
#: The part of the CPU that healthy orders leave, which others get at least; and the part of all CPU that
#: they use, at least, while no healthy merchant has work.
LEAST_SHARE, LEAST_ALONE = 0.6, 0.95


@dataclass(frozen=True, slots=True)
class Core:
    """A part of a core, the healthy orders a second that it gets, and what the others may add to their p99."""

    part: float
    rate: float
    #: Milliseconds.
    most_added: float

    def __str__(self) -> str:
        return f"{self.part:g} core"


CORES = (Core(0.25, 20.0, 100.0), Core(0.5, 40.0, 50.0), Core(1.0, 100.0, 20.0))
#: Those of a quick run.
QUICK = CORES[1:2]
