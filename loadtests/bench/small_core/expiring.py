"""Orders that expire in one moment, while they wait for merchants that hang."""

import time
from collections.abc import Callable

from loadtests.bench.attacks.plays import wait_until_sifted
from loadtests.bench.small_core import backlogs
from loadtests.bench.small_core.adversary import Scene
from loadtests.bench.small_core.counting import ended
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.world import World
from pos_gateway.ledger.states import Action, State

#: Orders a second that a worker takes or parks, at least, with a core; and that RabbitMQ stores.
_SIFTED, _STORED = 1500.0, 5000.0
#: Seconds in which the producer of healthy orders gets ready.
_READY = 1.0


def waiting(each: int) -> Callable[[World, Scene], None]:
    """Queue ``each`` orders of each merchant, which are parked when they expire, at the warm-up's end."""

    def prepare(place: World, scene: Scene) -> None:
        number = each * scene.adversary.merchants
        within = number / _SIFTED / scene.core.part + number / _STORED + scene.size.warm_up
        begin = time.time() + within - scene.size.warm_up - _READY
        backlogs.put(place, scene, each, within=within)
        wait_until_sifted(place.broker_url)
        if time.time() > begin:
            raise InvalidRunError(f"{number:,} orders were not parked before they expired")
        time.sleep(begin - time.time())

    return prepare


def expired(place: World) -> int:
    """Orders that ended so."""
    return ended(place, Action.SUBMIT, State.EXPIRED)
