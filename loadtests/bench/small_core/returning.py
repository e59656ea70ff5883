"""Merchants that hang until their orders wait or are parked, and then answer all at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadtests.bench.attacks.plays import wait_until_sifted
from loadtests.bench.slow_merchants import OTHERS_GROUP
from loadtests.bench.small_core import backlogs
from loadtests.bench.small_core.adversary import QUICK_REPLY, Scene
from loadtests.bench.world import World


def hung(each: int) -> Callable[[World, Scene], None]:
    """Queue ``each`` orders of each merchant, and have the worker take or park all of them."""

    def prepare(place: World, scene: Scene) -> None:
        backlogs.put(place, scene, each)
        wait_until_sifted(place.broker_url)

    return prepare


@contextmanager
def answering(place: World) -> Iterator[None]:
    """All of them answer, in the calls that hang, too."""
    place.merchants.profile(f"{OTHERS_GROUP}-*", QUICK_REPLY, release=True)
    yield
