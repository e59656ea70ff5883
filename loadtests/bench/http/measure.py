"""Orders and callbacks over HTTP: the server on a core of its own, a backend beside it, in one run."""

import json
import socket
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from importlib.util import find_spec
from secrets import token_bytes
from statistics import median
from typing import Any

import psutil
import requests
from sqlalchemy import Engine
from standardwebhooks import Webhook

from loadtests.bench.candidate import WATCHED
from loadtests.bench.cores import nothing_pinned
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError, wait_for_consumer, wait_until
from loadtests.bench.worker import ROOT, Worker
from loadtests.bench.world import World, world
from pos_gateway.database.engine import open_database
from pos_gateway.domain.credentials import NoAuth
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Entry, Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import free_port
from testkit.servers.rabbitmq import RabbitMQ

NAME = "http"

#: What is wanted: orders a second of one core, singly and in batches; seconds at a steady rate.
SINGLE, BATCHED, P50, P99, BESIDE = 2500.0, 15_000.0, 0.005, 0.010, 1.3
#: Callbacks a second of one core: each applied, with its event.
CALLBACKS = 1000.0
#: MiB with these idle streams; seconds from an outcome to a stream.
STREAMS, STREAMS_MIB, EVENT_P95 = 2000, 150.0, 0.150
_RATE = 200.0
_STREAM = "/v1/events/stream"
_PATIENCE = 60.0
_MERCHANTS = [f"healthy-{number}" for number in range(200)]

OURS, BATCHES, PLAIN = "gateway", "gateway, batches of 100", "FastAPI with aio-pika"
STEADY = "gateway, 200/s"
#: With and without a worker, both on any core: on one of its own it would wait for the worker.
ALONE, DELIVERED = "gateway, 200/s, any core", "gateway, 200/s, any core, a worker delivers"
#: The same where all else may use any core, too: else RabbitMQ, PostgreSQL, merchants and backend
#: share one, and wait for one another while server and worker have room.
FREE, FREE_DELIVERED = "gateway, 200/s, no pinning", "gateway, 200/s, no pinning, a worker delivers"
CALLED = "gateway, callbacks"
_STAGES = ("preparing", "ready", "completed")


