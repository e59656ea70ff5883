"""Values that processes share through a real Redis: one loads, the others take over."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis as Client

from loadtests.servers.redis import Redis
from pos_gateway.clock import SYSTEM_CLOCK
from pos_gateway.errors import SharedUnavailable
from pos_gateway.merchants.cache import Gift, Standing
from pos_gateway.merchants.shared import PREFIX, SharedValues
from pos_gateway.vault import CannotOpen
from tests.fleet.liar import lying
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


def encode(key: str, value: str) -> str:
    if value.startswith("secret"):
        raise CannotOpen("not to be shared")
    return f"{key}={value}"


def decode(key: str, text: str) -> str:
    name, _, value = text.partition("=")
    if name != key:
        raise ValueError("another's")
    return value


def share(url: str, **terms: float) -> SharedValues[str]:
    return SharedValues(url, "test", encode=encode, decode=decode, **terms)  # type: ignore[arg-type]


def a_gift(fence: int, text: str | None = "v", version: float = 1.0, age: float = 0.0) -> Gift[str]:
    return Gift(fence, text, version, age, young=45.0, lifetime=100.0)


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
    return f"{PREFIX}test:={key}:lock"


def test_one_has_the_right_to_load_and_the_others_take_over(
    one: SharedValues[str], other: SharedValues[str]
) -> None:
    mine = one.claim({"k": 0.0, "l": 0.0}).ours
    assert mine.keys() == {"k", "l"}
    assert other.claim({"k": 0.0, "l": 0.0}).elsewhere == {"k", "l"}
    one.store({"k": a_gift(mine["k"], "v", 7.0, age=20.0), "l": a_gift(mine["l"], None)})
    found = other.claim({"k": 0.0, "l": 0.0}).found
    assert (found["k"].value, found["k"].version, found["k"].lifetime) == ("v", 7.0, 100.0)
    assert found["k"].refresh_after == pytest.approx(50.0)
    assert 20.0 <= found["k"].age < 20.0 + SOON
    assert found["l"].value is None


def test_an_old_value_is_loaded_anew_by_one(
    one: SharedValues[str], other: SharedValues[str]
) -> None:
    first = one.claim({"k": 0.0}).ours["k"]
    one.store({"k": a_gift(first, age=45.0)})
    assert other.claim({"k": 0.0}).ours["k"] > first
    assert one.claim({"k": 0.0}).elsewhere == {"k"}


def test_a_value_from_before_an_edit_is_none(one: SharedValues[str]) -> None:
    one.store({"k": a_gift(one.claim({"k": 0.0}).ours["k"], "v", 7.0)})
    assert one.claim({"k": 7.0}).found["k"].value == "v"
    assert one.claim({"k": 7.001}).ours.keys() == {"k"}


def test_who_was_held_up_for_longer_than_the_lease_overwrites_nothing(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    late = one.claim({"k": 0.0}).ours["k"]
    client.delete(lock("k"))  # as at the end of its lease
    newer = other.claim({"k": 0.0}).ours["k"]
    other.store({"k": a_gift(newer, "newer")})
    one.store({"k": a_gift(late, "older")})
    assert one.claim({"k": 0.0}).found["k"].value == "newer"


def test_nor_does_he_end_the_right_of_whoever_has_it_now(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    late = one.claim({"k": 0.0}).ours["k"]
    client.delete(lock("k"))
    other.claim({"k": 0.0})
    one.store({"k": a_gift(late, "older")})
    one.give_up({"k": late}, 0.0)
    assert one.claim({"k": 0.0}).elsewhere == {"k"}


def test_the_right_of_one_that_was_killed_ends_with_its_lease(
    redis_url: str, client: "Client[bytes]"
) -> None:
    share(redis_url, lease=3.0).claim({"k": 0.0})
    assert 0 < client.pttl(lock("k")) <= 3000


def test_what_could_not_be_loaded_is_not_tried_by_all_at_once(
    one: SharedValues[str], other: SharedValues[str], client: "Client[bytes]"
) -> None:
    mine = one.claim({"k": 0.0}).ours
    one.give_up(mine, 4.0)
    assert other.claim({"k": 0.0}).elsewhere == {"k"}
    assert client.pttl(lock("k")) <= 4000


def test_what_is_not_to_be_shared_is_not_there_and_keeps_nobody_waiting(
    one: SharedValues[str], client: "Client[bytes]"
) -> None:
    mine = one.claim({"k": 0.0, "l": 0.0}).ours
    one.store({key: a_gift(fence, "secret") for key, fence in mine.items()})
    kept = [value for key in client.scan_iter() for value in [key, *_fields(client, key)]]
    assert not [each for each in kept if b"secret" in each]
    assert all(client.pttl(lock(key)) <= 1 for key in mine)


def _fields(client: "Client[bytes]", key: bytes) -> list[bytes]:
    return list(client.hgetall(key).values()) if client.type(key) == b"hash" else []


def test_what_cannot_be_read_is_loaded(one: SharedValues[str], client: "Client[bytes]") -> None:
    one.store({"k": a_gift(one.claim({"k": 0.0}).ours["k"])})
    client.hset(f"{PREFIX}test:=k", "data", "l=v")
    standing = one.claim({"k": 0.0})
    assert not (standing.found or standing.ours or standing.elsewhere)


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_redis_that_talks_nonsense_is_left_alone_for_a_while(reply: bytes) -> None:
    with lying(reply) as liar:
        shared = share(liar.url, timeout=0.1)
        for _ in range(5):
            with pytest.raises(SharedUnavailable):
                shared.claim({"k": 0.0})
        assert liar.connections <= 1
        shared.close()


def test_a_redis_that_is_away_costs_no_value(redis: Redis, redis_url: str) -> None:
    redis.stop()
    scene = Scene(shared=share(redis_url))
    scene.source.rows["k"] = "value", 1.0
    assert scene.cache.get("k") == "value"


def test_two_processes_with_thousands_of_readers_load_once_a_refresh(redis_url: str) -> None:
    with (
        threaded(shared=share(redis_url), clock=SYSTEM_CLOCK) as here,
        threaded(shared=share(redis_url), clock=SYSTEM_CLOCK) as there,
        ThreadPoolExecutor(200) as pool,
    ):
        # One source, so that it is seen who asks; it answers when both caches wait.
        there.cache._load = here.source.load
        here.source.rows["k"] = "value", 1.0
        here.source.may_answer.clear()
        readers = [pool.submit(cache.get, "k") for cache in (here.cache, there.cache) * 100]
        here.wait_for_ask()
        here.source.may_answer.set()
        assert {reader.result(SOON) for reader in readers} == {"value"}
        assert here.source.loads == [["k"]]


def test_one_that_waits_for_another_process_loads_when_that_is_dead(
    redis_url: str, client: "Client[bytes]"
) -> None:
    dead = share(redis_url)
    dead.claim({"k": 0.0})
    looked = threading.Event()

    class Watched(SharedValues[str]):
        def claim(self, least: Mapping[str, float]) -> Standing[str]:
            standing = super().claim(least)
            if standing.elsewhere:
                looked.set()
            return standing

    shared = Watched(redis_url, "test", encode=encode, decode=decode)
    with threaded(shared=shared, clock=SYSTEM_CLOCK) as scene, ThreadPoolExecutor(1) as pool:
        scene.source.rows["k"] = "value", 1.0
        reader = pool.submit(scene.cache.get, "k")
        assert looked.wait(SOON)
        assert not scene.source.loads
        client.delete(lock("k"))  # as at the end of its lease
        assert reader.result(SOON) == "value"
        assert scene.source.loads == [["k"]]
