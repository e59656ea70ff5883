"""One move to the canary, with the canary killed in the middle, and back."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from loadtests.canary.crew import Crew
from loadtests.canary.orders import Orders, Step, table
from loadtests.canary.picture import picture
from pos_gateway.broker.queue_state import queue_states
from pos_gateway.canary.evidence import gather
from pos_gateway.canary.verdict import CanaryFinding, judge
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.faults.adapters import QueryableAdapter
from testkit.faults.site import Site

#: Merchants that answer as most do, and some that are too slow to count as healthy. Those have no
#: key, and one reply in three is lost: sent again before it is asked for, the order is made twice.
SHOPS, SLOW = 97, 3
LATENCY, SLOW_LATENCY = {"lognormal": [0.25, 0.25]}, 3.2
_LOSING = [
    {"weight": 2, "kind": "accept", "latency": SLOW_LATENCY},
    {"weight": 1, "kind": "reset", "latency": SLOW_LATENCY, "makes_order": True},
]
#: Seconds that anything may take before it counts as never coming.
PATIENCE = 90.0
#: Seconds of orders before the first step: a process's first ones cost more.
WARM_UP = 2.0
#: Seconds that an order may take until the verdict counts it.
SETTLE = 3.0


def open_merchants(merchants: SimulatedMerchants, store: MerchantStore) -> list[str]:
    """Have them known to the gateway; their ids."""
    adapters = {f"shop-{n}": "rest" for n in range(SHOPS)}
    adapters |= {f"slow-{n}": QueryableAdapter.name for n in range(SLOW)}
    merchants.profile("shop-*", {"kind": "accept", "latency": LATENCY})
    merchants.profile("slow-*", {"create": _LOSING, "lookups": {"kind": "accept"}, "keyed": False})
    store.put(
        Merchant.parse(
            {
                "id": each,
                "base_url": merchants.base_url(each),
                "adapter": adapter,
                "request_timeout": 2 * SLOW_LATENCY,
            }
        )
        for each, adapter in adapters.items()
    )
    return list(adapters)


class Rehearsal:
    """Plays the move on a site that has no workers yet."""

    #: Processes of an old worker, and orders a second for it: two thirds of them are busy.
    PROCESSES, RATE = 7, 14.0

    def __init__(self, here: Site, console: Console, *, seconds: float, drawing: Path) -> None:
        self._here = here
        #: Where the picture goes.
        self._drawing = drawing
        self._console = console
        self._seconds = seconds
        self._old, self._new = Crew.old(here, self.PROCESSES), Crew.new(here)
        self._steps: list[Step] = []
        self._began: list[tuple[str, float]] = []

    def play(self, *, old: int) -> list[str]:
        """Move, with this number of old workers; what does not add up."""
        for _ in range(old):
            self._old.add()
        self._new.add()
        self._wait_for_workers()
        self._console.print(
            f"{old} old workers with {self.PROCESSES} processes each, and a green one as the canary; "
            f"{SHOPS} healthy merchants that take 0.25 s, {SLOW} that take {SLOW_LATENCY} s, "
            "have no key and lose one reply in three."
        )
        with Orders(self._here.backend, self._here.ids, rate=self.RATE * old, seed=1) as orders:
            time.sleep(WARM_UP)
            self._step("0 %", orders)
            self._move(10)
            self._step("10 %", orders)
            self._move(50)
            self._step("50 %", orders)
            self._new.kill()
            self._step("canary killed", orders)
            self._new.add()
            self._wait_for_workers()
            self._move(100)
            self._step("100 %", orders)
            self._abort()
            self._step("moved back", orders)
        self._console.print("waiting for what is left")
        left = self._here.backend.wait_until_settled(PATIENCE)
        self._here.stop()
        self._console.print(table(self._steps, orders.seconds("shop-")))
        verdict = self._here.verdict(all_healthy=True)
        summary = "Something does not add up."
        if not (left or verdict.broken):
            summary = (
                f"All {len(self._here.backend.placed)} orders were accepted: none was lost, none was "
                "made twice."
            )
            self._console.print(summary)
        self._drawing.parent.mkdir(parents=True, exist_ok=True)
        self._drawing.write_text(picture(orders.delivered("shop-"), self._began, summary))
        self._console.print(f"the move in one picture: {self._drawing}", soft_wrap=True)
        return [*(f"{name}: no end in {PATIENCE:.0f} s" for name in left), *verdict.broken]

    def _step(self, name: str, orders: Orders) -> None:
        began, orders.step = time.time(), name
        self._began.append((name, began))
        before = self._old.cpu(), self._new.cpu()
        time.sleep(self._seconds)
        orders.step = ""  # what is placed while merchants are moved is in no step
        counts = orders.counts()
        outside, inside = counts.get((name, False), 0), counts.get((name, True), 0)
        if not self._new:  # then the old ones have all
            outside, inside = outside + inside, 0
        spent = self._old.cpu() - before[0], self._new.cpu() - before[1]
        cpu = [1000 * s / n if n else None for s, n in zip(spent, (outside, inside), strict=True)]
        self._console.print(
            f"{name}: {outside} orders for the old workers, {inside} for the canary"
        )
        self._steps.append(Step(name, cpu[0], cpu[1], self._verdict(began)))

    def _verdict(self, began: float) -> str:
        split, payloads = self._here.backend.split, Payloads(Vault())
        if split.changed_at is None or not 0 < split.percent < 100:
            return ""
        sides = gather(
            self._here.database,
            payloads,
            split,
            changed_at=split.changed_at.timestamp(),
            since=began,
            until=time.time() - min(SETTLE, self._seconds / 2),
        )
        stable, canary = queue_states(self._here.proxy.url)
        verdict = judge(*sides, own_workers=canary.consumers - stable.consumers)
        for each in verdict.measures:
            if each.finding is not CanaryFinding.FINE:
                self._console.print(f"  {each.name}, {each.finding}: {each.why}", soft_wrap=True)
        return verdict.decision.value

    def _move(self, percent: float) -> None:
        self._console.print(f"$ pos-gateway canary set {percent:g}")
        self._here.operate("canary", "set", f"{percent:g}")
        self._wait("the backend to follow", lambda: self._here.backend.split.percent == percent)

    def _abort(self) -> None:
        self._console.print("$ pos-gateway canary abort")
        self._here.operate("canary", "abort")
        self._wait("the backend to follow", lambda: self._here.backend.split.percent == 0)

    def _wait_for_workers(self) -> None:
        wanted = len(self._old), len(self._old) + len(self._new)

        def are_there() -> bool:
            orders, canary = queue_states(self._here.proxy.url)
            return (orders.consumers, canary.consumers) == wanted

        self._wait("the workers", are_there)

    def _wait(self, what: str, happened: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not happened():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
            time.sleep(0.1)
