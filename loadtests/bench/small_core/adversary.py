"""An adversary as a value: merchants beside the healthy ones, what is prepared, sent and counted."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from loadtests.bench import slow_merchants
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.plays import SteadySize
from loadtests.bench.small_core.core import REPLY, Core
from loadtests.bench.world import World

#: The number of the others' first order: healthy ones have the lower numbers.
FIRST = 1_000_000
QUICK_REPLY: Mapping[str, object] = {"kind": "accept", "latency": REPLY}


def delivered(place: World) -> int:
    """Orders that the others' merchants have made."""
    made = place.merchants.timeline().get(slow_merchants.OTHERS_GROUP, ())
    return sum(number for _, number in made)


def _nothing(_: World) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class Adversary:
    """Who else has work."""

    #: On the command line, and in a table.
    name: str
    title: str
    merchants: int
    #: How its merchants behave until it is sent.
    profile: Mapping[str, object] = field(default_factory=lambda: QUICK_REPLY)
    #: What their records say.
    terms: Mapping[str, object] = field(default_factory=dict)
    #: What is done before the first healthy order.
    prepare: "Callable[[World, Scene], None]" = lambda *_: None
    #: What is done once the healthy orders have come for a while, until the run's end.
    send: Callable[[World], AbstractContextManager[object]] = _nothing
    #: How many of its orders were done so far, whatever that is: delivered, expired, published.
    done: Callable[[World], int] = delivered
    #: Its orders come at a rate, or parked ones return at one: it may be idle while CPU is left.
    at_a_rate: bool = False

    @property
    def attack(self) -> Attack:
        """The same for a trial: its merchants, and how they behave."""
        return Attack(
            self.name,
            "",
            self.title,
            slow_merchants.beside(self.merchants, self.terms),
            troubled=(slow_merchants.OTHERS_GROUP,),
            profile=self.profile,
            mid_run=False,
        )

    @property
    def merchant_ids(self) -> list[str]:
        """Its merchants."""
        return self.attack.population.groups[1].merchant_ids


@dataclass(frozen=True, slots=True)
class Scene:
    """An adversary on a part of a core; what ``steady`` plays beside healthy orders."""

    adversary: Adversary
    core: Core
    size: SteadySize

    def prepare(self, place: World) -> None:
        """What is done before the first healthy order."""
        self.adversary.prepare(place, self)

    def send(self, place: World) -> AbstractContextManager[object]:
        """What is done after the warm-up, until the run's end."""
        return self.adversary.send(place)

    def done(self, place: World) -> int:
        """How many of its orders were done so far."""
        return self.adversary.done(place)
