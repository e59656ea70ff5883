"""A refresh-ahead cache: values are read from memory, and refreshed before they expire.

After half of its lifetime a value is refreshed in the background, while readers get the present
value. Readers wait only for a missing value, and share a single load (single flight). While the
loader fails, readers get the present value for longer (stale-while-error). With a cache shared by
processes (``shared.py``), one process loads, and the rest take over the value.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import floor, inf
from typing import Any, Generic, Protocol, TypeVar

import structlog

from pos_gateway.domain.errors import NotLoaded, SharedUnavailable, copy_of
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import green
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

Value = TypeVar("Value")

#: Part of a lifetime after which a value is refreshed. Up to ``JITTER`` of it is taken off at
#: random, to refresh apart values loaded together.
REFRESH, JITTER = 0.5, 0.1
#: Seconds for which refreshes are collected into one load.
COLLECT = 0.2
#: Seconds between looks for other processes' values: with readers waiting, and without.
LOOK, LOOK_BESIDE = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Value]):
    """A loader's result. Times are seconds."""

    #: None: the key has no value.
    value: Value | None
    #: Grows with each edit.
    version: float = 0.0
    #: Time until the value expires, and until its refresh; None: the cache's own.
    lifetime: float | None = None
    refresh_after: float | None = None
    #: Time since the load.
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheState(Generic[Value]):
    """A shared cache's answer for keys to load; a key without an answer is not shared."""

    #: Values of recent loads elsewhere.
    found: Mapping[str, Loaded[Value]] = field(default_factory=dict)
    #: Keys for this process to load, each with a fencing token.
    ours: Mapping[str, int] = field(default_factory=dict)
    #: Keys being loaded elsewhere.
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CacheEntry(Generic[Value]):
    """A loaded value to store for all processes. Times are seconds."""

    fence: int
    value: Value | None
    version: float
    #: Time since the load began.
    age: float
    #: Ages of the next refresh and of expiry.
    refresh_at_age: float
    lifetime: float


class Shared(Protocol[Value]):
    """A cache shared by processes. Every method may raise SharedUnavailable."""

    def claim(self, least: Mapping[str, float]) -> CacheState[Value]:
        """Values of at least these versions, or the right to load the keys, for a time."""
        ...

    def store(self, entries: Mapping[str, CacheEntry[Value]]) -> None:
        """Store loaded values, except keys claimed since by another process."""
        ...

    def give_up(self, fences: Mapping[str, int], pause: float) -> None:
        """Report a failed load: no process retries the keys for ``pause`` seconds."""
        ...


#: No failure.
_NEVER: tuple[float, Exception | None] = (-inf, None)


@dataclass(slots=True, eq=False)
class _Entry(Generic[Value]):
    value: Value | None
    version: float
    #: Time of the refresh, and of expiry.
    due: float
    until: float
    #: End of stale-while-error.
    last: float


@dataclass(slots=True, eq=False)
class _Load:
    """A load in the queue or in progress."""

    done: threading.Event = field(default_factory=threading.Event)
    #: Waiting readers.
    readers: int = 0


