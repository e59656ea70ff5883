"""Dead letters that an operator has replayed, as fast as the command can."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtests.bench import filling, orders
from loadtests.bench.candidate import WATCHED
from loadtests.bench.small_core.adversary import FIRST, Scene
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import child
from loadtests.bench.world import World
from pos_gateway.broker import wire

LETTERS = 5000
#: The command's rate, in letters a second: the highest that the command takes.
_COMMAND = ("dlq", "replay", "--all", "--rate", "1000", "--as", "bench")


def dead_letters(place: World, scene: Scene) -> None:
    """Queue orders in ``orders.dead``, of merchants whose records were missing."""
    ids = scene.adversary.merchant_ids * (LETTERS // scene.adversary.merchants)
    placed = orders.place_many(orders.shuffled(ids), first=FIRST)
    letters = [
        wire.dead_letter(WATCHED.message(order), code="unknown_merchant", reason="no record")
        for order in placed
    ]
    filling.put(place.broker_url, letters)


@contextmanager
def replayed(place: World) -> Iterator[None]:
    """Run the command, in a process of its own. Raises InvalidRunError: it failed."""
    log = place.folder / "replay.log"
    with (
        log.open("wb") as output,
        child(
            [sys.executable, "-m", "pos_gateway", *_COMMAND],
            env={**os.environ, **place.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as command,
    ):
        yield
        if command.poll():
            said = log.read_text(errors="replace")[-500:]
            raise InvalidRunError(f"dlq replay ended with {command.returncode}: {said}")
