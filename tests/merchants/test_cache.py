"""The refresh-ahead cache: which readers wait, which load, and what is served meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import thread_time
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pos_gateway.cache.refresh_ahead import (
    JITTER,
    LOOK,
    REFRESH,
    CacheEntry,
    CacheState,
    Loaded,
    RefreshAheadCache,
)
from pos_gateway.domain.errors import NotLoaded
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from testkit.patience import PATIENCE

LIFETIME, ABSENT, STALE, PAUSE = 100.0, 5.0, 1000.0, 1.0
#: Seconds for calls that should take none.
SOON = PATIENCE


class Away(Exception):
    """The loader's error."""


class Source:
    """The loader's source, and the loaders' clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rows: dict[str, tuple[str, float]] = {}
        self.loads: list[list[str]] = []
        self.is_away = False
        #: Keys whose value raises an unexpected error.
        self.unreadable: set[str] = set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> Any:
        raise AssertionError("a cache needs no time of day")

    def load(self, keys: Sequence[str]) -> dict[str, Loaded[str]]:
        self.loads.append(list(keys))
        found = {key: Loaded(*self.rows[key]) for key in keys if key in self.rows}
        self.asked.release()
        assert self.may_answer.wait(SOON)
        if self.is_away:
            raise Away("away")
        if self.unreadable & set(keys):
            raise OverflowError("int too large to convert to float")
        return found


class Scene:
    """A cache over a source; records its loads."""

    def __init__(
        self,
        *,
        name: str = "test",
        threads: bool = False,
        clock: Clock | None = None,
        **terms: Any,
    ) -> None:
        self.source = Source()
        self.cache: RefreshAheadCache[str] = RefreshAheadCache(
            name,
            self.source.load,
            clock=clock or self.source,
            may_thread=lambda: threads,
            **{
                "lifetime": LIFETIME,
                "absent": ABSENT,
                "stale": STALE,
                "max_weight": 100,
                "failures": (Away,),
                "pause": lambda _: PAUSE,
                **terms,
            },
        )
        self.came = threading.Semaphore(0)
        self.cache.listen(lambda _key, _value: self.came.release())

    def wait_for_load(self, number: int = 1) -> None:
        for _ in range(number):
            assert self.came.acquire(timeout=SOON)

    def wait_for_ask(self) -> None:
        assert self.source.asked.acquire(timeout=SOON)


@pytest.fixture
def scene() -> Scene:
    """Without threads: the reader loads."""
    return Scene()


@contextmanager
def threaded(**terms: Any) -> Iterator[Scene]:
    scene = Scene(threads=True, **terms)
    try:
        yield scene
    finally:
        scene.source.may_answer.set()
        scene.cache.stop()


def test_a_value_is_loaded_once_per_lifetime(scene: Scene) -> None:
    scene.source.rows["k"] = "first", 1.0
    assert scene.cache.get("k") == "first"
    scene.source.rows["k"] = "second", 2.0
    scene.source.seconds = LIFETIME - 0.1
    assert scene.cache.get("k") == "first"
    scene.source.seconds = LIFETIME
    assert scene.cache.get("k") == "second"
    assert scene.source.loads == [["k"], ["k"]]


def test_thousands_of_readers_of_a_missing_value_share_one_load() -> None:
    with threaded() as scene, ThreadPoolExecutor(300) as pool:
        scene.source.rows["k"] = "value", 1.0
        scene.source.may_answer.clear()
        readers = [pool.submit(scene.cache.get, "k") for _ in range(300)]
        scene.wait_for_ask()
        scene.source.may_answer.set()
        assert {reader.result(SOON) for reader in readers} == {"value"}
        assert scene.source.loads == [["k"]]


def test_a_refresh_does_not_block_readers() -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "first", 1.0
        assert scene.cache.get("k") == "first"
        scene.wait_for_load()
        scene.wait_for_ask()
        scene.source.rows["k"] = "second", 2.0
        scene.source.may_answer.clear()
        scene.source.seconds = REFRESH * (1 - JITTER) * LIFETIME - 0.1
        assert scene.cache.get("k") == "first"
        assert len(scene.source.loads) == 1
        scene.source.seconds = REFRESH * LIFETIME
        for _ in range(1000):  # no reader waits, and only one loads
            assert scene.cache.get("k") == "first"
        scene.wait_for_ask()
        assert scene.cache.get("k") == "first"
        scene.source.may_answer.set()
        scene.wait_for_load()
        assert scene.cache.get("k") == "second"
        assert len(scene.source.loads) == 2


def test_values_loaded_together_are_refreshed_apart() -> None:
    with threaded() as scene:
        scene.source.rows = {f"k{n}": ("value", 1.0) for n in range(100)}
        for key in scene.source.rows:
            scene.cache.get(key)
        due = {entry.due for entry in scene.cache._entries.values()}
        assert len(due) == 100
        assert all(REFRESH * (1 - JITTER) * LIFETIME <= each <= REFRESH * LIFETIME for each in due)


def test_a_shared_value_is_old_as_soon_as_any_process_would_refresh_it() -> None:
    """Fresh until the last one would refresh it, all would refresh it at once."""
    given: dict[str, CacheEntry[str]] = {}

    class Shared:
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            return CacheState(ours=dict.fromkeys(least, 1))

        def store(self, gifts: Mapping[str, CacheEntry[str]]) -> None:
            given.update(gifts)

        def give_up(self, fences: Mapping[str, int], pause: float) -> None:
            raise AssertionError("it was loaded")

    scene = Scene(shared=Shared())
    for key in "abc":
        scene.source.rows[key] = "value", 1.0
        scene.cache.get(key)
    soonest = REFRESH * (1 - JITTER) * LIFETIME
    assert [(each.refresh_at_age, each.lifetime) for each in given.values()] == [
        (soonest, LIFETIME)
    ] * 3


def test_a_value_from_another_process_is_valid_for_the_rest_of_its_lifetime() -> None:
    class Shared:
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            if scene.source.seconds:
                return CacheState(ours=dict.fromkeys(least, 1))
            return CacheState(found={"k": Loaded("theirs", 1.0, age=0.6 * LIFETIME)})

        def store(self, gifts: Mapping[str, CacheEntry[str]]) -> None:
            pass

        def give_up(self, fences: Mapping[str, int], pause: float) -> None:
            raise AssertionError("it was loaded")

    scene = Scene(shared=Shared())
    scene.source.rows["k"] = "ours", 1.0
    assert scene.cache.get("k") == "theirs"
    scene.source.seconds = 0.4 * LIFETIME - 0.1
    assert scene.cache.get("k") == "theirs"
    scene.source.seconds = 0.4 * LIFETIME
    assert scene.cache.get("k") == "ours"


def test_many_wanted_keys_are_one_load() -> None:
    with threaded() as scene:
        scene.source.rows = {f"k{n}": ("value", 1.0) for n in range(50)}
        scene.source.may_answer.clear()
        scene.cache.want("k0")
        scene.wait_for_ask()
        for key in scene.source.rows:
            scene.cache.want(key)
        scene.source.may_answer.set()
        scene.wait_for_load(50)
        assert [len(keys) for keys in scene.source.loads] == [1, 49]


def test_keys_that_are_loaded_one_by_one_do_not_wait_for_each_other() -> None:
    with threaded(apart=True) as scene:
        scene.source.rows = {"a": ("A", 1.0), "b": ("B", 1.0)}
        scene.source.may_answer.clear()
        scene.cache.want("a")
        scene.cache.want("b")
        scene.wait_for_ask()
        scene.wait_for_ask()  # neither has been answered
        scene.source.may_answer.set()
        scene.wait_for_load(2)
        assert (scene.cache.get("a"), scene.cache.get("b")) == ("A", "B")


def test_a_reader_waits_no_longer_than_its_timeout() -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "value", 1.0
        scene.source.may_answer.clear()
        with pytest.raises(NotLoaded, match="'k'"):
            scene.cache.get("k", timeout=0.01)
        scene.source.may_answer.set()
        assert scene.cache.get("k", timeout=SOON) == "value"
        assert scene.source.loads == [["k"]]


def test_a_missing_value_is_cached_for_a_while(scene: Scene) -> None:
    assert scene.cache.get("k") is None
    scene.source.rows["k"] = "value", 1.0
    scene.source.seconds = ABSENT - 0.1
    assert scene.cache.get("k") is None
    assert scene.cache.is_fresh("k")
    scene.source.seconds = ABSENT
    assert scene.cache.get("k") == "value"


def test_a_stale_value_is_served_while_the_loader_fails_up_to_its_bound(scene: Scene) -> None:
    scene.source.rows["k"] = "value", 1.0
    scene.cache.get("k")
    scene.source.is_away = True
    scene.source.seconds = LIFETIME
    assert scene.cache.get("k") == "value"
    scene.source.seconds = LIFETIME + STALE
    for _ in range(10):
        with pytest.raises(Away):
            scene.cache.get("k")
    scene.source.is_away = False
    scene.source.seconds += PAUSE
    assert scene.cache.get("k") == "value"


def test_a_failing_loader_is_not_called_on_every_read(scene: Scene) -> None:
    scene.source.rows["k"] = "value", 1.0
    scene.source.is_away = True
    for _ in range(10):
        with pytest.raises(Away):
            scene.cache.get("k")
    assert len(scene.source.loads) == 1
    scene.source.seconds += PAUSE
    with pytest.raises(Away):
        scene.cache.get("k")
    assert len(scene.source.loads) == 2


@pytest.fixture
def died(monkeypatch: pytest.MonkeyPatch) -> list[threading.ExceptHookArgs]:
    """Threads that have died of an exception: a worker ends with any of them."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    return died


