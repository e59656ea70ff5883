"""A site in the test's process, and one in a process of its own, with the trial view."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pos_gateway.server import reading
from pos_gateway.server.page import live
from testkit.servers.rabbitmq import RabbitMQ
from tests.page import trial
from tests.page.lab import Desk, desk
from tests.page.story_place import StoryPlace, story_place
from tests.server.lab import SOON, Server, migrated, serving

#: No broker listens there: the page does without.
NO_BROKER = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a read may stand still for longer than viewers are to wait."""
    for module in (live, reading):
        monkeypatch.setattr(module, "TIMEOUT", SOON)


@pytest.fixture
def with_trial() -> Iterator[None]:
    """Sites that are made have the trial view."""
    with trial.added():
        yield


@pytest.fixture
def page(database_url: str, with_trial: None) -> Iterator[Desk]:
    with desk(database_url) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest) -> str:
    """A migrated database of each kind."""
    wanted = {"sqlite": "database_url", "postgresql": "postgres_url"}[request.param]
    return migrated(request.getfixturevalue(wanted))


@pytest.fixture(scope="module")
def module_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite database with the schema for a file's tests."""
    return migrated(f"sqlite:///{tmp_path_factory.mktemp('page')}/gateway.db")


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that a file's tests share, without broker."""
    log: Path = tmp_path_factory.mktemp("log") / "server.log"
    module = "tests.page.serve_trial"
    with serving(NO_BROKER, module_database, log, is_ready=False, module=module) as server:
        yield server


@pytest.fixture(scope="module")
def place(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoryPlace]:
    """A server with the story and a broker, which a file's tests share."""
    with story_place(rabbitmq, tmp_path_factory.mktemp("story")) as found:
        yield found
