"""The parts of a soak: what is done to a site under load, and how that is judged."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.bench.orders import place
from loadtests.soak.load import RATE, Load
from loadtests.soak.progress import Steps
from pos_gateway.attempt.decision import BACKOFF
from pos_gateway.attempt.doubt import LOOK_AGAIN_AFTER
from pos_gateway.ledger.lease import LEASE
from pos_gateway.runtime.failpoints import OF_ORDERS
from testkit.faults.backend import Name
from testkit.faults.invariants import Verdict
from testkit.faults.site import REQUEST_TIMEOUT, Site, Worker

#: Workers at once, so that a kill does not stop everything.
WORKERS = 3
#: Seconds for one fault before that counts as never.
FAULT = 120.0
#: Seconds without one order that comes to its end after which no more is to be expected, while some
#: have come to none. The longest that one waits for its next step: a dead worker's lease, until the
#: order's message comes back, the longest pause before another attempt, and that attempt. It is no
#: time for all of them, so it does not depend on how many there are.
SILENCE = LEASE + 2 * LOOK_AGAIN_AFTER + BACKOFF.longest + REQUEST_TIMEOUT
#: Seconds within which a worker that is told to stop has ended, and in which orders go on again.
EXIT, GOES_ON = REQUEST_TIMEOUT + 5.0, 10.0
#: Seconds after a worker's death at which the database has done what was on its way to it; others
#: may take over after three quarters of its lease at the earliest.
WRITTEN = 1.0


@dataclass(slots=True)
class Result:
    """A part's outcome."""

    name: str
    faults: str
    orders: int = 0
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    #: The orders at blind POSes that may be in doubt.
    may_be_in_doubt: set[Name] = field(default_factory=set)
    #: Dead-lettered after this many of their workers were killed.
    poison: set[Name] = field(default_factory=set)
    #: Orders that nothing was known of, at each fault.
    in_flight: list[int] = field(default_factory=list)
    #: Seconds: the longest exit, and the longest until orders went on.
    longest_exit: float | None = None
    longest_silence: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def in_doubt_blind(self) -> list[Name]:
        return [name for name in self.verdict.in_doubt if name[0].startswith("blind")]

    @property
    def broken(self) -> list[str]:
        """What must not be; empty if the part was passed."""
        found = [*self.problems, *self.verdict.broken]
        for name in self.verdict.in_doubt:
            if name not in self.may_be_in_doubt and name not in self.poison:
                found.append(f"{name}: in doubt, and no worker was killed while it was in SENDING")
        if self.longest_exit is not None and self.longest_exit > EXIT:
            found.append(f"a worker took {self.longest_exit:.1f} s to stop, not {EXIT:.0f}")
        if self.longest_silence is not None and self.longest_silence > GOES_ON:
            found.append(
                f"orders went on only after {self.longest_silence:.1f} s, not {GOES_ON:.0f}"
            )
        return found


def kills(site: Site, orders: int, *, at_random: int, each: int, seed: int, steps: Steps) -> Result:
    """Workers killed at random moments, and at every failpoint.

    Each of three workers is killed, and another one takes its place at once. It has done up to a
    fault's share of the orders by then; a fourth worker does the rest, and is left alone. Were all
    of them killed every few seconds, most orders would soon look as if they had killed them, and
    wait to be sent one by one.
    """
    chance = random.Random(seed)
    plan = [*[""] * at_random, *[name for name in sorted(OF_ORDERS) for _ in range(each)]]
    chance.shuffle(plan)
    result = Result(
        "kills", f"{at_random} at random, {each} at each of {len(OF_ORDERS)} failpoints"
    )
    site.start_worker()
    with Load(site.backend, site.ids, orders, len(plan)) as load:
        doomed: list[_Doomed] = []
        dead: list[_Doomed] = []
        while plan or doomed or dead:
            while plan and len(doomed) < WORKERS:
                doomed.append(_Doomed.start(site, plan.pop(), load.share, chance))
            for each_one in [one for one in doomed if one.is_dead(site)]:
                doomed.remove(each_one)
                dead.append(each_one)
                result.in_flight.append(site.backend.outstanding)
                load.fault_done()
                steps.done(site.backend.outstanding)
            for each_one in [one for one in dead if one.dead_for() >= WRITTEN]:
                dead.remove(each_one)
                result.may_be_in_doubt.update(site.left_in_sending(each_one.worker))
                result.problems += each_one.problems()
            time.sleep(0.05)
        for _ in range(WORKERS - 1):
            site.start_worker()
    return result