@pytest.mark.parametrize("apart", [True, False])
def test_an_unexpected_error_fails_its_key_alone(
    apart: bool, died: list[threading.ExceptHookArgs]
) -> None:
    with threaded(apart=apart) as scene:
        scene.source.rows = {f"k{n}": ("value", 1.0) for n in range(5)}
        scene.source.unreadable = {"k3"}
        scene.source.may_answer.clear()
        scene.cache.want("k0")
        scene.wait_for_ask()
        for key in scene.source.rows:
            scene.cache.want(key)
        scene.source.may_answer.set()
        scene.wait_for_load(4)
        assert {scene.cache.get(f"k{n}", SOON) for n in (0, 1, 2, 4)} == {"value"}
        with pytest.raises(NotLoaded, match="'k3' cannot be read: OverflowError"):
            scene.cache.get("k3", SOON)
        asked = len(scene.source.loads)
        with pytest.raises(NotLoaded):
            scene.cache.get("k3", SOON)
        assert len(scene.source.loads) == asked  # not on every read
        wait_until(lambda: "k3" not in scene.cache._loading)
        scene.source.unreadable, scene.source.seconds = set(), PAUSE
        assert scene.cache.get("k3", SOON) == "value"
    assert not died


def test_a_failed_load_releases_its_claim_for_other_processes(
    died: list[threading.ExceptHookArgs],
) -> None:
    given_up: dict[str, int] = {}
    given: dict[str, CacheEntry[str]] = {}

    class Shared:
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            return CacheState(ours=dict.fromkeys(least, 7))

        def store(self, gifts: Mapping[str, CacheEntry[str]]) -> None:
            given.update(gifts)

        def give_up(self, fences: Mapping[str, int], pause: float) -> None:
            given_up.update(fences)

    scene = Scene(shared=Shared())
    scene.source.rows["k"] = "value", 1.0
    scene.source.unreadable = {"l"}
    scene.cache._fly(["k", "l"])
    assert (given_up, given.keys()) == ({"l": 7}, {"k"})
    assert scene.cache.get("k") == "value"
    assert not died


