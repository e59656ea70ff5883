"""Values that processes share through a real Redis: one loads, the others read its value."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis as Client

from pos_gateway.cache.refresh_ahead import CacheEntry, CacheState
from pos_gateway.cache.shared import LEASE, PAUSE, PREFIX, SharedValues
from pos_gateway.domain.errors import SharedUnavailable
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.runtime.vault import CannotOpen, Vault, new_key
from testkit.patience import PATIENCE
from testkit.servers.redis import Redis
from tests.fleet.liar import lying
from tests.merchants.conftest import HandClock
from tests.merchants.test_cache import SOON, Scene, threaded

NONSENSE = {
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a status": b"+OK\r\n",
    "an empty list": b"*0\r\n",
    "a list of another kind": b"*1\r\n:7\r\n",
    "found, but nothing": b"*1\r\n*1\r\n$4\r\nours\r\n",
    "an error": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "silence": b"",
}


VAULT = Vault(new_key())


def encode(value: str) -> str:
    if value.startswith("private"):
        raise CannotOpen("not to be shared")
    return f"={value}"


def decode(text: str) -> str:
    return text.removeprefix("=")


def share(url: str, name: str = "test", **terms: Any) -> SharedValues[str]:
    return SharedValues(url, name, vault=VAULT, encode=encode, decode=decode, **terms)


def an_entry(
    fence: int, text: str | None = "v", version: float = 1.0, age: float = 0.0
) -> CacheEntry[str]:
    return CacheEntry(fence, text, version, age, refresh_at_age=45.0, lifetime=100.0)


@pytest.fixture
def one(redis_url: str) -> Iterator[SharedValues[str]]:
    shared = share(redis_url)
    yield shared
    shared.close()


@pytest.fixture
def other(redis_url: str) -> Iterator[SharedValues[str]]:
    shared = share(redis_url)
    yield shared
    shared.close()


@pytest.fixture
def client(redis_url: str) -> Iterator["Client[bytes]"]:
    client = Client.from_url(redis_url)
    yield client
    client.close()


def lock(key: str) -> str:
    return f"{PREFIX}test:lock:{key}"


def test_one_process_loads_and_the_others_read_its_value(
    one: SharedValues[str], other: SharedValues[str]
) -> None:
    mine = one.claim({"k": 0.0, "l": 0.0}).ours
    assert mine.keys() == {"k", "l"}
    assert other.claim({"k": 0.0, "l": 0.0}).elsewhere == {"k", "l"}
    one.store({"k": an_entry(mine["k"], "v", 7.0, age=20.0), "l": an_entry(mine["l"], None)})
    found = other.claim({"k": 0.0, "l": 0.0}).found
    assert (found["k"].value, found["k"].version, found["k"].lifetime) == ("v", 7.0, 100.0)
    assert found["k"].refresh_after == pytest.approx(50.0)
    assert 20.0 <= found["k"].age < 20.0 + SOON
    assert found["l"].value is None


def test_an_old_value_is_refreshed_by_one_process(
    one: SharedValues[str], other: SharedValues[str]
) -> None:
    first = one.claim({"k": 0.0}).ours["k"]
    one.store({"k": an_entry(first, age=45.0)})
    assert other.claim({"k": 0.0}).ours["k"] > first
    assert one.claim({"k": 0.0}).elsewhere == {"k"}


def test_a_value_from_before_an_edit_is_not_used(one: SharedValues[str]) -> None:
    one.store({"k": an_entry(one.claim({"k": 0.0}).ours["k"], "v", 7.0)})
    assert one.claim({"k": 7.0}).found["k"].value == "v"
    assert one.claim({"k": 7.001}).ours.keys() == {"k"}


def test_a_loader_paused_for_longer_than_its_lease_overwrites_nothing(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    late = one.claim({"k": 0.0}).ours["k"]
    client.delete(lock("k"))  # as when its lease expires
    newer = other.claim({"k": 0.0}).ours["k"]
    other.store({"k": an_entry(newer, "newer")})
    one.store({"k": an_entry(late, "older")})
    assert one.claim({"k": 0.0}).found["k"].value == "newer"


def test_a_late_loader_does_not_release_the_new_loaders_lease(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    late = one.claim({"k": 0.0}).ours["k"]
    client.delete(lock("k"))
    other.claim({"k": 0.0})
    one.store({"k": an_entry(late, "older")})
    one.give_up({"k": late}, 0.0)
    assert one.claim({"k": 0.0}).elsewhere == {"k"}


def test_a_killed_loaders_claim_ends_with_its_lease(
    redis_url: str, client: "Client[bytes]"
) -> None:
    share(redis_url, lease=3.0).claim({"k": 0.0})
    assert 0 < client.pttl(lock("k")) <= 3000


def test_a_failed_load_is_not_retried_by_all_processes_at_once(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    mine = one.claim({"k": 0.0}).ours
    one.give_up(mine, 4.0)
    assert other.claim({"k": 0.0}).elsewhere == {"k"}
    assert client.pttl(lock("k")) <= 4000


@pytest.mark.parametrize("first", ["k:lock", "lock:k", "=k", "=k:lock", "value:k", "fences", ""])
@pytest.mark.parametrize("second", ["k", "k:lock", "lock:k"])
def test_no_key_collides_with_another_ones_lock(
    one: SharedValues[str], other: SharedValues[str], first: str, second: str
) -> None:
    """All of these are valid merchant ids except for the last."""
    if first != second:
        one.store({first: an_entry(one.claim({first: 0.0}).ours[first])})
        assert one.claim({first: 7.0}).ours
        assert other.claim({second: 0.0}).ours


def test_a_value_that_others_have_not_loaded_within_a_lease_is_loaded_here(
    redis_url: str, client: "Client[bytes]"
) -> None:
    """Each of them may have died, or may be as slow as the first."""
    clock = _Later()
    waiting = share(redis_url, clock=clock)
    for seconds in (0.0, LEASE / 2, LEASE):
        client.delete(lock("k"))
        share(redis_url).claim({"k": 0.0})
        clock.seconds = seconds
        assert waiting.claim({"k": 0.0}).elsewhere == {"k"}
    clock.seconds = LEASE + 0.1
    assert waiting.claim({"k": 0.0}) == CacheState({}, {}, frozenset())
    assert waiting.claim({"k": 0.0}).elsewhere == {"k"}  # it waits for another lease
    waiting.close()


def test_two_waits_for_others_are_counted_separately(
    redis_url: str, client: "Client[bytes]"
) -> None:
    clock = _Later()
    waiting = share(redis_url, clock=clock)
    share(redis_url).claim({"k": 0.0})
    assert waiting.claim({"k": 0.0}).elsewhere == {"k"}
    clock.seconds = 10 * LEASE  # it was not read meanwhile
    assert waiting.claim({"k": 0.0}).elsewhere == {"k"}
    waiting.close()


def test_a_pause_may_be_longer_than_a_lease(one: SharedValues[str], redis_url: str) -> None:
    """Toast allows two logins an hour, for all processes together."""
    clock = _Later()
    waiting = share(redis_url, clock=clock)
    mine = one.claim({"k": 0.0}).ours
    assert waiting.claim({"k": 0.0}).elsewhere == {"k"}
    one.give_up(mine, 1800.0)
    for seconds in (1.0, LEASE + 1.0, 1700.0):
        clock.seconds = seconds
        assert waiting.claim({"k": 0.0}).elsewhere == {"k"}
    waiting.close()


def test_an_unshared_value_is_not_in_redis_and_blocks_no_process(
    one: SharedValues[str], client: "Client[bytes]"
) -> None:
    mine = one.claim({"k": 0.0, "l": 0.0}).ours
    one.store({key: an_entry(fence, "private") for key, fence in mine.items()})
    kept = [value for key in client.scan_iter() for value in [key, *_fields(client, key)]]
    assert not [each for each in kept if b"private" in each]
    assert all(client.pttl(lock(key)) <= 1 for key in mine)


def _fields(client: "Client[bytes]", key: bytes) -> list[bytes]:
    return list(client.hgetall(key).values()) if client.type(key) == b"hash" else []


class _Later(HandClock):
    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


def test_shared_values_cannot_be_read_in_redis(
    one: SharedValues[str], client: "Client[bytes]"
) -> None:
    mine = one.claim({"k": 0.0}).ours["k"]
    one.store({"k": an_entry(mine, "s3cr3t")})
    assert b"s3cr3t" not in b"".join(_fields(client, _value("k")))


_FORGED = {
    "another key's": lambda fields: fields | {b"data": fields[b"of l"]},
    "of no value, which says that there is none": lambda fields: fields | {b"data": b""},
    "an absent one's": lambda fields: fields | {b"data": fields[b"of none"]},
    "one that was changed": lambda fields: fields | {b"data": fields[b"data"][:-4] + b"AAAA"},
    "in clear": lambda fields: fields | {b"data": b"1795000000.0 =v"},
    "under a key of the attacker's": lambda fields: (
        fields | {b"data": Vault(new_key()).seal_bytes(b"0 =v", whose="")}
    ),
    "no text": lambda fields: fields | {b"data": b"\xff"},
    "as if it were newer": lambda fields: fields | {b"version": b"2.0"},
    "as if it were good for ever": lambda fields: fields | {b"lifetime": b"99999999"},
    "as if it were young for ever": lambda fields: fields | {b"young": b"99999999"},
}


@pytest.mark.parametrize("forge", _FORGED.values(), ids=_FORGED.keys())
def test_write_access_to_redis_cannot_forge_a_value(
    one: SharedValues[str], client: "Client[bytes]", forge: Callable[[Any], Any]
) -> None:
    keys = ("k", "l", "none")
    mine = one.claim(dict.fromkeys(keys, 0.0)).ours
    one.store({key: an_entry(mine[key], None if key == "none" else "v") for key in keys})
    others = {f"of {key}".encode(): client.hget(_value(key), "data") for key in keys}
    forged = forge({**client.hgetall(_value("k")), **others})
    client.hset(_value("k"), mapping=forged)
    standing = one.claim({"k": 0.0})
    assert not (standing.found or standing.ours or standing.elsewhere)  # it is loaded here


def test_a_value_of_another_kind_is_not_used(
    one: SharedValues[str], redis_url: str, client: "Client[bytes]"
) -> None:
    other_kind = share(redis_url, "other")
    for shared in (one, other_kind):
        shared.store({"k": an_entry(shared.claim({"k": 0.0}).ours["k"])})
    client.hset(_value("k"), "data", client.hget(f"{PREFIX}other:value:k", "data") or b"")
    assert not one.claim({"k": 0.0}).found
    other_kind.close()


def test_a_value_replayed_after_its_lifetime_is_not_used(
    redis_url: str, client: "Client[bytes]"
) -> None:
    clock = _Later()
    one = share(redis_url, clock=clock)
    one.store({"k": an_entry(one.claim({"k": 0.0}).ours["k"])})
    earlier = client.hgetall(_value("k"))
    clock.seconds = 99.0
    assert one.claim({"k": 0.0}).found
    clock.seconds = 101.0
    client.hset(_value("k"), mapping=earlier | {b"at": b"99999999999999"})  # as if loaded just now
    assert not one.claim({"k": 0.0}).found
    one.close()


def _value(key: str) -> bytes:
    return f"{PREFIX}test:value:{key}".encode()


def test_a_value_with_an_invalid_age_is_loaded_here(one: SharedValues[str]) -> None:
    """Redis's counters are not encrypted, and an impostor may answer anything."""
    one.store({"k": an_entry(one.claim({"k": 0.0}).ours["k"])})
    script = one._script

    def older(*arguments: Any, **named: Any) -> Any:
        [[found, version, data, _, *times]] = script(*arguments, **named)
        return [[found, version, data, b"9" * 400, *times]]

    one._script = older
    assert one.claim({"k": 0.0}) == CacheState({}, {}, frozenset())


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_redis_with_invalid_replies_is_not_used_for_a_while(reply: bytes) -> None:
    with lying(reply) as liar:
        shared = share(liar.url, timeout=0.1)
        for _ in range(5):
            with pytest.raises(SharedUnavailable):
                shared.claim({"k": 0.0})
        assert liar.connections <= 1
        shared.close()


