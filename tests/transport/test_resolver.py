"""Names: single-flight look-ups, stale answers while one runs, and no name waits for another."""

import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket as green_socket
from gevent.event import Event
from gevent.resolver.ares import Resolver as Ares

from pos_gateway.transport import resolver as subject
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.resolver import FRESH, NEGATIVE, STALE, Addresses, Resolver
from testkit.patience import PATIENCE

HERE: Addresses = ((socket.AF_INET, "192.0.2.1"),)
THERE: Addresses = ((socket.AF_INET, "192.0.2.2"),)


class Names:
    """A resolver's clock, and its answers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer: Addresses | OSError = HERE
        self.may_answer = Event()
        self.may_answer.set()
        self.asked: list[str] = []
        self.resolver = Resolver(self._look_up, now=lambda: self.now)

    def resolve(self, host: str = "pos.example", timeout: float = PATIENCE) -> Addresses:
        found = self.resolver.resolve(host, timeout)
        gevent.sleep(0)  # yield to a look-up in the background
        gevent.sleep(0)
        return found

    def _look_up(self, host: str) -> Addresses:
        self.asked.append(host)
        if host.startswith("hangs"):
            self.may_answer.wait()
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def on_green_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "green", lambda: True)


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    names.may_answer.set()
    gevent.sleep(0)


def test_a_fresh_answer_is_looked_up_once(names: Names) -> None:
    assert names.resolve() == HERE
    names.now = FRESH
    assert names.resolve() == HERE
    assert names.asked == ["pos.example"]


def test_a_stale_answer_is_served_during_its_refresh(names: Names) -> None:
    names.resolve()
    names.now, names.answer = FRESH + 1, THERE
    assert names.resolve() == HERE
    assert names.resolve() == THERE
    assert len(names.asked) == 2


def test_a_failing_resolver_keeps_stale_answers_and_is_retried_after_a_pause(
    names: Names,
) -> None:
    names.resolve()
    names.now, names.answer = FRESH + 1, OSError("SERVFAIL")
    assert [names.resolve() for _ in range(5)] == [HERE] * 5
    assert len(names.asked) == 2
    names.now += NEGATIVE + 1
    assert names.resolve() == HERE
    assert len(names.asked) == 3
    names.now = STALE + 1
    with pytest.raises(NotSent, match="SERVFAIL"):
        names.resolve()


def test_a_name_that_is_not_found_is_cached_for_a_while(names: Names) -> None:
    names.answer = socket.gaierror(-2, "Name or service not known")
    for _ in range(3):
        with pytest.raises(NotSent, match="not known"):
            names.resolve()
    assert len(names.asked) == 1
    names.now, names.answer = NEGATIVE + 1, HERE
    assert names.resolve() == HERE


def test_without_green_threads_a_stale_name_is_looked_up_again(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "green", lambda: False)
    names.resolve()
    names.now, names.answer = FRESH + 1, THERE
    assert names.resolve() == THERE
    names.now, names.answer = 2 * FRESH + 2, OSError("SERVFAIL")
    assert names.resolve() == THERE


def test_without_green_threads_a_look_up_that_hangs_ends_at_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the thread: the system's resolver has no limit of its own."""
    monkeypatch.setattr(subject, "green", lambda: False)
    may_answer = threading.Event()

    def look_up(_host: str) -> Addresses:
        may_answer.wait(PATIENCE)
        return HERE

    names = Resolver(look_up)
    with pytest.raises(NotSent, match="no answer within"):
        names.resolve("hangs.example", 0.01)
    may_answer.set()
    assert names.resolve("hangs.example", PATIENCE) == HERE


def test_a_machine_without_threads_to_spare_is_not_the_merchants_fault(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subject, "green", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NotSent, match="start new thread") as caught:
            names.resolve()
    assert caught.value.code == "local"
    assert names.resolve() == HERE


def test_hundreds_of_callers_share_one_look_up(names: Names) -> None:
    names.may_answer.clear()
    waiting = [gevent.spawn(names.resolve, "hangs.example") for _ in range(300)]
    gevent.sleep(0)
    names.may_answer.set()
    gevent.joinall(waiting, timeout=PATIENCE)
    assert {thread.value for thread in waiting} == {HERE}
    assert names.asked == ["hangs.example"]


def test_a_hanging_look_up_blocks_no_other_name(names: Names) -> None:
    names.may_answer.clear()
    hanging = [gevent.spawn(names.resolve, f"hangs{n}.example") for n in range(100)]
    gevent.sleep(0)
    assert names.resolve("well.example") == HERE
    assert not any(thread.ready() for thread in hanging)
    with pytest.raises(NotSent, match="no answer within"):
        names.resolve("hangs0.example", timeout=0.01)
    names.may_answer.set()
    gevent.joinall(hanging, timeout=PATIENCE)


def test_hanging_look_ups_are_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_LOOK_UPS", 3)
    names.may_answer.clear()
    hanging = [gevent.spawn(names.resolve, f"hangs{n}.example") for n in range(3)]
    gevent.sleep(0)
    with pytest.raises(NotSent, match="too many") as caught:
        names.resolve("well.example")
    assert caught.value.code == "look_ups"  # no merchant's fault
    names.may_answer.set()
    gevent.joinall(hanging, timeout=PATIENCE)


