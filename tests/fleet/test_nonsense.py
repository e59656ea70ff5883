"""A Redis that is unreachable, silent, refuses, or answers nonsense."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis as Client

from pos_gateway.admission.breaker import LONGEST_OPEN
from pos_gateway.domain.errors import FleetUnavailable, InvalidSettings
from pos_gateway.fleet.permits import PREFIX, TIMEOUT, RedisPermits, read_reply
from pos_gateway.fleet.sync import Ask, Report
from testkit.servers.redis import Redis
from tests.fleet.liar import lying
from tests.fleet.pods import Pod, beats, start

ASK = Ask("a", permits=1, in_flight=1, wanted=3, limit=5)
GOOD = [b"fleet", 7, 5, 0, 0, 1, b"0", [3, 3, 0], [], []]

NONSENSE = {
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "bytes": bytes(range(256)),
    "zeros": b"\0" * 4096,
    "a status": b"+OK\r\n",
    "null": b"*-1\r\n",
    "an empty list": b"*0\r\n",
    "a short list": b"*2\r\n$5\r\nfleet\r\n:1\r\n",
    "a length that is none": b"*x\r\n",
    "a negative length": b"*-7\r\n",
    "an integer that is none": b":one\r\n",
    "a list in a list in a list": b"*1\r\n" * 100_000,
    "an error": b"-ERR no\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "read only": b"-READONLY You can't write against a read only replica.\r\n",
    "wants a password": b"-NOAUTH Authentication required.\r\n",
    "a cluster": b"-MOVED 3999 127.0.0.1:1\r\n",
    "no script, for ever": b"-NOSCRIPT No matching script.\r\n",
    "silence": b"",
}


@pytest.mark.parametrize("greets", [True, False], ids=["greeting", "rude"])
@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_invalid_reply_is_one_error(reply: bytes, greets: bool) -> None:
    with lying(reply, greets=greets) as liar:
        permits = RedisPermits(liar.url, timeout=0.1)
        for _ in range(2):
            with pytest.raises(FleetUnavailable):
                permits.sync(Report([ASK]))
        permits.close()


def test_a_connection_with_an_invalid_reply_is_not_reused() -> None:
    with lying(b"*1\r\n$5\r\nfleet\r\n") as liar:
        permits = RedisPermits(liar.url)
        for _ in range(3):
            with pytest.raises(FleetUnavailable):
                permits.sync(Report([ASK]))
        assert liar.connections == 3
        permits.close()


def test_random_bytes_are_one_error() -> None:
    chance = random.Random(7)
    with lying(b"") as liar:
        permits = RedisPermits(liar.url, timeout=0.02)
        for _ in range(100):
            start = chance.choice([b"*", b"$", b":", b"+", b"-", b"*8\r\n$5\r\nfleet\r\n:", b""])
            liar.reply = start + chance.randbytes(chance.randrange(1, 60)) + b"\r\n"
            with pytest.raises(FleetUnavailable):
                permits.sync(Report([ASK]))
        permits.close()


def test_a_breaker_is_open_for_no_longer_than_any_worker_opens_one() -> None:
    answer, _, _ = read_reply([*GOOD[:-1], [b"a", 30_000, b"b", 10**9]], 7, [ASK])
    assert answer.opened == {"a": 30.0, "b": 2 * LONGEST_OPEN}


def test_a_valid_reply_is_accepted() -> None:
    answer, made_at, heard = read_reply(GOOD, 7, [ASK])
    assert answer.grants[0].permits == 3
    assert (made_at, heard) == (5, "0")


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"other"),
        (0, None),
        (1, 8),
        (1, True),
        (2, 8),
        (2, None),
        (3, -1),
        (3, b"0"),
        (3, 10**18),
        (4, 2),
        (5, None),
        (5, -1),
        (6, b"-1"),
        (6, 0),
        (6, b"9" * 17),
        (6, b""),
        (7, None),
        (7, []),
        (7, [3, 3]),
        (7, [3, 3, 0, 3, 3, 0]),
        (7, [4, 4, 0]),  # more than was requested
        (7, [0, 0, 0]),  # taken away: not Redis's to decide
        (7, [3, 4, 0]),
        (7, [3, -1, 0]),
        (7, [3, 3, 2]),
        (7, [b"3", 3, 0]),
        (7, [3.0, 3, 0]),
        (8, b"a"),
        (8, [1]),
        (8, [b"\xff"]),
        (8, [None]),
        (9, [b"a"]),
        (9, [b"a", -1]),
        (9, [b"a", b"1"]),
        (9, [1, 1]),
        (9, [b"a", 10**18]),
    ],
)
def test_one_wrong_value_invalidates_the_reply(position: int, value: object) -> None:
    reply = [*GOOD[:position], value, *GOOD[position + 1 :]]
    with pytest.raises(FleetUnavailable):
        read_reply(reply, 7, [ASK])


values = st.recursive(
    st.none() | st.integers() | st.binary(max_size=9) | st.just(b"fleet"),
    lambda inner: st.lists(inner, max_size=9),
)


@given(values)
def test_any_reply_is_parsed_or_the_one_error(reply: object) -> None:
    with pytest.raises(FleetUnavailable):
        read_reply(reply, 7, [ASK])


@pytest.mark.parametrize("key", ["pods", "pod:{pod}", "note:{pod}", "breaker", "news"])
def test_keys_of_another_type_are_an_error_and_then_a_fallback(redis_url: str, key: str) -> None:
    pod = Pod(redis_url)
    client = Client.from_url(redis_url)
    name = f"{PREFIX}{key.format(pod=pod.permits.pod)}"
    client.rpush(name, "what is this?")
    pod.coordinator.breaker_opened("a", 30)
    pod.submit("a", 3)
    for _ in range(20):
        pod.beat()

    assert pod.running("a") == 3
    assert pod.allotted("a") is None

    client.delete(name)
    for _ in range(10):
        pod.beat()
    assert pod.allotted("a") == 3


def test_invalid_records_are_an_error(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    for pod in pods:
        pod.submit("a", 2)
        pod.step()
    Client.from_url(redis_url).hset(f"{PREFIX}pod:{pods[0].permits.pod}", "=a", "many")

    with pytest.raises(FleetUnavailable, match="makes no sense"):
        pods[1].permits.sync(Report([ASK]))


def test_redis_out_of_memory_is_a_fallback_until_it_has_some(redis_url: str) -> None:
    client = Client.from_url(redis_url)
    pod = Pod(redis_url, limits={"a": 5})
    client.config_set("maxmemory", 1)
    try:
        pod.submit("a", 5)
        for _ in range(20):
            pod.beat()
        assert pod.running("a") == 5
        assert pod.allotted("a") is None
    finally:
        client.config_set("maxmemory", 0)
    for _ in range(5):
        pod.beat()

    assert pod.allotted("a") == 5


def test_a_silent_redis_is_a_fallback(redis: Redis, redis_url: str) -> None:
    pods = [Pod(redis_url, limits={"a": 5}, timeout=TIMEOUT)]
    pods[0].submit("a", 2)
    pods[0].step()
    redis.pause()
    pods[0].submit("a", 8)
    for _ in range(14):
        beats(pods)
    assert pods[0].running("a") == 5

    redis.resume()
    beats(pods, 5)
    assert pods[0].allotted("a") == 5


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(InvalidSettings, match=r"POS_GATEWAY_REDIS_URL.*pip install"):
        RedisPermits("redis://localhost")


def test_an_invalid_url_names_the_variable() -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_REDIS_URL"):
        RedisPermits("redis://localhost/0?socket_timeout=soon")
