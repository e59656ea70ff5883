"""Backlogs: orders of the others that are queued before any healthy one."""

from collections.abc import Callable
from math import ceil

from loadtests.bench import filling, orders
from loadtests.bench.candidate import WATCHED
from loadtests.bench.small_core.adversary import FIRST, Scene
from loadtests.bench.world import World


def outlasting(seconds: float) -> Callable[[World, Scene], None]:
    """Queue as many orders as no worker can do in a run, of merchants that take ``seconds`` each.

    With half of a core or more the slots are taken for the limit, and with less as much of them.
    """

    def prepare(place: World, scene: Scene) -> None:
        size = scene.size
        lasts = size.warm_up + size.measured + size.settle
        rate = WATCHED.slots / seconds * min(1.0, 2 * scene.core.part)
        put(place, scene, ceil(lasts * rate / scene.adversary.merchants))

    return prepare


def put(place: World, scene: Scene, each: int, *, within: float = orders.PLENTY) -> None:
    """Queue ``each`` orders of each of the others, which may take ``within`` seconds."""
    whose = orders.shuffled(scene.adversary.merchant_ids * each)
    placed = orders.place_many(whose, first=FIRST, deliver_within=within)
    filling.put(place.broker_url, [WATCHED.message(order) for order in placed])