@pytest.mark.parametrize("method", ["claim", "store", "give_up"])
def test_a_value_is_loaded_here_if_the_shared_cache_fails(
    method: str, died: list[threading.ExceptHookArgs]
) -> None:
    class Shared:
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            self._fail("claim")
            return CacheState(ours=dict.fromkeys(least, 7))

        def store(self, gifts: Mapping[str, CacheEntry[str]]) -> None:
            self._fail("store")

        def give_up(self, fences: Mapping[str, int], pause: float) -> None:
            self._fail("give_up")

        def _fail(self, name: str) -> None:
            if name == method:
                raise OverflowError("int too large to convert to float")

    with threaded(shared=Shared(), pause=lambda _: 0.0) as scene:
        scene.source.rows["k"] = "value", 1.0
        scene.source.is_away = method == "give_up"
        if scene.source.is_away:
            with pytest.raises(Away):
                scene.cache.get("k", SOON)
            scene.source.is_away = False
        assert scene.cache.get("k", SOON) == "value"
    assert not died


def test_a_failing_listener_blocks_no_reader(
    died: list[threading.ExceptHookArgs],
) -> None:
    def cannot(_key: str, _value: str | None) -> None:
        raise TypeError("a limit that is no number")

    with threaded() as scene:
        scene.cache.listen(cannot)
        scene.source.rows["k"] = "value", 1.0
        assert scene.cache.get("k", SOON) == "value"
    assert not died