@dataclass(slots=True)
class _Doomed:
    """A worker that will be killed: at its failpoint, or some time after it is at work."""

    worker: Worker
    failpoint: str
    delay: float
    started: float
    at_work: float | None = None
    died: float | None = None
    never: bool = False

    @classmethod
    def start(cls, site: Site, failpoint: str, share: float, chance: random.Random) -> "_Doomed":
        after = chance.randint(1, max(1, round(share)))
        settings = {"failpoints": f"{failpoint}=kill:{after}"} if failpoint else {}
        delay = after * WORKERS / RATE
        return cls(site.start_worker(**settings), failpoint, delay, time.monotonic())

    def is_dead(self, site: Site) -> bool:
        now = time.monotonic()
        if not self.worker.has_ended:
            if self.at_work is None and not self.failpoint and site.is_at_work(self.worker):
                self.at_work = now
            self.never = now - self.started > FAULT + self.delay
            if self.never or (self.at_work is not None and now - self.at_work >= self.delay):
                self.worker.process.kill()
                self.worker.process.wait()
        if self.worker.has_ended:
            self.died = now
        return self.worker.has_ended

    def dead_for(self) -> float:
        """Seconds since its death."""
        return 0.0 if self.died is None else time.monotonic() - self.died

    def problems(self) -> list[str]:
        """What went wrong with the fault itself."""
        if self.never:
            return [f"a worker never came to {self.failpoint or 'its work'}: {self.worker.said()}"]
        if self.worker.process.returncode != -signal.SIGKILL:
            return [f"a worker ended by itself: {self.worker.said()}"]
        return []


def sigterms(site: Site, orders: int, *, times: int, seed: int, steps: Steps) -> Result:
    """Workers replaced one by one."""
    chance = random.Random(seed)
    result = Result("rolling SIGTERM", f"{times}", longest_exit=0.0)
    workers = [site.start_worker() for _ in range(WORKERS)]
    with Load(site.backend, site.ids, orders, times) as load:
        for _ in range(times):
            _until_at_work(site, workers, load, result)
            time.sleep(chance.uniform(0.0, 1.0))
            worker = workers.pop(0)
            result.in_flight.append(site.backend.outstanding)
            began = time.monotonic()
            worker.process.send_signal(signal.SIGTERM)
            try:
                if worker.process.wait(60) != 0:
                    result.problems.append(f"a worker failed to stop: {worker.said()}")
            except subprocess.TimeoutExpired:
                worker.process.kill()
            result.longest_exit = max(result.longest_exit or 0.0, time.monotonic() - began)
            workers.append(site.start_worker())
            load.fault_done()
            steps.done(site.backend.outstanding)
    return result


def broker(
    site: Site, orders: int, *, broker_kills: int, cuts: int, alarms: int, seed: int, steps: Steps
) -> Result:
    """The broker killed and started again, its connections cut, its memory alarm raised."""
    chance = random.Random(seed)

    def kill() -> None:
        site.rabbitmq.kill()
        site.rabbitmq.start()

    def cut() -> None:
        if chance.random() < 0.5:
            site.proxy.cut()
        else:
            site.rabbitmq.drop_connections()

    def alarm() -> None:
        with site.rabbitmq.memory_alarm():
            time.sleep(chance.uniform(1.0, 3.0))

    plan = [*[kill] * broker_kills, *[cut] * cuts, *[alarm] * alarms]
    chance.shuffle(plan)
    result = Result(
        "broker",
        f"{broker_kills} kills, {cuts} cuts, {alarms} memory alarms",
        longest_silence=0.0,
    )
    workers = [site.start_worker() for _ in range(WORKERS)]
    with Load(site.backend, site.ids, orders, len(plan)) as load:
        for number, fault in enumerate(plan):
            _until_at_work(site, workers, load, result)
            time.sleep(chance.uniform(0.0, 1.0))
            result.in_flight.append(site.backend.outstanding)
            fault()
            result.longest_silence = max(
                result.longest_silence or 0.0, _round_trip(site, f"after-{number}", result)
            )
            load.fault_done()
            steps.done(site.backend.outstanding)
    return result


def _round_trip(site: Site, order_id: str, result: Result) -> float:
    """Seconds from placing an order at a healthy POS until the backend has heard its end."""
    began, name = time.monotonic(), (site.ids[0], order_id)
    site.backend.place(place(order_id, site.ids[0]))
    if not site.backend.wait(lambda: site.backend.is_settled(name), FAULT):
        result.problems.append(f"{name}: placed when all was well again, no end in {FAULT:.0f} s")
    return time.monotonic() - began


def conclude(site: Site, result: Result, *, began: float, all_healthy: bool, steps: Steps) -> None:
    """Wait for what is left, stop the workers, and judge."""
    steps.say(f"waiting for what is left, {site.backend.outstanding} orders")
    left = site.backend.wait_until_settled(SILENCE, of_silence=True)
    if left:
        result.problems.append(
            f"{len(left)} orders came to no end, and no other one did for {SILENCE:.0f} s"
        )
    steps.say("judging")
    site.stop()
    result.verdict = site.verdict(all_healthy=all_healthy)
    result.orders = len(site.backend.placed)
    result.poison = site.poison()
    result.seconds = time.monotonic() - began


def _until_at_work(site: Site, workers: list[Worker], load: Load, result: Result) -> None:
    """Wait until all of them take orders, and those of the faults so far have been placed."""
    until = time.monotonic() + FAULT

    def wait(happened: Callable[[], bool]) -> None:
        while not happened():
            if time.monotonic() > until:
                result.problems.append(f"a worker or the broker was away for {FAULT:.0f} s")
                return
            time.sleep(0.1)

    wait(lambda: all(map(site.is_at_work, workers)))
    wait(load.is_due)
