"""Pods in separate processes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from redis import Redis as Client

from pos_gateway.fleet.permits import PREFIX, TIMEOUT
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from testkit.patience import PATIENCE
from testkit.servers.redis import Redis
from tests.fleet.hammer import LIMITS
from tests.fleet.pods import Pod


@contextmanager
def process(module: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def said(child: "subprocess.Popen[str]", word: str = "") -> str:
    """The next printed line with this word in it; logs are printed too."""
    assert child.stdout is not None
    for line in child.stdout:
        if word in line:
            return line.strip()
    raise AssertionError(f"it ended before it said {word!r}")


def test_racing_pods_stay_within_the_limit_and_a_killed_ones_permits_return(
    redis_url: str,
) -> None:
    client = Client.from_url(redis_url)
    with ExitStack() as stack:
        pods = [stack.enter_context(process("tests.fleet.hammer", redis_url, "120")) for _ in "123"]
        victim = stack.enter_context(process("tests.fleet.hammer", redis_url, "100000"))
        names = [said(pod) for pod in (*pods, victim)]
        assert len(set(names)) == 4
        # Until it has had some of each, and all of each were in use at once.
        while most(client) != LIMITS or not all(
            client.hget(f"use:{merchant}", names[-1]) for merchant in LIMITS
        ):
            assert victim.poll() is None
        victim.kill()
        victim.wait(PATIENCE)
        for merchant in LIMITS:  # its calls ended with it
            client.hdel(f"use:{merchant}", names[-1])
        lease = f"{PREFIX}pod:{names[-1]}"
        assert client.pttl(lease) > 0
        client.pexpire(lease, 1)  # it is long, so that only a killed pod loses its own
        for pod in pods:  # they can only end with the permits that it held
            pod.communicate(timeout=PATIENCE)
            assert pod.returncode == 0

    assert most(client) == LIMITS, "never more"


def most(client: Client) -> dict[str, int]:
    """The most calls that were in flight at once."""
    return {merchant: int(client.get(f"most:{merchant}") or 0) for merchant in LIMITS}


def test_on_green_threads_only_the_coordinator_waits_for_redis(
    redis: Redis, redis_url: str
) -> None:
    with process("tests.fleet.green", redis_url) as child:
        said(child, "paused?")
        redis.pause()
        child.communicate("go on\n", timeout=PATIENCE)
        assert child.returncode == 0
    redis.resume()


def test_the_coordinator_runs_on_a_native_thread_and_stops(redis_url: str) -> None:
    import threading

    started = threading.Event()
    pod = Pod(redis_url, clock=SYSTEM_CLOCK, limits={"a": 3})
    pod.coordinator._on_change = started.set
    pod.coordinator.stop()  # before the start: a no-op
    pod.coordinator.start()
    pod.submit("a", 3)
    assert started.wait(PATIENCE)
    assert pod.allotted("a") == 3
    pod.coordinator.stop()

    assert not any(thread.name == "fleet" for thread in threading.enumerate())
    assert pod.allotted("a") == 0


def test_stopping_is_bounded_when_redis_is_silent(redis: Redis, redis_url: str) -> None:
    import threading

    pod = Pod(redis_url, clock=SYSTEM_CLOCK, timeout=TIMEOUT)
    started = threading.Event()
    pod.coordinator._on_change = started.set
    pod.coordinator.start()
    pod.submit("a", 3)
    assert started.wait(PATIENCE)
    redis.pause()
    pod.coordinator.stop()
    redis.resume()

    assert not any(thread.name == "fleet" for thread in threading.enumerate())


def test_an_exception_in_admission_leaves_the_pod_alone_and_not_stuck(redis_url: str) -> None:
    import threading

    pod = Pod(redis_url, clock=SYSTEM_CLOCK, limits={"a": 3})
    started = threading.Event()
    demand = pod.admission.demand

    def broken(merchant_id: str) -> object:
        pod.admission.demand = demand  # type: ignore[method-assign]
        raise KeyError(merchant_id)

    pod.admission.demand = broken  # type: ignore[method-assign, assignment]
    pod.coordinator._on_change = started.set
    pod.coordinator.start()
    pod.submit("a", 3)
    assert started.wait(PATIENCE)
    pod.coordinator.stop()