def test_remembered_failures_are_bounded() -> None:
    scene = Scene(max_weight=2)
    scene.source.is_away = True
    for key in ("k", "l", "m", "m", "l", "k"):
        with pytest.raises(Away):
            scene.cache.get(key)
    assert scene.source.loads == [["k"], ["l"], ["m"], ["k"]]


def test_a_stale_value_does_not_call_the_loader_on_every_read() -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "value", 1.0
        scene.cache.get("k")
        scene.wait_for_load()
        scene.source.is_away = True
        scene.source.seconds = REFRESH * LIFETIME
        for _ in range(2):
            scene.cache.get("k")
            scene.wait_for_load()  # the load confirms the value
            wait_until(lambda: not scene.cache._loading)
            for _ in range(100):
                assert scene.cache.get("k") == "value"
            assert not scene.cache._loading
            scene.source.seconds += PAUSE
        assert len(scene.source.loads) == 3


def wait_until(condition: Callable[[], bool]) -> None:
    """A load is announced before it is struck off the list of those that run."""
    until = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_value_is_never_served_beyond_its_bound(scene: Scene) -> None:
    scene.source.rows["k"] = "value", 1.0
    scene.cache.get("k")
    scene.source.is_away = True
    scene.source.seconds = LIFETIME + STALE - PAUSE / 2
    assert scene.cache.get("k") == "value"
    scene.source.seconds = LIFETIME + STALE
    with pytest.raises(Away):
        scene.cache.get("k")


def test_a_late_reader_starts_no_second_load() -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "value", 1.0
        scene.cache.get("k")
        load = scene.cache._request_load("k")  # as a reader that saw no value a moment ago
        assert load is not None
        assert load.done.is_set()
        assert not scene.cache._wanted


def test_a_failed_load_is_retried_without_a_reader() -> None:
    with threaded(insist=True, pause=lambda _: 0.0) as scene:
        scene.source.rows["k"] = "value", 1.0
        scene.source.is_away = True
        scene.cache.want("k")
        scene.wait_for_ask()
        scene.source.is_away = False
        scene.wait_for_load()
        assert scene.cache.get("k") == "value"


