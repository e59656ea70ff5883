"""Behaviours of merchants' servers, on green threads: one, twice in turn, and 50 at once."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testkit.hostile.catalogue import CATALOGUE, DOUBT, Behaviour
from testkit.hostile.certificates import Certificates
from testkit.hostile.peer import Peer, a_reply, answers, peer

#: Seconds that an exchange may take, and one that ends by itself: a busy machine may take as long.
DEADLINE, PATIENCE = 0.4, 20.0
MANY = 50
#: MiB by which the process may grow, whatever the peers do.
GROWTH = 40


class Green:
    """The process that makes the exchanges."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.green"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.idle: float = self._line()["mib"]

    def play(self, url: str, times: int, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        job = {"url": url, "times": times, "seconds": DEADLINE, **job}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return self._line()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line


@pytest.fixture(scope="module")
def green() -> Iterator[Green]:
    green = Green()
    yield green
    green.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def server(behaviour: Behaviour, certificates: Certificates) -> Iterator[Peer]:
    with peer(behaviour.script, tls=certificates.context(behaviour)) as seen:
        yield seen


def job(behaviour: Behaviour, seen: Peer, certificates: Certificates) -> dict[str, Any]:
    scheme = "https" if behaviour.tls else "http"
    may_hang = behaviour.becomes in (DOUBT, "NotSent")
    return {
        "seconds": DEADLINE if may_hang else PATIENCE,
        "url": seen.url(scheme=scheme),
        "ca_file": certificates.file,
        "bytes": behaviour.body,
    }


NAMED = [pytest.param(behaviour, id=behaviour.name) for behaviour in CATALOGUE]


@pytest.mark.parametrize("behaviour", NAMED)
def test_each_behaviour_has_its_result_and_spoils_no_connection(
    behaviour: Behaviour, green: Green, certificates: Certificates
) -> None:
    with server(behaviour, certificates) as seen:
        result = green.play(times=1, again=1, **job(behaviour, seen, certificates))
        classes: Counter[str] = Counter()
        for what, times in result["came_of_them"].items():
            classes[what.split()[0]] += times  # its code may be another: time can be up before
        assert classes == {behaviour.becomes: 2}
        assert seen.connections == (1 if behaviour.reusable else 2)


@pytest.mark.parametrize("behaviour", NAMED)
def test_many_at_once_have_the_same_result(
    behaviour: Behaviour, green: Green, certificates: Certificates
) -> None:
    small = {**job(behaviour, Peer(0), certificates), "bytes": min(behaviour.body, 400_000)}
    with server(behaviour, certificates) as seen:
        small["url"] = job(behaviour, seen, certificates)["url"]
        small["seconds"] = max(small["seconds"], 2.5 * DEADLINE)
        result = green.play(times=MANY, **small)
    classes = {what.split()[0] for what in result["came_of_them"]}
    # Where many wait for one listener, some connect too late, or not at all.
    assert classes <= {behaviour.becomes, "NotSent"} | ({DOUBT} if behaviour.tls else set())
    assert behaviour.becomes in classes
    assert result["mib"] - green.idle <= GROWTH


def test_an_attempt_that_was_cut_short_starts_no_further_exchange(green: Green) -> None:
    """Between its look-up and its create, say: certainly not sent."""
    with peer(answers(a_reply())) as seen:
        result = green.play(seen.url(), times=1, cut_short=True)
        assert result["came_of_them"] == {"NotBegun cut_short": 1}
        assert seen.connections == 0
        assert green.play(seen.url(), times=1)["came_of_them"] == {"200": 1}
