"""What merchants' servers do, on green threads: one at a time, twice in turn, and 200 at once."""

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.transport.catalogue import CATALOGUE, DOUBT, Behaviour
from tests.transport.peer import Peer, peer

#: Seconds that an exchange may take.
DEADLINE = 0.4
MANY = 200
#: MiB by which the process may grow, whoever the peers are.
GROWTH = 64


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


class Certificates:
    """An authority that is trusted, one that is not, and what they have issued."""

    def __init__(self, folder: Path) -> None:
        self._known, self._unknown = trustme.CA(), trustme.CA()
        self.file = str(folder / "ca.pem")
        self._known.cert_pem.write_to_path(self.file)

    def context(self, behaviour: Behaviour) -> ssl.SSLContext | None:
        if behaviour.tls in ("", "none"):
            return None
        authority = self._unknown if behaviour.tls == "self-signed" else self._known
        host = "pos.example.com" if behaviour.tls == "other-host" else "127.0.0.1"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(context)
        if behaviour.context is not None:
            behaviour.context(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def server(behaviour: Behaviour, certificates: Certificates) -> Iterator[Peer]:
    with peer(behaviour.script, tls=certificates.context(behaviour)) as seen:
        yield seen


def job(behaviour: Behaviour, seen: Peer, certificates: Certificates) -> dict[str, Any]:
    scheme = "https" if behaviour.tls else "http"
    return {
        "url": seen.url(scheme=scheme),
        "ca_file": certificates.file,
        "bytes": behaviour.body,
    }


NAMED = [pytest.param(behaviour, id=behaviour.name) for behaviour in CATALOGUE]


@pytest.mark.parametrize("behaviour", NAMED)
def test_each_behaviour_is_what_it_is_taken_for_and_spoils_no_connection(
    behaviour: Behaviour, green: Green, certificates: Certificates
) -> None:
    with server(behaviour, certificates) as seen:
        result = green.play(times=1, again=1, **job(behaviour, seen, certificates))
        (what,) = result["came_of_them"]
        assert what.split()[0] == behaviour.becomes
        assert result["came_of_them"][what] == 2
        assert seen.connections == (1 if behaviour.reusable else 2)


@pytest.mark.parametrize("behaviour", NAMED)
def test_two_hundred_at_once_are_taken_for_the_same(
    behaviour: Behaviour, green: Green, certificates: Certificates
) -> None:
    small = {**job(behaviour, Peer(0), certificates), "bytes": min(behaviour.body, 400_000)}
    with server(behaviour, certificates) as seen:
        small["url"] = job(behaviour, seen, certificates)["url"]
        result = green.play(times=MANY, seconds=2.5 * DEADLINE, **small)
    classes = {what.split()[0] for what in result["came_of_them"]}
    # Where hundreds wait for one listener, some connect too late, or not at all.
    assert classes <= {behaviour.becomes, "NotSent"} | ({DOUBT} if behaviour.tls else set())
    assert behaviour.becomes in classes
    assert result["mib"] - green.idle <= GROWTH