def test_an_edit_is_read_at_once(scene: Scene) -> None:
    scene.source.rows["k"] = "first", 1.0
    scene.cache.get("k")
    scene.source.rows["k"] = "second", 2.0
    scene.cache.outdated("k", 2.0)
    assert not scene.cache.is_fresh("k")
    assert scene.cache.get("k") == "second"
    scene.cache.outdated("k", 2.0)  # the edit is known
    assert scene.cache.get("k") == "second"
    assert len(scene.source.loads) == 2


def test_an_edit_that_cannot_be_loaded_is_not_ignored(scene: Scene) -> None:
    scene.source.rows["k"] = "first", 1.0
    scene.cache.get("k")
    scene.cache.outdated("k", 2.0)
    scene.source.is_away = True
    with pytest.raises(Away):
        scene.cache.get("k")


@pytest.mark.parametrize(
    "versions", [(2.0,), (2.0, 1.0)], ids=["edited", "removed and added again"]
)
def test_a_value_loaded_before_an_edit_is_not_served_after_it(versions: Sequence[float]) -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "first", 1.5
        scene.source.may_answer.clear()
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(scene.cache.get, "k")
            scene.wait_for_ask()  # it has read the row, and has not returned
            scene.source.rows["k"] = "second", 2.0
            scene.source.seconds = 0.1
            for version in versions:  # a table's edits come in no order
                scene.cache.outdated("k", version)
            scene.source.may_answer.set()
            assert reader.result(SOON) == "second"


def test_a_value_deleted_by_an_edit_is_gone(scene: Scene) -> None:
    scene.source.rows["k"] = "first", 1.0
    scene.cache.get("k")
    scene.cache.outdated("k", 2.0)
    del scene.source.rows["k"]
    scene.source.seconds += 0.1
    assert scene.cache.get("k") is None


def test_a_value_is_read_while_it_is_renewed() -> None:
    with threaded() as scene, ThreadPoolExecutor(1) as pool:
        scene.source.rows["k"] = "first", 1.0
        scene.cache.get("k")
        scene.wait_for_ask()
        scene.wait_for_load()
        scene.source.rows["k"] = "second", 2.0
        scene.source.may_answer.clear()
        renewal = pool.submit(scene.cache.renew, "k", 2.0, SOON)
        scene.wait_for_ask()
        assert [scene.cache.get("k") for _ in range(100)] == ["first"] * 100
        assert not renewal.done()
        scene.source.may_answer.set()
        renewal.result(SOON)
        assert scene.cache.get("k") == "second"
        assert scene.source.loads == [["k"]] * 2


def test_a_version_is_renewed_once_though_it_cannot_be_loaded(scene: Scene) -> None:
    scene.source.rows["k"] = "first", 1.0
    scene.cache.get("k")
    scene.source.is_away = True
    for _ in range(100):
        scene.cache.renew("k", 2.0, SOON)
        assert scene.cache.get("k") == "first"
    assert len(scene.source.loads) == 2
    scene.source.seconds += LIFETIME
    scene.source.is_away, scene.source.rows["k"] = False, ("second", 2.0)
    assert scene.cache.get("k") == "second"
    scene.cache.renew("k", 2.0, SOON)
    assert len(scene.source.loads) == 3


def test_what_another_process_renews_is_waited_for() -> None:
    looks: list[float] = []

    class Shared:
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            looks.append(least["k"])
            if len(looks) in (2, 3):
                return CacheState(elsewhere=frozenset(least))
            version = float(len(looks))
            return CacheState(found={"k": Loaded(f"value-{len(looks)}", version)})

        def store(self, gifts: Mapping[str, CacheEntry[str]]) -> None:
            raise AssertionError("it is loaded elsewhere")

        def give_up(self, fences: Mapping[str, int], pause: float) -> None:
            raise AssertionError("it is loaded elsewhere")

    with threaded(shared=Shared(), clock=SYSTEM_CLOCK) as scene:
        assert scene.cache.get("k") == "value-1"
        scene.cache.renew("k", 2.0, SOON)
        assert scene.cache.get("k") == "value-4"
        assert looks == [0.0, 2.0, 2.0, 2.0]


