"""A cache shared by processes through Redis; a single process loads each value.

A value is sealed as a whole, for its key, with its version and times: write access to Redis is
enough neither to read a value nor to forge one. Nor can an earlier value of the key be put back: a
value expires a lifetime after it was sealed, and every reader knows the edits of that time.

Redis Cluster is not supported: a script uses the keys of many values.
"""

import platform
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from math import inf
from typing import Any, Generic, TypeVar

import structlog

from pos_gateway.cache.redis_client import redis_client
from pos_gateway.cache.refresh_ahead import JITTER, CacheEntry, CacheState, Loaded
from pos_gateway.domain.errors import SharedUnavailable
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import cooperatively
from pos_gateway.runtime.vault import CannotOpen, Vault

log = structlog.get_logger(__name__)

Value = TypeVar("Value")

#: Seconds for connecting and for each answer: the longest wait of a reader while Redis is away.
TIMEOUT = 0.5
#: Seconds without a try after Redis was away.
PAUSE = 5.0
#: Seconds of a claim to load: a slow load's, and a few more.
LEASE = 15.0
#: Change with the scheme of keys or fields: old and new workers then share nothing.
PREFIX = "pos_gateway:shared:"
#: Values in one exchange with Redis, unless large.
BATCH_SIZE = 500


class SharedValues(Generic[Value]):
    """One kind of shared values. Safe from threads and green threads. The constructor does no I/O.

    Args:
        url: of Redis.
        name: of the kind.
        vault: seals and opens; has a key.
        encode: a value as text, never empty; raises CannotOpen for a value not to be shared.
        decode: the inverse; raises ValueError for invalid text.
        lease: seconds of a claim to load.
        batch_size: values in an exchange, which must end within the timeout, and values sealed
            before yielding to other green threads.

    Raises:
        InvalidSettings: the package ``redis`` is not installed, or the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        vault: Vault,
        encode: Callable[[Value], str],
        decode: Callable[[str], Value],
        lease: float = LEASE,
        batch_size: int = BATCH_SIZE,
        prefix: str = PREFIX,
        timeout: float = TIMEOUT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client, self._failures = redis_client(url, timeout)
        source = resources.files("pos_gateway.cache").joinpath("refresh.lua").read_text("utf-8")
        self._script = self._client.register_script(source)
        self._prefix = f"{prefix}{name}:"
        self._name = name
        self._owner = f"{platform.node()[:64]}:{uuid.uuid4().hex}"
        self._vault, self._encode, self._decode = vault, encode, decode
        self._lease = lease
        self._batch_size = batch_size
        self._clock, self._now = clock, clock.monotonic
        self._away_until = -inf
        #: Keys being loaded elsewhere, with the time of the first such answer, in order of time.
        self._elsewhere: dict[str, float] = {}
        self._lock = threading.Lock()

    def claim(self, least: Mapping[str, float]) -> CacheState[Value]:
        """Values of at least these versions, or the right to load the keys for the lease.

        A key being loaded elsewhere for longer than a lease has no answer: the caller loads.

        Raises:
            SharedUnavailable: Redis is away, or answers nonsense.
        """
        found: dict[str, Loaded[Value]] = {}
        ours: dict[str, int] = {}
        elsewhere: set[str] = set()
        for keys in self._batched(least):
            versions = [repr(least[key]) for key in keys]
            replies = self._do(keys, "claim", self._owner, _milliseconds(self._lease), *versions)
            overdue = self._overdue(keys, replies)
            for key, reply in zip(keys, replies, strict=True):
                match reply:
                    case [b"found", *rest]:
                        loaded = self._loaded(key, rest)
                        if loaded is not None:
                            found[key] = loaded
                    case [b"ours", int(fence)]:
                        ours[key] = fence
                    case [b"paused"]:
                        elsewhere.add(key)
                    case [b"elsewhere"]:
                        if key not in overdue:
                            elsewhere.add(key)
                    case _:
                        raise self._is_away(f"an answer that is none: {reply!r:.80}")
        return CacheState(found, ours, frozenset(elsewhere))

    def store(self, entries: Mapping[str, CacheEntry[Value]]) -> None:
        """Store values for all processes, except keys claimed since by another process.

        Raises:
            SharedUnavailable: Redis is away; values may or may not have been stored.
        """
        stored, private = {}, {}
        for key, each in cooperatively(entries.items(), self._batch_size):
            try:
                stored[key] = self._stored(key, each)
            except CannotOpen:
                private[key] = each.fence
        for keys in self._batched(stored):
            arguments = [argument for key in keys for argument in stored[key]]
            self._do(keys, "store", self._owner, *arguments)
        if private:
            self.give_up(private, 0.0)

    def give_up(self, fences: Mapping[str, int], pause: float) -> None:
        """Report a failed load: no process retries the keys for ``pause`` seconds.

        Raises:
            SharedUnavailable: Redis is away.
        """
        for keys in self._batched(fences):
            numbers = [fences[key] for key in keys]
            self._do(keys, "give up", self._owner, max(1, _milliseconds(pause)), *numbers)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.connection_pool.disconnect()

    def _batched(self, keys: Mapping[str, Any]) -> list[list[str]]:
        every, most = list(keys), self._batch_size
        return [every[start : start + most] for start in range(0, len(every), most)]

    def _do(self, keys: Sequence[str], *arguments: Any) -> Sequence[Any]:
        if self._now() < self._away_until:
            raise SharedUnavailable("Redis was away a moment ago")
        names = [name for key in keys for name in self._names(key)]
        try:
            replies = self._script(keys=[*names, f"{self._prefix}fences"], args=arguments)
        except self._failures as error:
            # Perhaps of a former primary, a read-only replica now: the next try connects anew.
            self._client.connection_pool.disconnect(inuse_connections=False)
            raise self._is_away(f"{type(error).__name__}: {error}"[:200]) from error
        if not isinstance(replies, list) or len(replies) != len(keys):
            raise self._is_away(f"an answer that is none: {replies!r:.80}")
        return replies

    def _overdue(self, keys: Sequence[str], replies: Sequence[Any]) -> set[str]:
        """Keys being loaded elsewhere for longer than a lease by now."""
        now, overdue = self._now(), set()
        with self._lock:
            while self._elsewhere:  # drop keys not asked for again
                key, since = next(iter(self._elsewhere.items()))
                if now - since <= 2 * self._lease:
                    break
                del self._elsewhere[key]
            for key, reply in zip(keys, replies, strict=True):
                if reply != [b"elsewhere"]:
                    self._elsewhere.pop(key, None)
                elif now - self._elsewhere.setdefault(key, now) > self._lease:
                    del self._elsewhere[key]
                    overdue.add(key)
        return overdue

    def _is_away(self, why: str) -> SharedUnavailable:
        log.warning("cache.not_shared", cache=self._name, error=why)
        self._away_until = self._now() + PAUSE
        return SharedUnavailable(why)

    def _names(self, key: str) -> tuple[bytes, bytes]:
        """Redis names of a value and its lock. The key comes last: no name equals another lock."""
        value, lock = (f"{self._prefix}{kind}:{key}" for kind in ("value", "lock"))
        return value.encode("utf-8", "surrogatepass"), lock.encode("utf-8", "surrogatepass")

    def _stored(self, key: str, entry: CacheEntry[Value]) -> Sequence[Any]:
        """A value's arguments for the script."""
        text = "" if entry.value is None else self._encode(entry.value)
        version = repr(entry.version)
        refresh_at_age, lifetime = (
            str(_milliseconds(each)) for each in (entry.refresh_at_age, entry.lifetime)
        )
        data = self._vault.seal_bytes(
            f"{self._clock.now().timestamp()!r} {text}".encode(),
            whose=self._whose(key, version, refresh_at_age, lifetime),
        )
        return entry.fence, version, data, _milliseconds(entry.age), refresh_at_age, lifetime

    def _whose(self, key: str, *terms: str) -> str:
        """The owner for sealing a value. No other kind of sealed text has as many blanks."""
        return " ".join(("shared", self._name, ascii(key), *terms))

    def _loaded(self, key: str, reply: Sequence[Any]) -> Loaded[Value] | None:
        """Open a stored value. None: unreadable here, so the caller loads."""
        try:
            version, data, age, refresh_at_age, lifetime = reply
            terms = [each.decode() for each in (version, refresh_at_age, lifetime)]
            opened = self._vault.open_bytes(data.decode(), whose=self._whose(key, *terms)).decode()
            sealed_at, _, text = opened.partition(" ")
            lasts = int(lifetime) / 1000
            if self._clock.now().timestamp() - float(sealed_at) >= lasts:
                raise ValueError("sealed too long ago, or clocks differ")
            return Loaded(
                self._decode(text) if text else None,
                float(version),
                lifetime=lasts,
                refresh_after=int(refresh_at_age) / 1000 / (1 - JITTER),
                age=max(0, int(age)) / 1000,
            )
        except Exception as error:  # noqa: BLE001  (Redis may hold anything)
            log.warning("cache.unreadable", cache=self._name, error=str(error))
            return None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
