"""A server's view of the tokens: revocations, outages of the database, last uses."""

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.database.engine import open_database
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role, Token, digest, new_token
from pos_gateway.tokens.tokens import STALE_AFTER, WRITE_EVERY, Tokens
from tests.tokens.conftest import START, HandClock


class Interrupted(TokenStore):
    """A database that can be away, and counts the writes of uses."""

    is_away = False

    def __init__(self, engine: Engine, clock: HandClock) -> None:
        super().__init__(engine, clock)
        self.written: list[dict[str, float]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def all_valid(self) -> dict[str, Token]:
        self._connect()
        found = super().all_valid()
        self.meanwhile()
        return found

    def note_use(self, uses: Mapping[str, float]) -> None:
        self._connect()
        self.written.append(dict(uses))
        super().note_use(uses)

    def _connect(self) -> None:
        if self.is_away:
            raise OperationalError("select", {}, Exception("the database is away"))


@pytest.fixture
def server(engine: Engine, clock: HandClock) -> Interrupted:
    """The database, as one server sees it."""
    return Interrupted(engine, clock)


@pytest.fixture
def other_engine(engine: Engine) -> Iterator[Engine]:
    """Another process's connections to the same database."""
    other = open_database(engine.url.render_as_string(hide_password=False))
    yield other
    other.dispose()


@pytest.fixture
def token(store: TokenStore) -> str:
    return store.create("shop", Role.BACKEND, operator="kim")


def a_view(store: TokenStore, clock: HandClock) -> Tokens:
    tokens = Tokens(store, clock)
    tokens.refresh()
    return tokens


def test_a_valid_token_is_found_and_no_other(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = a_view(server, clock)
    assert tokens.find(token) == server.list()[0]
    for other in (new_token(), token[:-1], f"{token} ", "", digest(token), "\udcff"):
        assert tokens.find(other) is None


def test_a_revocation_is_seen_by_every_process_at_its_next_refresh(
    server: Interrupted, other_engine: Engine, store: TokenStore, clock: HandClock, token: str
) -> None:
    views = [a_view(server, clock), a_view(TokenStore(other_engine, clock), clock)]
    assert all(each.find(token) for each in views)
    store.revoke("shop", operator="kim")
    for each in views:
        each.refresh()
        assert each.find(token) is None
        assert each.problem is None


def test_a_new_token_is_found_after_the_next_refresh(server: Interrupted, clock: HandClock) -> None:
    tokens = a_view(server, clock)
    token = server.create("late", Role.VIEWER, operator="kim")
    assert tokens.find(token) is None
    tokens.refresh()
    assert tokens.find(token) is not None


def test_before_the_first_refresh_no_token_is_known_and_it_is_not_ready(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = Tokens(server, clock)
    assert tokens.find(token) is None
    assert tokens.problem == "the tokens have not been read from the database yet"
    server.is_away = True
    tokens.refresh()
    assert tokens.problem == "the tokens have not been read from the database yet"


def test_without_the_database_known_tokens_are_valid_for_ten_minutes_and_no_longer(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = a_view(server, clock)
    server.is_away = True
    with capture_logs() as logs:
        clock.seconds += STALE_AFTER
        tokens.refresh()
        assert tokens.find(token) is not None
        assert tokens.problem is None
        clock.seconds += 1
        tokens.refresh()
        assert tokens.find(token) is None
        assert tokens.problem == (
            "the tokens could not be read from the database for 601 s: none is valid"
        )
        server.is_away = False
        tokens.refresh()
    assert tokens.find(token) is not None
    assert tokens.problem is None
    assert [each["event"] for each in logs] == ["tokens.unavailable", "tokens.available"]


def test_a_refresh_that_hangs_makes_no_token_valid_for_longer(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    """Nothing calls it: its thread is in the one before."""
    tokens = a_view(server, clock)
    clock.seconds += STALE_AFTER + 1
    assert tokens.find(token) is None


def test_a_slow_refresh_counts_from_its_start(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    """What was revoked after the database was read is not in what was read."""

    def pass_time() -> None:
        clock.seconds += 30

    server.meanwhile = pass_time
    tokens = a_view(server, clock)
    clock.seconds += STALE_AFTER - 29
    assert tokens.find(token) is None


def test_a_step_of_the_time_of_day_makes_nothing_valid_or_invalid(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = a_view(server, clock)
    clock.step += 10 * STALE_AFTER
    assert tokens.find(token) is not None
    clock.step -= 20 * STALE_AFTER
    clock.seconds += STALE_AFTER + 1
    assert tokens.find(token) is None


def test_uses_are_written_once_a_minute_all_at_once(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    other = server.create("other", Role.VIEWER, operator="kim")
    tokens = a_view(server, clock)
    for _ in range(90):  # three minutes
        for each in (token, other, token, new_token()):
            tokens.find(each)
        tokens.refresh()
        clock.seconds += 2
    assert [{*each} for each in server.written] == [{digest(token), digest(other)}] * 3
    assert [each[digest(token)] for each in server.written] == [
        START,
        START + WRITE_EVERY,
        START + 2 * WRITE_EVERY,
    ]
    tokens.flush()
    assert {each.used_at for each in server.list()} == {START + 178}


def test_a_use_is_written_once(server: Interrupted, clock: HandClock, token: str) -> None:
    tokens = a_view(server, clock)
    tokens.find(token)
    for _ in range(100):
        tokens.refresh()
        clock.seconds += 2
    assert server.written == [{digest(token): START}]


def test_uses_of_an_outage_are_written_after_it(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = a_view(server, clock)
    tokens.find(token)
    server.is_away = True
    tokens.refresh()
    tokens.flush()
    clock.seconds += 2
    server.is_away = False
    tokens.refresh()
    assert [each.used_at for each in server.list()] == [START]


def test_a_failed_write_forgets_no_use_and_no_later_one(
    server: Interrupted, clock: HandClock, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = a_view(server, clock)
    tokens.find(token)

    def fail(_: object) -> None:
        clock.seconds += 1
        tokens.find(token)
        raise OperationalError("update", {}, Exception("the database is away"))

    with monkeypatch.context() as patched:
        patched.setattr(server, "note_use", fail)
        tokens.refresh()
    clock.seconds += WRITE_EVERY
    tokens.refresh()
    assert [each.used_at for each in server.list()] == [START + 1]


def test_threads_may_find_and_refresh_at_once(
    server: Interrupted, clock: HandClock, token: str
) -> None:
    tokens = a_view(server, clock)
    stopping, problems = threading.Event(), list[object]()

    def find() -> None:
        while not stopping.is_set():
            if tokens.find(token) is None:
                problems.append("not found")

    threads = [threading.Thread(target=find) for _ in range(4)]
    for each in threads:
        each.start()
    with capture_logs() as logs:
        for _ in range(20):
            clock.seconds += WRITE_EVERY
            tokens.refresh()
    stopping.set()
    for each in threads:
        each.join()
    assert not problems
    assert not logs


def test_a_token_is_in_no_repr_and_no_log_line(
    server: Interrupted, clock: HandClock, token: str, engine: Engine
) -> None:
    tokens = a_view(server, clock)
    found, listed = tokens.find(token), server.list()
    with engine.begin() as connection:
        connection.exec_driver_sql("drop table tokens")
    with capture_logs() as logs:
        tokens.refresh()
        tokens.flush()  # a statement that has the digest
    assert len(logs) == 2
    shown = f"{found!r} {listed!r} {tokens!r} {server!r} {logs!r}"
    assert token not in shown
    assert digest(token) not in shown