class Elsewhere:
    """A shared cache whose values another process loads, until it has them."""

    def __init__(self) -> None:
        self.claims: list[set[str]] = []
        self.found: set[str] = set()
        self.came = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def claim(self, least: Mapping[str, float]) -> CacheState[str]:
        self.claims.append(set(least))
        self.came.release()
        assert self.may_answer.wait(SOON)
        found = self.found & set(least)
        return CacheState(
            found=dict.fromkeys(found, Loaded("theirs", 1.0)), elsewhere=frozenset(least) - found
        )

    def store(self, entries: Mapping[str, CacheEntry[str]]) -> None:
        raise AssertionError("it is loaded elsewhere")

    give_up: Any = store

    def wait_for_claim(self) -> set[str]:
        assert self.came.acquire(timeout=SOON)
        return self.claims[-1]


@pytest.mark.parametrize("apart", [True, False])
def test_values_that_another_process_loads_are_looked_for_in_one_exchange(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was looked for ten times a second on a thread of its own: 300 tokens used up Redis's connections."""
    shared, keys, started = Elsewhere(), {f"k{n}" for n in range(300)}, list[str]()
    with (
        threaded(apart=apart, shared=shared, name="looking", max_weight=len(keys)) as scene,
        ThreadPoolExecutor(len(keys)) as pool,
    ):
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if not thread.name.startswith("ThreadPool"):
                started.append(thread.name)
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)
        readers = [pool.submit(scene.cache.get, key, SOON) for key in keys]
        wait_until(lambda: set().union(*shared.claims) == keys)
        for _ in range(3):
            before = len(shared.claims)
            wait_until(lambda: len(scene.cache._again) == len(keys))
            scene.source.seconds += LOOK
            wait_until(lambda: len(shared.claims) > before)  # noqa: B023
            assert shared.claims[before:] == [keys]
        wait_until(lambda: len(scene.cache._again) == len(keys))
        shared.found = keys
        scene.source.seconds += LOOK
        assert {reader.result(SOON) for reader in readers} == {"theirs"}
    assert started == ["looking"]
    assert scene.source.loads == []


@pytest.mark.parametrize("insist", [True, False])
def test_a_value_that_another_process_loads_is_looked_for_while_a_reader_waits(
    insist: bool,
) -> None:
    """Or while orders wait for it without a reader, as for a merchant's record."""
    shared = Elsewhere()
    shared.may_answer.clear()
    with threaded(shared=shared, insist=insist) as scene:
        with pytest.raises(NotLoaded):
            scene.cache.get("k", 0.0)  # its reader is gone before the other process is heard of
        assert shared.wait_for_claim() == {"k"}
        shared.may_answer.set()
        wait_until(
            lambda: ("k" in scene.cache._again, "k" in scene.cache._loading) == (insist,) * 2
        )
        shared.found = {"another"}
        scene.source.seconds += 100 * LOOK
        assert scene.cache.get("another", SOON) == "theirs"
        asked = [key for claim in shared.claims for key in claim]
        assert (asked.count("k") > 1) == insist
        scene.source.seconds += 100 * LOOK
        shared.found = {"k"}
        assert scene.cache.get("k", SOON) == "theirs"  # the next reader begins another load


def test_the_oldest_value_is_evicted(scene: Scene) -> None:
    scene.source.rows = {f"k{n}": ("value", 1.0) for n in range(101)}
    for key in scene.source.rows:
        scene.cache.get(key)
    assert len(scene.cache) == 100
    assert scene.cache.peek("k0") is None
    assert scene.cache.get("k0") == "value"


