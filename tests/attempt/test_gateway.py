"""What the composition root does by itself."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pos_gateway.attempt.decision import Decision, EventRecord
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker.queue_metrics import QueueMetrics
from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.events.pipeline import Pipeline
from pos_gateway.events.relay import EventRelay
from pos_gateway.ledger.states import Claim, Key
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import new_key
from pos_gateway.settings import Settings
from testkit.patience import PATIENCE
from tests.ledger.lab import an_entry
from tests.schema import make_tables
from tests.telemetry.collector import Collector
from tests.telemetry.lab import value

KEY = Key("m", "o")
ACCEPTED = Outcome(Kind.ACCEPTED)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    url = f"sqlite:///{tmp_path / 'pos_gateway.db'}"
    engine = open_database(url)
    make_tables(engine)
    engine.dispose()
    made: list[Gateway] = []

    def make(**settings: object) -> Gateway:
        fields = {"database_url": url, "broker_url": "memory://", "metrics_port": 0, **settings}
        made.append(Gateway(Settings.model_validate(fields)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("key", [None, new_key()], ids=["no key", "a key"])
def test_workers_share_only_encrypted_records_through_redis(
    make: Callable[..., Gateway], key: str | None
) -> None:
    gateway = make(redis_url="redis://127.0.0.1:1/0", secret_key=key)
    assert (gateway.shared is not None) is (key is not None)
    assert gateway.permits is not None, "limits have no secrets in them"


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the event publisher was woken."""
    said: list[str] = []
    for owner, name in ((EventRelay, "start"), (Pipeline, "wake")):
        monkeypatch.setattr(owner, name, lambda _, n=name: said.append(n))
    return said


def test_queues_are_read_without_a_metrics_port(
    make: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operations page and the alerts have their numbers from workers' reports."""
    asked = threading.Event()
    monkeypatch.setattr(QueueMetrics, "look", lambda _: asked.set())
    make(metrics_port=0, publish_events=False).start()
    assert asked.wait(PATIENCE)


#: A process uses its gateway, forks, and uses it again. The child does the same with its own.
FORKS = """
import gc, os, psutil
from pos_gateway.attempt import gateway

def used():
    gate = gateway.current()
    gate.publisher.connect()
    gate.ledger.catch_up()
    return gate.ledger.lease.worker

def connections():
    every = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in every if each.status == "ESTABLISHED"}

worker, before = used(), connections()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert used() == worker, "it is another worker since"
    assert len(before) == 2 and before <= connections(), "the child has ended a connection"
else:
    gc.collect()
    gateway.current().start()
    assert used() != worker, "it is its parent"
    gateway.current().stop()
    os._exit(0)
"""


def test_a_forked_process_makes_a_gateway_of_its_own(
    broker_url: str, postgres_url_with_tables: str
) -> None:
    """Under its parent's lease a child would take another child's orders for its own, and on one connection both
    would read each other's replies.
    """
    settings = {"DATABASE_URL": postgres_url_with_tables, "BROKER_URL": broker_url}
    environment = os.environ | {f"POS_GATEWAY_{name}": each for name, each in settings.items()}
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


#: A synchronous worker's parent looks at SQLite's file, forks, and closes it; its child then commits a claim.
FORKS_ON_SQLITE = """
import os, sqlite3
from celery import signals
from pos_gateway.attempt import gateway
from pos_gateway.celery import app
from pos_gateway.ledger.states import Key

gateway.current().check()
signals.worker_before_create_process.send(app)
(ready, is_ready), (closed, is_closed) = os.pipe(), os.pipe()
if child := os.fork():
    os.read(ready, 1)
    gateway.current().stop()
    os.write(is_closed, b"!")
    assert os.waitpid(child, 0)[1] == 0
    file = gateway.current().database.url.database
    assert sqlite3.connect(file).execute("select count(*) from orders").fetchone() == (1,)
else:
    ledger = gateway.current().ledger
    ledger.catch_up()
    os.write(is_ready, b"!")
    os.read(closed, 1)
    ledger.claim(Key("m", "o"), send=False)
    os._exit(0)
"""


def test_what_a_forked_process_commits_to_sqlite_is_there_once_its_parent_is_gone(
    tmp_path: Path,
) -> None:
    """A child that has a copy of its parent's connection takes no locks of its own: its log would be removed."""
    url = f"sqlite:///{tmp_path / 'pos_gateway.db'}"
    engine = open_database(url)
    make_tables(engine)
    engine.dispose()
    settings = {"DATABASE_URL": url, "BROKER_URL": "memory://"}
    environment = os.environ | {f"POS_GATEWAY_{name}": each for name, each in settings.items()}
    command = [sys.executable, "-c", FORKS_ON_SQLITE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_remaining_spans_are_exported_at_stop(
    make: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collector() as collector:
        for name, setting in collector.environment.items():
            monkeypatch.setenv(name, setting)
        gateway = make(tracing=True)
        assert gateway.tracing is not None
        gateway.tracing.start()
        with gateway.tracing.delivering(None):
            pass
        gateway.stop()
        assert [span.name for span in collector.spans] == ["deliver"]


def counted(outcome: str, provider: str = "none") -> float:
    return value("pos_gateway_orders_total", outcome=outcome, provider=provider)


def test_a_committed_outcome_is_counted_once_and_published_at_once(
    make: Callable[..., Gateway], woken: list[str]
) -> None:
    gateway, before = make(), (counted("accepted"), counted("failed"))
    claim = gateway.ledger.claim(KEY, send=True)
    assert isinstance(claim, Claim)
    entry = an_entry(Kind.ACCEPTED, key=KEY)
    assert gateway.commit(Decision(ACCEPTED, [(claim, entry)]))
    assert woken == ["wake"]
    late = Claim(KEY, claim.owner, claim.epoch + 1, claim.ticket, claim.history, sending=True)
    assert not gateway.commit(Decision(ACCEPTED, [(late, entry)]))  # leased elsewhere by now
    assert woken == ["wake"]
    other = Key("m", "none")
    record = EventRecord(other, an_entry(Kind.FAILED, key=other), b"{}")
    assert gateway.commit(Decision(ACCEPTED, event_records=[record]))
    assert woken == ["wake", "wake"]
    assert (counted("accepted"), counted("failed")) == (before[0] + 1, before[1] + 1)
    # A synchronous worker's child has a gateway of its own, and reports none of its parent's.
    assert (gateway.commit.outcomes, make().commit.outcomes) == ({"accepted": 1, "failed": 1}, {})


def test_outcomes_are_counted_by_the_merchants_provider(
    make: Callable[..., Gateway],
) -> None:
    gateway, before = make(), counted("accepted", "acme")
    merchant = {"id": "m", "provider": "acme", "base_url": "https://pos.example"}
    MerchantStore(gateway.database).put([Merchant.parse(merchant)])
    assert gateway.directory.provider_of("m") is None  # its record was not loaded yet
    gateway.directory.get("m")
    claim = gateway.ledger.claim(KEY, send=True)
    assert isinstance(claim, Claim)
    assert gateway.commit(Decision(ACCEPTED, [(claim, an_entry(Kind.ACCEPTED, key=KEY))]))
    assert counted("accepted", "acme") == before + 1


@pytest.mark.parametrize("publishes", [True, False])
def test_a_worker_publishes_events_unless_others_do(
    make: Callable[..., Gateway], woken: list[str], *, publishes: bool
) -> None:
    make(publish_events=publishes).start()
    assert woken == ["start"] * publishes