def test_refreshes_that_hang_leave_places_for_first_look_ups(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of one provider's zone, whose name server hangs: all are served, and took every place."""
    monkeypatch.setattr(subject, "MAX_LOOK_UPS", 6)
    zone = [f"hangs{n}.example" for n in range(20)]
    for name in zone:
        names.resolve(name)
    names.may_answer.clear()
    names.now = FRESH + 1
    assert [names.resolve(name) for name in zone] == [HERE] * 20
    assert names.asked == [*zone, *zone[:3]]
    assert [names.resolve(f"well{n}.example") for n in range(5)] == [HERE] * 5


def test_an_address_needs_no_look_up(names: Names) -> None:
    assert names.resolve("192.0.2.7") == ((socket.AF_INET, "192.0.2.7"),)
    assert names.resolve("2001:db8::1") == ((socket.AF_INET6, "2001:db8::1"),)
    assert names.asked == []


def test_unused_names_are_forgotten(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "NAMES", 2)
    for host in ("a", "b", "c", "a"):
        names.resolve(host)
    assert names.asked == ["a", "b", "c", "a"]


def test_on_green_threads_the_real_resolver_needs_no_native_threads() -> None:
    assert ("127.0.0.1") in [address for _, address in Resolver().resolve("localhost", 5.0)]


class Channel:
    """c-ares' channel: goes by the name servers that were written when it was made."""

    destroyed = 0

    def __init__(self, _loop: Any) -> None:
        self.servers = Path(subject.NAME_SERVERS).read_text()

    def destroy(self) -> None:
        Channel.destroyed += 1


class GeventsResolver:
    """gevent's, of which each look-up answers with the name server's address."""

    cares_class = Channel

    def __init__(self) -> None:
        self.hub, self.params = gevent.get_hub(), dict[str, Any]()
        self.cares = Channel(None)

    def getaddrinfo(self, *_: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (self.cares.servers, 0))]


def test_a_change_of_the_machines_name_servers_is_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else no POS is found any more, until the worker is restarted."""
    servers = tmp_path / "resolv.conf"
    monkeypatch.setattr(subject, "NAME_SERVERS", str(servers))
    monkeypatch.setattr("gevent.resolver.ares.Resolver", GeventsResolver)
    monkeypatch.setattr(Channel, "destroyed", 0)
    now, found = 0.0, list[Any]()
    names = Resolver(now=lambda: now)
    for number in (1, 1, 2):
        servers.write_text(f"192.0.2.{number}")
        os.utime(servers, (number, number))
        found += names.resolve("pos.example", PATIENCE)
        now += STALE + 1
    assert [address for _, address in found] == ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
    gevent.sleep(0)
    assert Channel.destroyed == 1


def test_a_change_while_the_name_servers_are_read_is_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is emptied and then written, within a tick of its clock; and a channel that cannot be made is tried again."""
    servers = tmp_path / "resolv.conf"
    monkeypatch.setattr(subject, "NAME_SERVERS", str(servers))
    monkeypatch.setattr("gevent.resolver.ares.Resolver", GeventsResolver)

    def write(text: str) -> None:
        servers.write_text(text)
        os.utime(servers, (1, 1))

    def refuse() -> None:
        raise OSError("too many open files")

    follows, make = [partial(write, "192.0.2.1"), refuse], Channel.__init__

    def made(channel: Channel, loop: Any) -> None:
        make(channel, loop)
        if follows:
            follows.pop(0)()

    monkeypatch.setattr(Channel, "__init__", made)
    write("")
    now = 0.0
    names = Resolver(now=lambda: now)
    with pytest.raises(NotSent, match="too many open files"):
        names.resolve("pos.example", PATIENCE)
    now += NEGATIVE + 1
    assert [address for _, address in names.resolve("pos.example", PATIENCE)] == ["192.0.2.1"]


def test_gevents_resolver_repeats_its_look_ups_at_the_new_name_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real one, of which attributes are used: an upgrade that changes them is seen here."""
    file = tmp_path / "resolv.conf"
    monkeypatch.setattr(subject, "NAME_SERVERS", str(file))
    asked, answers = list[bytes](), False
    with green_socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        there = partial(Ares, servers=["127.0.0.1"], udp_port=port, timeout=PATIENCE)
        monkeypatch.setattr("gevent.resolver.ares.Resolver", there)

        def serve() -> None:
            while True:
                query, client = server.recvfrom(4096)
                asked.append(query)
                if answers:
                    server.sendto(answer_to(query), client)

        serving = gevent.spawn(serve)
        names = Resolver()
        first = gevent.spawn(names.resolve, "one.pos.example", PATIENCE)
        with gevent.Timeout(PATIENCE):
            while len(asked) < 2:
                gevent.sleep(0.001)
        file.write_text("")
        answers = True
        assert names.resolve("two.pos.example", PATIENCE) == HERE
        assert first.get(timeout=PATIENCE) == HERE
        serving.kill()


def answer_to(query: bytes) -> bytes:
    """A name server's: 192.0.2.1 is the only address of each name."""
    ends = query.index(b"\0", 12) + 5  # of the name, its type and its class
    has_one = query[ends - 4 : ends - 2] == b"\0\1"
    head = query[:2] + b"\x81\x80\0\1\0" + bytes([has_one]) + b"\0\0\0\0"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
    return head + query[12:ends] + record * has_one