def test_heavy_values_evict_as_many_as_they_count_for() -> None:
    scene = Scene(weight_of=lambda value: len(value or "1"))
    scene.source.rows = {f"k{n}": ("v" * 9, 1.0) for n in range(11)} | {"k99": ("v" * 30, 1.0)}
    for key in scene.source.rows:
        scene.cache.get(key)
    present = [key for key in scene.source.rows if scene.cache.peek(key) is not None]
    assert present == [*(f"k{n}" for n in range(4, 11)), "k99"]
    for _ in range(20):  # loaded again, it is not counted twice
        scene.source.seconds += LIFETIME
        scene.cache.get("k99")
    assert len(scene.cache) == 8


def test_edits_are_remembered_for_as_long_as_older_values_may_arrive(scene: Scene) -> None:
    for n in range(1000):
        scene.source.seconds = float(n)
        scene.cache.outdated(f"k{n}", float(n))
    assert len(scene.cache._edits) == LIFETIME + 1


def test_an_edit_takes_as_long_however_many_were_edited_twice(scene: Scene) -> None:
    """All merchants are imported, and imported again."""
    taken = []
    for version in (1.0, 2.0, 3.0):
        began = thread_time()
        for n in range(50_000):
            scene.cache.outdated(f"k{n}", version)
        taken.append(thread_time() - began)
    assert taken[2] < 4 * taken[0]


def test_a_loader_may_set_its_values_lifetime(scene: Scene) -> None:
    cache = Scene(failures=(Away,)).cache
    source = Source()
    cache._load, cache._now = lambda _: {"k": Loaded("v", 1.0, 10.0, 9.0)}, source.monotonic
    cache.get("k")
    [entry] = cache._entries.values()
    assert (entry.due, entry.until) == (9.0, 10.0)


def test_stopping_ends_the_readers_waits() -> None:
    with threaded() as scene, ThreadPoolExecutor(1) as pool:
        scene.source.may_answer.clear()
        reader = pool.submit(scene.cache.get, "k")
        scene.wait_for_ask()
        scene.cache.stop()
        with pytest.raises(NotLoaded):
            reader.result(SOON)


def test_reading_a_cached_value_takes_no_lock_and_wakes_no_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.source.rows["k"] = "value", 1.0
    scene.cache.get("k")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a read did more than to read")

    unused: Callable[..., Any] = never
    for name in ("_request_load", "_wait", "_lock", "_something"):
        monkeypatch.setattr(scene.cache, name, unused)
    assert scene.cache.get("k") == "value"


def test_an_edit_during_a_load_is_loaded_too() -> None:
    with threaded() as scene:
        scene.source.rows["k"] = "first", 1.0
        told: list[str | None] = []

        def on_load(_: str, value: str | None) -> None:
            told.append(value)
            if value == "first":  # only the loader runs now
                scene.source.rows["k"] = "second", 2.0
                scene.source.seconds += 1.0
                scene.cache.outdated("k", 2.0)
            scene.came.release()

        scene.cache.listen(on_load)
        scene.cache.want("k")
        scene.wait_for_load(2)
        assert told == ["first", "second"]


def test_the_caches_metrics_are_in_a_scrape() -> None:
    scene = Scene(name="counted")
    scene.source.rows["k"] = "value", 1.0
    for _ in range(4):
        scene.cache.get("k")
    scene.source.is_away = True
    scene.source.seconds = LIFETIME
    scene.cache.get("k")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.labels.pop("cache", None) == "counted"
        if not sample.name.endswith("_created")  # none once the port has started
    }
    assert found == {
        ("pos_gateway_cache_reads_total", "hit"): 3,
        ("pos_gateway_cache_reads_total", "miss"): 2,
        ("pos_gateway_cache_loads_total", "loaded"): 1,
        ("pos_gateway_cache_loads_total", "taken_over"): 0,
        ("pos_gateway_cache_loads_total", "failed"): 1,
        ("pos_gateway_cache_stale_total",): 1,
    }