class RefreshAheadCache(Generic[Value]):
    """Safe from threads and green threads. The constructor does no I/O and starts nothing.

    Args:
        name: for logs and metrics.
        load: loads values by key; a key missing in the result has no value. Called by a single
            thread at a time, unless ``apart``.
        lifetime: seconds until a value expires; ``absent``: until an absence does.
        stale: seconds to serve an expired value while the loader fails.
        max_weight: limit of all weights; above, the values loaded longest ago are evicted.
        weight_of: a value's weight; default: 1.
        stamped: adds the version to a value, for readers who need to know the version.
        together: maximum keys in a load.
        apart: load each key alone, on a thread of its own.
        failures: the loader's expected exceptions. Any other is blamed on a single value: only
            this value is not loaded, and is NotLoaded.
        pause: seconds until a failed load is retried, by its error.
        insist: retry the load of a missing value without a new ``want``.
        shared: the cache shared with other processes.
        may_thread: whether this process has threads to load on. Without a thread, ``get`` loads.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[Sequence[str]], Mapping[str, Loaded[Value]]],
        *,
        lifetime: float,
        absent: float,
        stale: float,
        max_weight: int,
        failures: tuple[type[Exception], ...],
        pause: Callable[[Exception], float],
        weight_of: Callable[[Value | None], int] = lambda _: 1,
        stamped: Callable[[Value, float], Value] = lambda value, _: value,
        together: int = 500,
        apart: bool = False,
        insist: bool = False,
        shared: Shared[Value] | None = None,
        may_thread: Callable[[], bool] = green,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self._hits, self._misses = (metrics.cache_reads.labels(name, it) for it in ("hit", "miss"))
        self._loads = {
            outcome: metrics.cache_loads.labels(name, outcome)
            for outcome in ("loaded", "taken_over", "failed")
        }
        self._stale_reads = metrics.cache_stale.labels(name)
        self._load = load
        self._lifetime, self._absent, self._stale_for = lifetime, absent, stale
        self._max_weight, self._weight_of, self._weight = max_weight, weight_of, 0
        self._stamped = stamped
        self._together, self._apart = together, apart
        self._failures, self._pause, self._insist = failures, pause, insist
        self._shared = shared
        self._may_thread = may_thread
        self._now = clock.monotonic
        self._listener: Callable[[str, Value | None], None] = lambda _key, _value: None
        self._entries: dict[str, _Entry[Value]] = {}
        self._failed: dict[str, tuple[float, Exception | None]] = {}
        #: Recent edits: the oldest version still readable, and the time of the edit. Ordered, since
        #: a plain dict takes longer to find its first key with every removed key before.
        self._edits: OrderedDict[str, tuple[float, float]] = OrderedDict()
        #: Keys in the queue or in progress.
        self._loading: dict[str, _Load] = {}
        self._wanted: dict[str, None] = {}
        self._again: dict[str, float] = {}
        self._lock = threading.Lock()
        self._something, self._urgently = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str, timeout: float | None = None) -> Value | None:
        """The value, from memory if fresh; None: the key has no value.

        Raises:
            NotLoaded: no process has loaded the value within ``timeout``.
            Exception: the loader's, if no value may be served.
        """
        entry = self._entries.get(key)
        if entry is not None:
            now = self._now()
            if now < entry.due:
                self._hits.inc()
                return entry.value
            if now < entry.until:
                self._hits.inc()
                self._request_load(key)
                return entry.value
        self._misses.inc()
        return self._wait(key, timeout)

    def peek(self, key: str) -> Value | None:
        """The last loaded value; None without a value. Does not block."""
        entry = self._entries.get(key)
        return entry.value if entry else None

    def peek_all(self) -> Iterable[Value]:
        """All values in memory."""
        return [entry.value for entry in list(self._entries.values()) if entry.value is not None]

    def is_fresh(self, key: str) -> bool:
        """Whether ``get`` would return at once, even with None."""
        entry = self._entries.get(key)
        return entry is not None and self._now() < entry.until

    def want(self, key: str) -> bool:
        """Load or refresh a value ahead of its use; whether the value is fresh. Does not block."""
        entry, now = self._entries.get(key), self._now()
        if entry is None or now >= entry.until:
            if now >= self._failed.get(key, _NEVER)[0]:
                self._request_load(key, urgently=True)
            return False
        if now >= entry.due:
            self._request_load(key)
        return True

    def outdated(self, key: str, version: float) -> None:
        """Report an edit: no older version is read from now on. Does not block."""
        entry = self._entries.get(key)
        if entry is not None and entry.version >= version:
            return
        with self._lock:
            self._note(key, version)
        if entry is not None:
            entry.due = entry.until = entry.last = -inf
            self._request_load(key, urgently=True)

    def renew(self, key: str, version: float, timeout: float) -> None:
        """Load at least this version, and wait; readers keep getting the present value.

        Each version is requested once: after a failure, the value is refreshed as by ``get``.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.version >= version:
                return
            if self._least(key) < version:
                self._note(key, version)
                entry.due = -inf
            elif key not in self._loading:
                return
        self._await_load(key, timeout)

    def _least(self, key: str) -> float:
        """The oldest version that may be loaded."""
        return self._edits.get(key, (0.0, 0.0))[0]

    def _note(self, key: str, version: float) -> None:
        """Note an edit; under the lock."""
        now = self._now()
        self._edits[key] = max(version, self._least(key)), now
        self._edits.move_to_end(key)  # keeps the edits in the order seen
        # Values loaded earlier than a lifetime ago have expired, in all processes.
        while next(iter(self._edits.values()))[1] < now - self._lifetime:
            self._edits.popitem(last=False)

    def listen(self, on_load: Callable[[str, Value | None], None]) -> None:
        """Set the listener, called with each key and value (None: absent) loaded or kept stale."""
        self._listener = on_load

    def stop(self) -> None:
        """Stop loading, and wake the waiting readers. Idempotent."""
        self._stopping = True
        self._something.set()
        self._urgently.set()
        with self._lock:
            waiting, self._loading = list(self._loading.values()), {}
        _end(*waiting)

    def _wait(self, key: str, timeout: float | None) -> Value | None:
        until, error = self._failed.get(key, _NEVER)
        if error is not None and self._now() < until:
            raise copy_of(error)
        self._await_load(key, timeout)
        entry = self._entries.get(key)
        if entry is not None and self._now() < entry.until:
            return entry.value
        _, error = self._failed.get(key, _NEVER)
        raise copy_of(error or NotLoaded(f"{self.name}: {key!r} could not be loaded in time"))

    def _await_load(self, key: str, timeout: float | None) -> None:
        """Load the value, or wait for a load."""
        load = self._request_load(key, urgently=True, readers=1)
        if load is None:
            self._fly([key])
            return
        try:
            if not self._stopping:
                load.done.wait(timeout)
        finally:  # also when a green thread is killed
            with self._lock:
                load.readers -= 1

    def _request_load(self, key: str, *, urgently: bool = False, readers: int = 0) -> _Load | None:
        """Queue the key's load for this many more readers. None: the process has no thread."""
        if not self._may_thread():
            return None
        with self._lock:
            load = self._loading.get(key)
            if load is None:
                load = _Load()
                entry = self._entries.get(key)
                if entry is not None and self._now() < entry.due:
                    load.readers = readers
                    load.done.set()  # loaded before this lock was taken
                    return load
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                    thread.start()  # may fail: the next reader tries again
                    self._thread = thread
                self._loading[key] = load
                self._wanted[key] = None
            load.readers += readers
        self._something.set()
        if urgently:
            self._urgently.set()
        return load

    def _run(self) -> None:
        while not self._stopping:
            self._rest()
            with self._lock:
                now = self._now()
                keys = [*self._wanted, *(key for key, at in self._again.items() if at <= now)]
                self._wanted = {}
                self._again = {key: at for key, at in self._again.items() if at > now}
            left = iter(dict.fromkeys(keys))
            while batch := list(islice(left, self._together)):
                (self._fly_apart if self._apart else self._fly)(batch)

    def _rest(self) -> None:
        """Wait for a key to load."""
        again = min(self._again.values(), default=inf)
        if again < inf:
            self._something.wait(max(0.0, again - self._now()))
        else:
            self._something.wait()
        if not (self._apart or self._again):
            self._urgently.wait(COLLECT)
        self._something.clear()
        self._urgently.clear()

    def _fly_apart(self, keys: Sequence[str]) -> None:
        """Load keys, each on a thread, except keys loaded or being loaded elsewhere."""
        standing, began = self._claim(keys)
        theirs = [key for key in keys if key in standing.found or key in standing.elsewhere]
        self._fly(theirs, (standing, began))
        for key in set(keys).difference(theirs):
            fences = {key: standing.ours[key]} if key in standing.ours else {}
            mine: CacheState[Value] = CacheState(ours=fences)
            args = [key], (mine, began)
            threading.Thread(target=self._fly, args=args, daemon=True).start()

    def _fly(
        self, keys: Sequence[str], claimed: tuple[CacheState[Value], float] | None = None
    ) -> None:
        """Load keys, and wake the readers; ``claimed`` has the shared cache's answer, if asked."""
        settled = set(keys)
        try:
            settled -= self._obtain(keys, *(claimed or self._claim(keys)))
        finally:  # also when a green thread is killed
            with self._lock:
                loads = [self._loading.pop(key, None) for key in settled]
            _end(*loads)

    def _obtain(self, keys: Sequence[str], standing: CacheState[Value], began: float) -> set[str]:
        """Load keys; returns the keys whose load is not over."""
        found = dict(standing.found)
        self._loads["taken_over"].inc(len(found))
        ours = [key for key in keys if key not in found and key not in standing.elsewhere]
        if ours:
            mine = self._loaded(ours, standing.ours)
            self._loads["loaded"].inc(len(mine))
            fences = {key: fence for key, fence in standing.ours.items() if key in mine}
            self._store(fences, mine, self._now() - began)
            found |= mine
        again = {key for key, loaded in found.items() if not self._keep(key, loaded, began)}
        return again | {key for key in standing.elsewhere if not self._is_served(key)}

    def _loaded(self, keys: Sequence[str], fences: Mapping[str, int]) -> dict[str, Loaded[Value]]:
        """The loader's results for these keys, without failed keys."""
        try:
            loaded = self._load(keys)
        except self._failures as error:
            trouble: Exception = error
        except Exception as error:
            if len(keys) > 1:  # a single value is to blame; the rest are loaded
                half = len(keys) // 2
                return self._loaded(keys[:half], fences) | self._loaded(keys[half:], fences)
            log.error("cache.mistake", cache=self.name, key=keys[0], exc_info=error)
            trouble = NotLoaded(f"{self.name}: {keys[0]!r} cannot be read: {type(error).__name__}")
        else:
            return {key: loaded.get(key) or _nothing() for key in keys}
        self._fail(keys, trouble)
        given_up = {key: fences[key] for key in keys if key in fences}
        self._give_up(given_up, self._pause(trouble))
        return {}

    def _is_served(self, key: str) -> bool:
        """Whether no reader waits for this key, which another process loads.

        While readers wait, the shared cache is asked again; without readers, the load is dropped.
        """
        entry, now = self._entries.get(key), self._now()
        if entry is not None and now < entry.until and entry.version >= self._least(key):
            entry.due = now + LOOK_BESIDE
            return True
        with self._lock:
            load = self._loading.get(key)
            if self._insist or (load is not None and load.readers):
                # At the same moment as all other keys: one exchange serves them all.
                self._again[key] = (floor(now / LOOK) + 1) * LOOK
            else:
                self._loading.pop(key, None)
        return False

    def _times(self, loaded: Loaded[Value]) -> tuple[float, float]:
        """Seconds until the value's refresh, and until expiry."""
        lifetime, after = loaded.lifetime, loaded.refresh_after
        if lifetime is None:
            lifetime = self._absent if loaded.value is None else self._lifetime
        return REFRESH * lifetime if after is None else after, lifetime

    def _keep(self, key: str, loaded: Loaded[Value], began: float) -> bool:
        """Keep a loaded value. False: an edit was seen after the load began, which is repeated."""
        version, since = self._edits.get(key, (-inf, -inf))
        if loaded.version < version and began < since:
            self._try_again([key], 0.0)
            return False
        self._failed.pop(key, None)
        after, lifetime = self._times(loaded)
        if loaded.refresh_after is None:
            after *= 1 - JITTER * random.random()
        at = began - loaded.age
        value = None if loaded.value is None else self._stamped(loaded.value, loaded.version)
        entry = _Entry(
            value, loaded.version, at + after, at + lifetime, at + lifetime + self._stale_for
        )
        with self._lock:  # a reader after a newer edit begins a new load
            load = self._loading.pop(key, None)
            self._forget(key)  # keeps the entries in the order loaded
            self._entries[key] = entry
            self._weight += self._weight_of(value)
            while self._weight > self._max_weight:
                self._forget(next(iter(self._entries)))
        self._notify(key, value)
        _end(load)
        return True

    def _notify(self, key: str, value: Value | None) -> None:
        try:
            self._listener(key, value)
        except Exception:  # the remaining values are loaded all the same
            log.exception("cache.mistake", cache=self.name, key=key)

    def _forget(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._weight -= self._weight_of(entry.value)

    def _fail(self, keys: Iterable[str], error: Exception) -> None:
        now, pause = self._now(), self._pause(error)
        stale, gone = [], []
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and now < entry.last:
                entry.until = min(entry.last, max(entry.until, now + 2 * pause))
                entry.due = min(entry.until, now + pause)
                stale.append((key, entry.value))
            else:
                self._failed[key] = now + pause, error
                gone.append(key)
        while len(self._failed) > self._max_weight:
            del self._failed[next(iter(self._failed))]
        self._loads["failed"].inc(len(stale) + len(gone))
        self._stale_reads.inc(len(stale))
        log.error(
            "cache.load_failed", cache=self.name, keys=len(stale) + len(gone), error=str(error)
        )
        for key, value in stale:
            self._notify(key, value)
        if self._insist:
            self._try_again(gone, pause)

    def _try_again(self, keys: Iterable[str], seconds: float) -> None:
        at = self._now() + seconds
        with self._lock:
            self._again.update(dict.fromkeys(keys, at))
        self._something.set()

    def _claim(self, keys: Sequence[str]) -> tuple[CacheState[Value], float]:
        """The shared cache's answer, and the time of the question."""
        standing: CacheState[Value] = CacheState()
        began = self._now()
        if self._shared is not None:
            with self._sharing():
                standing = self._shared.claim({key: self._least(key) for key in keys})
        return standing, began

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        """Tolerate any failure of the shared cache: this process then loads the value."""
        try:
            yield
        except SharedUnavailable:
            pass  # logged already
        except Exception:
            log.exception("cache.mistake", cache=self.name)

    def _store(
        self, fences: Mapping[str, int], every: Mapping[str, Loaded[Value]], took: float
    ) -> None:
        if self._shared is None or not fences:
            return
        entries = {}
        for key, fence in fences.items():
            after, lifetime = self._times(every[key])
            value, version = every[key].value, every[key].version
            entries[key] = CacheEntry(fence, value, version, took, after * (1 - JITTER), lifetime)
        with self._sharing():
            self._shared.store(entries)

    def _give_up(self, fences: Mapping[str, int], pause: float) -> None:
        if self._shared is not None and fences:
            with self._sharing():
                self._shared.give_up(fences, pause)


def _nothing() -> Loaded[Any]:
    return Loaded(None)


def _end(*loads: _Load | None) -> None:
    for load in loads:
        if load is not None:
            load.done.set()