@dataclass(frozen=True, slots=True)
class Post:
    """How a backend posts."""

    orders: int
    batch: int = 1
    connections: int = 16
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run showed."""

    rate: float
    #: Seconds.
    p50: float
    p99: float
    #: Of the server's CPU, for an order.
    cpu: float

    @property
    def per_core(self) -> float:
        return 1 / self.cpu


@dataclass(frozen=True, slots=True)
class Round:
    """One round."""

    runs: Mapping[str, Seen]
    #: MiB of a server with ``STREAMS`` idle streams, and seconds to a stream.
    streams: float
    event_p95: float


def measure(servers: Servers, rounds: int, *, quick: bool) -> Sequence[Round]:
    """Play the rounds."""
    return [_round(servers, 4 if quick else 1) for _ in range(rounds)]


def report(rounds: Sequence[Round]) -> str:
    """The tables."""
    runs = {name: [each.runs[name] for each in rounds] for name in rounds[0].runs}
    lines = [
        [
            name,
            f"{median(each.rate for each in seen):,.0f}",
            f"{median(each.per_core for each in seen):,.0f}",
            f"{median(each.cpu for each in seen) * 1e3:.3f}",
            f"{median(each.p50 for each in seen) * 1e3:.1f}",
            f"{median(each.p99 for each in seen) * 1e3:.1f}",
        ]
        for name, seen in runs.items()
    ]

    def ratio(delivered: str, alone: str) -> list[float]:
        return [each.runs[delivered].p99 / max(each.runs[alone].p99, 1e-9) for each in rounds]

    wanted = [
        Verdict(
            f"{OURS}: orders/s of a core",
            [s.per_core for s in runs[OURS]],
            at_least=SINGLE,
            form=",.0f",
        ),
        Verdict(
            f"{BATCHES}: orders/s of a core",
            [s.per_core for s in runs[BATCHES]],
            at_least=BATCHED,
            form=",.0f",
        ),
        Verdict(
            f"{CALLED}: callbacks/s of a core",
            [s.per_core for s in runs[CALLED]],
            at_least=CALLBACKS,
            form=",.0f",
        ),
        Verdict(f"{STEADY}: p50, ms", [s.p50 * 1e3 for s in runs[STEADY]], at_most=P50 * 1e3),
        Verdict(f"{STEADY}: p99, ms", [s.p99 * 1e3 for s in runs[STEADY]], at_most=P99 * 1e3),
        Verdict(
            "no pinning: while a worker delivers: p99, ms",
            [s.p99 * 1e3 for s in runs[FREE_DELIVERED]],
            at_most=BESIDE * P99 * 1e3,
        ),
        Verdict(
            "no pinning: while a worker delivers / without: p99",
            ratio(FREE_DELIVERED, FREE),
            at_most=BESIDE,
        ),
        Verdict(
            "the rest on one core: while a worker delivers / without: p99",
            ratio(DELIVERED, ALONE),
            at_most=BESIDE,
        ),
        Verdict(
            f"{STREAMS:,} idle streams, MiB",
            [each.streams for each in rounds],
            at_most=STREAMS_MIB,
            form=".0f",
        ),
        Verdict(
            "from an outcome to a stream: p95, ms",
            [each.event_p95 * 1e3 for each in rounds],
            at_most=EVENT_P95 * 1e3,
            form=".0f",
        ),
    ]
    return section(
        f"{NAME}: orders of 1 KB over HTTP, confirmed by the broker; signed callbacks, stored",
        table(("", "a second", "of a core", "CPU ms", "p50 ms", "p99 ms"), lines),
        verdicts(wanted),
    )


def _round(servers: Servers, part: int) -> Round:
    runs: dict[str, Seen] = {}
    with world(servers, _MERCHANTS) as place, _server(place) as (server, url, token):
        _post(server, url, token, Post(1000))  # warms up
        runs[OURS] = _post(server, url, token, Post(20_000 // part))
        runs[BATCHES] = _post(server, url, token, Post(100_000 // part, batch=100, connections=4))
        runs[STEADY] = _post(server, url, token, Post(4000 // part, rate=_RATE))
    alone, delivered, p95 = _beside_a_worker(servers, part)
    runs |= {DELIVERED: delivered, ALONE: alone}
    with nothing_pinned(), RabbitMQ() as rabbitmq, PostgreSQL() as postgresql:
        alone, delivered, _ = _beside_a_worker(Servers(rabbitmq, postgresql), part)
        runs |= {FREE_DELIVERED: delivered, FREE: alone}
    if find_spec("aio_pika") is not None:  # `make bench` installs it
        with world(servers, _MERCHANTS) as place, _plain(place) as (server, url):
            _post(server, url, "none", Post(1000))
            runs[PLAIN] = _post(server, url, "none", Post(10_000 // part))
    with world(servers, _MERCHANTS) as place:
        runs[CALLED] = _callbacks(place, 4000 // part)
    with world(servers, _MERCHANTS) as place, _server(place) as (server, url, token):
        streams = _streams(server, url, token)
    return Round(runs, streams, p95)


def _beside_a_worker(servers: Servers, part: int) -> tuple[Seen, Seen, float]:
    """Without and with a worker that delivers; and seconds from an outcome to a stream (p95)."""
    with (
        world(servers, _MERCHANTS) as place,
        _server(place, is_alone=False) as (server, url, token),
    ):
        environment = WATCHED.environment(place, timeout=10.0)
        with Worker(WATCHED.command, environment, place.folder, is_alone=False) as worker:
            wait_for_consumer(place.broker_url, worker)
            _post(server, url, token, Post(200, rate=_RATE))  # warms up
            watch = _Stream(url, token)
            delivered = _post(server, url, token, Post(4000 // part, rate=_RATE))
            p95 = watch.p95(4000 // part)
        return _post(server, url, token, Post(4000 // part, rate=_RATE)), delivered, p95


def _callbacks(place: World, orders: int) -> Seen:
    """POSes say of accepted orders how far they are, in three calls each."""
    secret, key = new_key(), f"whsec_{b64encode(token_bytes(32)).decode()}"
    engine = open_database(place.database_url)
    store = MerchantStore(engine, vault=Vault(secret))
    auth = NoAuth.model_validate({"type": "none", "webhook_signature_key": key})
    records = [each.model_copy(update={"auth": auth}) for each in store.all()]
    store.put(records)
    accepted = list(_accepted(engine, records, orders))
    engine.dispose()
    calls = place.folder / "calls"
    with calls.open("w") as lines:
        for stage in _STAGES:
            for each in accepted:
                lines.write(json.dumps(_call(each, stage, Webhook(key))) + "\n")
    with _server(place, POS_GATEWAY_SECRET_KEY=secret) as (server, url, token):
        how = Post(orders * len(_STAGES))
        return _post(server, url, token, how, "--requests", str(calls), status=200)


def _accepted(engine: Engine, merchants: Sequence[Merchant], count: int) -> Iterator[Key]:
    """Orders in the ledger that their POSes have accepted."""
    ledger = Ledger(engine)
    for number in range(count):
        merchant = merchants[number % len(merchants)]
        key = Key(merchant.id, f"o-{number}")
        claim = ledger.claim(key, send=True, order=b"{}", endpoint=merchant.endpoint)
        assert isinstance(claim, Claim)
        event = dehydrated(key, Kind.ACCEPTED)
        ledger.finish(claim, Entry(State.ACCEPTED, time.time(), 1, event=event))
        yield key
    ledger.close()


def _call(key: Key, stage: str, webhook: Webhook) -> tuple[str, dict[str, str], str]:
    """A request of the POS: its path, headers and body."""
    now = datetime.now(UTC)
    said = {"type": f"order.{stage}", "order_id": key.order_id, "occurred_at": now.isoformat()}
    body, event_id = json.dumps(said), f"{key.order_id}-{stage}"
    headers = {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": webhook.sign(event_id, now, body),
        "content-type": "application/json",
    }
    return f"/v1/callbacks/rest/{key.merchant_id}", headers, body


@contextmanager
def _server(
    place: World, *, is_alone: bool = True, **settings: str
) -> Iterator[tuple[Worker, str, str]]:
    """A server, once it is ready; its URL, and a token."""
    engine = open_database(place.database_url)
    token = TokenStore(engine).create("bench", Role.BACKEND, operator="bench")
    engine.dispose()
    port = free_port()
    command = ["-P", "-m", "pos_gateway", "serve", "--port", str(port)]
    environment = place.environment | settings
    with Worker(command, environment, place.folder, is_alone=is_alone) as server:
        url = f"http://127.0.0.1:{port}"
        _wait(server, f"{url}/readyz")
        yield server, url, token


@contextmanager
def _plain(place: World) -> Iterator[tuple[Worker, str]]:
    port = free_port()
    command = ["-m", "uvicorn", "--port", str(port), "--no-access-log", "--log-level", "warning"]
    command += ["loadtests.baselines.plain_fastapi:app"]
    environment = {**place.environment, "PLAIN_BROKER_URL": place.broker_url}
    with Worker(command, environment, place.folder) as server:
        _wait(server, f"http://127.0.0.1:{port}/openapi.json")
        yield server, f"http://127.0.0.1:{port}"


def _wait(server: Worker, url: str) -> None:
    def answers() -> bool:
        server.check()
        try:
            return requests.get(url, timeout=5).status_code == 200
        except requests.ConnectionError:
            return False

    if not wait_until(answers, time.monotonic() + _PATIENCE):
        raise InvalidRunError("the server does not answer")


def _post(
    server: Worker, url: str, token: str, how: Post, *options: str, status: int = 202
) -> Seen:
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    seen = _client(url, token, how, *options)
    after = process.cpu_times()
    wanted = status if how.batch == 1 else 207
    if set(seen["statuses"]) != {str(wanted)}:
        raise InvalidRunError(f"not all orders were taken: {seen['statuses']}")
    cpu = after.user + after.system - before.user - before.system
    return Seen(how.orders / seen["seconds"], seen["p50"], seen["p99"], cpu / how.orders)


def _client(url: str, token: str, how: Post, *options: str) -> Any:
    command = [sys.executable, "-m", "loadtests.bench.http.client", f"{url}/v1/orders", token]
    command += [str(how.orders), "--connections", str(how.connections)]
    command += ["--batch", str(how.batch), "--rate", str(how.rate), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=False)
    if done.returncode:
        raise InvalidRunError(done.stderr.decode(errors="replace")[-500:])
    return json.loads(done.stdout)


class _Stream:
    """Reads a stream of events, and how late each comes."""

    def __init__(self, url: str, token: str) -> None:
        self._late: list[float] = []
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=_PATIENCE)
        self._connection.request("GET", _STREAM, headers={"authorization": f"Bearer {token}"})
        threading.Thread(target=self._read, daemon=True).start()

    def p95(self, count: int) -> float:
        """Of this many events, in seconds, once they have come."""
        if not wait_until(lambda: len(self._late) >= count, time.monotonic() + _PATIENCE):
            raise InvalidRunError(f"{len(self._late)} of {count} events came")
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        return sorted(self._late[:count])[int(count * 0.95)]

    def _read(self) -> None:
        # A chunk may end within a line, so the lines are those of the decoded body.
        with self._connection.getresponse() as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    occurred = datetime.fromisoformat(json.loads(line[6:])["occurred_at"])
                    self._late.append(time.time() - occurred.timestamp())


def _streaming(url: str, token: str) -> socket.socket:
    """A connection on which events are streamed from now on."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), _PATIENCE)
    connection.sendall(
        f"GET {_STREAM} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    )
    return connection


def _streams(server: Worker, url: str, token: str) -> float:
    """MiB of a server with ``STREAMS`` idle streams."""
    with ExitStack() as stack:
        for _ in range(STREAMS):
            connection = stack.enter_context(_streaming(url, token))
            connection.recv(65536)
        return psutil.Process(server.pid).memory_info().rss / 2**20