def test_a_former_primary_which_takes_no_write_any_more_is_not_asked_for_ever(
    clock: HandClock,
) -> None:
    """Its connections go on after a failover: each worker would load, and log in, by itself until a restart."""
    with lying(b"-READONLY You can't write against a read only replica.\r\n") as liar:
        shared = share(liar.url, timeout=PATIENCE, clock=clock)
        for _ in range(2):
            with pytest.raises(SharedUnavailable):
                shared.claim({"k": 0.0})
            clock.seconds += PAUSE + 1
        assert liar.connections == 2
        shared.close()


def test_an_unreachable_redis_costs_no_value(redis: Redis, redis_url: str) -> None:
    redis.stop()
    scene = Scene(shared=share(redis_url))
    scene.source.rows["k"] = "value", 1.0
    assert scene.cache.get("k") == "value"


def test_two_processes_with_thousands_of_readers_load_once_per_refresh(redis_url: str) -> None:
    with (
        threaded(shared=share(redis_url), clock=SYSTEM_CLOCK) as here,
        threaded(shared=share(redis_url), clock=SYSTEM_CLOCK) as there,
        ThreadPoolExecutor(200) as pool,
    ):
        # One source, so that the loader is known; it answers when both caches wait.
        there.cache._load = here.source.load
        here.source.rows["k"] = "value", 1.0
        here.source.may_answer.clear()
        readers = [pool.submit(cache.get, "k") for cache in (here.cache, there.cache) * 100]
        here.wait_for_ask()
        here.source.may_answer.set()
        assert {reader.result(SOON) for reader in readers} == {"value"}
        assert here.source.loads == [["k"]]


def test_a_waiting_process_loads_when_the_loader_is_dead(
    redis_url: str, client: "Client[bytes]"
) -> None:
    dead = share(redis_url)
    dead.claim({"k": 0.0})
    looked = threading.Event()

    class Watched(SharedValues[str]):
        def claim(self, least: Mapping[str, float]) -> CacheState[str]:
            standing = super().claim(least)
            if standing.elsewhere:
                looked.set()
            return standing

    shared = Watched(redis_url, "test", vault=VAULT, encode=encode, decode=decode)
    with threaded(shared=shared, clock=SYSTEM_CLOCK) as scene, ThreadPoolExecutor(1) as pool:
        scene.source.rows["k"] = "value", 1.0
        reader = pool.submit(scene.cache.get, "k")
        assert looked.wait(SOON)
        assert not scene.source.loads
        client.delete(lock("k"))  # as when its lease expires
        assert reader.result(SOON) == "value"
        assert scene.source.loads == [["k"]]
