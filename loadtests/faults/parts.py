"""The parts of a soak: what is done to a site under load, and how that is judged."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.faults.invariants import Verdict
from loadtests.faults.load import Load
from loadtests.faults.site import REQUEST_TIMEOUT, Site, Worker
from pos_gateway.failpoints import NAMES

#: Workers at once, so that a kill does not stop everything.
WORKERS = 3
#: Seconds for one fault, and for what is left when all are done, before that counts as never.
FAULT, REST = 120.0, 240.0
#: Seconds within which a worker that is told to stop has ended, and in which orders go on again.
EXIT, GOES_ON = REQUEST_TIMEOUT + 5.0, 10.0

#: Is called when a fault is done.
Tick = Callable[[], None]


@dataclass(slots=True)
class Result:
    """What came of a part."""

    name: str
    faults: str
    orders: int = 0
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    #: How many orders at blind POSes may be in doubt.
    may_be_in_doubt: int = 0
    #: Set aside after so many of their workers were killed.
    poison: int = 0
    #: Seconds: the longest exit, and the longest until orders went on.
    longest_exit: float | None = None
    longest_silence: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def in_doubt_blind(self) -> int:
        return sum(merchant.startswith("blind") for merchant, _ in self.verdict.in_doubt)

    @property
    def broken(self) -> list[str]:
        """What must not be; empty if the part was passed."""
        found = [*self.problems, *self.verdict.broken]
        if self.in_doubt_blind > self.may_be_in_doubt:
            found.append(
                f"{self.in_doubt_blind} in doubt at blind POSes, not {self.may_be_in_doubt}"
            )
        others = len(self.verdict.in_doubt) - self.in_doubt_blind
        if others > self.poison:
            found.append(f"{others} in doubt at POSes that could be asked")
        if self.longest_exit is not None and self.longest_exit > EXIT:
            found.append(f"a worker took {self.longest_exit:.1f} s to stop")
        if self.longest_silence is not None and self.longest_silence > GOES_ON:
            found.append(f"orders went on only after {self.longest_silence:.1f} s")
        return found


def kills(site: Site, orders: int, *, at_random: int, each: int, seed: int, tick: Tick) -> Result:
    """Workers killed at random moments, and at every failpoint."""
    chance = random.Random(seed)
    plan = [*[""] * at_random, *[name for name in sorted(NAMES) for _ in range(each)]]
    chance.shuffle(plan)
    result = Result("kills", f"{at_random} at random, {each} at each of {len(NAMES)} failpoints")
    with Load(site.backend, site.ids, orders, len(plan)) as load:
        doomed: list[_Doomed] = []
        while plan or doomed:
            while plan and len(doomed) < WORKERS:
                doomed.append(_Doomed.start(site, plan.pop(), chance))
            for each_one in [one for one in doomed if one.is_dead(site)]:
                doomed.remove(each_one)
                load.fault_done()
                tick()
                result.may_be_in_doubt += site.left_in_sending(each_one.worker)
                if each_one.worker.process.returncode != -signal.SIGKILL:
                    result.problems.append(f"a worker ended by itself: {each_one.worker.said()}")
            time.sleep(0.05)
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

    @classmethod
    def start(cls, site: Site, failpoint: str, chance: random.Random) -> "_Doomed":
        settings = {"failpoints": f"{failpoint}=kill:{chance.randint(1, 40)}"} if failpoint else {}
        delay = chance.uniform(0.0, 3.0)
        return cls(site.start_worker(**settings), failpoint, delay, time.monotonic())

    def is_dead(self, site: Site) -> bool:
        if self.worker.has_ended:
            return True
        now = time.monotonic()
        if self.at_work is None and not self.failpoint and site.is_at_work(self.worker):
            self.at_work = now
        time_has_come = self.at_work is not None and now - self.at_work >= self.delay
        if time_has_come or now - self.started > FAULT:
            self.worker.process.kill()
            self.worker.process.wait()
        return self.worker.has_ended


def sigterms(site: Site, orders: int, *, times: int, seed: int, tick: Tick) -> Result:
    """Workers replaced one by one."""
    chance = random.Random(seed)
    result = Result("rolling SIGTERM", f"{times}", longest_exit=0.0)
    workers = [site.start_worker() for _ in range(WORKERS)]
    with Load(site.backend, site.ids, orders, times) as load:
        for _ in range(times):
            _until(lambda: all(map(site.is_at_work, workers)))
            time.sleep(chance.uniform(0.0, 1.0))
            worker = workers.pop(0)
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
            tick()
    return result


def broker(
    site: Site, orders: int, *, broker_kills: int, cuts: int, alarms: int, seed: int, tick: Tick
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
        for fault in plan:
            _until(lambda: all(map(site.is_at_work, workers)))
            time.sleep(chance.uniform(0.0, 1.0))
            fault()
            back = time.monotonic()
            made = site.merchants.summary()["creates"]
            site.merchants.wait_until(creates=made + 1, timeout=FAULT)
            result.longest_silence = max(result.longest_silence or 0.0, time.monotonic() - back)
            load.fault_done()
            tick()
    return result


def conclude(site: Site, result: Result, *, began: float, all_healthy: bool) -> None:
    """Wait for what is left, stop the workers, and judge."""
    left = site.backend.wait_until_settled(REST)
    if left:
        result.problems.append(f"{len(left)} orders came to no end within {REST:.0f} s")
    site.stop()
    result.verdict = site.verdict(all_healthy=all_healthy)
    result.orders = len(site.backend.placed)
    result.poison = site.poison()
    result.seconds = time.monotonic() - began


def _until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + FAULT
    while not happened() and time.monotonic() < until:
        time.sleep(0.1)
