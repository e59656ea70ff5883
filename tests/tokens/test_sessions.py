"""Sessions of the page: the same on SQLite and on PostgreSQL, in every process."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, update

from pos_gateway.database import schema
from pos_gateway.tokens import session_store
from pos_gateway.tokens.act_store import ActResult, ActStore, Notice, act_id
from pos_gateway.tokens.session_store import IDLE, LASTS, SessionStore, csrf_token, session_digest
from pos_gateway.tokens.sessions import Session, Sessions
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role, Token, digest
from pos_gateway.tokens.tokens import STALE_AFTER, Tokens
from tests.tokens.conftest import HandClock


class Process:
    """One server process's memory."""

    def __init__(self, engine: Engine, clock: HandClock) -> None:
        self.tokens = Tokens(TokenStore(engine, clock), clock)
        self.sessions = Sessions(SessionStore(engine), self.tokens, clock)
        self.refresh()

    def refresh(self) -> None:
        self.tokens.refresh()
        self.sessions.refresh()

    def find(self, secret: str) -> Session | None:
        return self.sessions.find(secret)


@pytest.fixture
def one(engine: Engine, clock: HandClock) -> Process:
    return Process(engine, clock)


@pytest.fixture
def other(engine: Engine, clock: HandClock) -> Process:
    return Process(engine, clock)


def token(
    process: Process, store: TokenStore, name: str = "kim", role: Role = Role.VIEWER
) -> Token:
    text = store.create(name, role, operator="test")
    process.refresh()
    found = process.tokens.find(text)
    assert found is not None
    return found


def age(engine: Engine, **seconds: float) -> None:
    """Have the rows' times be so much earlier."""
    changes = {name: schema.sessions.c[name] - by for name, by in seconds.items()}
    with engine.begin() as connection:
        connection.execute(update(schema.sessions).values(changes))


def test_a_session_is_known_at_once_here_and_at_the_next_refresh_elsewhere(
    one: Process, other: Process, store: TokenStore
) -> None:
    kim = token(one, store)
    secret = one.sessions.start(kim)
    found = one.find(secret)
    assert found is not None
    assert (found.token, found.csrf) == (kim, csrf_token(secret))
    assert other.find(secret) is None
    other.refresh()
    assert other.find(secret) == found


def test_the_secret_is_stored_nowhere(one: Process, engine: Engine, store: TokenStore) -> None:
    secret = one.sessions.start(token(one, store))
    with engine.connect() as connection:
        tables = schema.metadata.tables.values()
        kept = repr([connection.execute(select(table)).all() for table in tables])
    assert session_digest(secret) in kept
    assert secret not in kept
    assert csrf_token(secret) not in kept
    assert secret not in repr(one.find(secret))
    assert csrf_token(secret) not in repr(one.find(secret))


def test_secrets_differ_and_are_random(one: Process, store: TokenStore) -> None:
    kim = token(one, store)
    secrets = {one.sessions.start(kim) for _ in range(20)}
    assert len(secrets) == 20
    assert {len(each) for each in secrets} == {43}


def test_an_ended_session_is_refused_at_once_here_and_soon_elsewhere(
    one: Process, other: Process, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    other.refresh()
    one.sessions.end(session_digest(secret))
    assert one.find(secret) is None
    other.refresh()
    assert other.find(secret) is None


def test_a_refresh_that_began_before_does_not_bring_an_ended_session_back(
    one: Process, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = one.sessions.start(token(one, store))
    live = one.sessions._store.live

    def reading() -> Any:
        found = live()
        one.sessions.end(session_digest(secret))
        return found

    monkeypatch.setattr(one.sessions._store, "live", reading)
    one.refresh()
    assert one.find(secret) is None


def test_a_refresh_while_a_session_is_being_ended_does_not_bring_it_back(
    one: Process, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = one.sessions.start(token(one, store))
    end = one.sessions._store.end

    def ending(digest: str) -> None:
        one.refresh()  # the row is there still
        end(digest)

    monkeypatch.setattr(one.sessions._store, "end", ending)
    one.sessions.end(session_digest(secret))
    assert one.find(secret) is None


def test_a_refresh_that_began_before_keeps_a_new_session(
    one: Process, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim, secrets = token(one, store), []
    live = one.sessions._store.live

    def reading() -> Any:
        found = live()
        secrets.append(one.sessions.start(kim))
        return found

    monkeypatch.setattr(one.sessions._store, "live", reading)
    one.refresh()
    assert one.find(secrets[0]) is not None


def test_a_login_ends_the_session_that_the_browser_had(one: Process, store: TokenStore) -> None:
    kim = token(one, store)
    first = one.sessions.start(kim)
    second = one.sessions.start(kim, replaces=first)
    one.refresh()
    assert one.find(first) is None
    assert one.find(second) is not None


def test_a_revoked_token_ends_its_sessions(one: Process, other: Process, store: TokenStore) -> None:
    secret = one.sessions.start(token(one, store))
    other.refresh()
    found = other.find(secret)
    assert found is not None
    store.revoke("kim", operator="test")
    other.refresh()
    assert other.find(secret) is None
    assert not other.sessions.is_valid(found)


def test_a_session_ends_after_twelve_hours_however_it_is_used(
    one: Process, engine: Engine, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    age(engine, created_at=LASTS - 60)
    one.refresh()
    assert one.find(secret) is not None
    age(engine, created_at=61.0)
    one.refresh()
    assert one.find(secret) is None


def test_a_session_ends_after_an_hour_without_a_use(
    one: Process, engine: Engine, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    age(engine, used_at=IDLE + 1)
    one.refresh()
    assert one.find(secret) is None


def test_a_use_puts_off_its_end_in_every_process(
    one: Process, other: Process, engine: Engine, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    age(engine, used_at=IDLE - 60)
    found = one.find(secret)
    assert found is not None
    one.sessions.touch(found)
    one.refresh()
    age(engine, used_at=IDLE - 60)
    other.refresh()
    assert other.find(secret) is not None


def test_a_use_does_not_revive_an_ended_session(
    one: Process, engine: Engine, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    found = one.find(secret)
    assert found is not None
    age(engine, used_at=IDLE + 1)
    one.sessions.touch(found)
    one.refresh()
    assert one.find(secret) is None


def test_a_session_ends_while_the_database_is_away(
    one: Process, engine: Engine, store: TokenStore, clock: HandClock
) -> None:
    """By this process's clock; and before that where no token is known to be valid any more."""
    secret = one.sessions.start(token(one, store))
    one.refresh()

    def away(*_: Any) -> None:
        raise OSError("away")

    event.listen(engine, "before_cursor_execute", away)
    clock.seconds += STALE_AFTER - 1
    one.refresh()
    assert one.find(secret) is not None
    one.tokens._stale_after = 10 * LASTS
    clock.seconds += IDLE
    one.refresh()
    assert one.find(secret) is None


def test_a_clock_that_is_set_back_gives_no_session_more_time(
    one: Process, engine: Engine, store: TokenStore
) -> None:
    secret = one.sessions.start(token(one, store))
    age(engine, created_at=-60.0)
    one.refresh()
    assert one.find(secret) is None


def test_a_backends_token_has_no_session(one: Process, store: TokenStore) -> None:
    """Even if its role was another one when it logged in."""
    secret = one.sessions.start(token(one, store, role=Role.BACKEND))
    assert one.find(secret) is None


@pytest.mark.parametrize("secret", ["", "a", "a" * 42, "a" * 44, "ü" * 43, "a" * 42 + "\n", None])
def test_what_is_no_secret_is_none(one: Process, secret: Any) -> None:
    assert one.sessions.find(secret) is None


def test_a_token_has_fifty_sessions_at_most(
    one: Process, engine: Engine, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_SESSIONS", 3)
    kim, kay = token(one, store), token(one, store, "kay")
    others = one.sessions.start(kay)
    secrets = []
    for _ in range(5):
        age(engine, created_at=1.0)  # SQLite's clock has milliseconds
        secrets.append(one.sessions.start(kim))
    one.refresh()
    assert [one.find(each) is not None for each in secrets] == [False, False, True, True, True]
    assert one.find(others) is not None


def test_logins_at_once_end_none_of_each_other(
    engine: Engine, one: Process, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another login commits before each statement of this one."""
    monkeypatch.setattr(session_store, "MAX_SESSIONS", 3)
    kim = token(one, store)
    old = [one.sessions.start(kim) for _ in range(3)]
    age(engine, created_at=60.0, used_at=60.0)
    fresh: list[str] = []
    others = SessionStore(engine.execution_options(other=True))

    def another(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        is_other = connection.get_execution_options().get("other")
        # SQLite has one writer: no other can begin once this one has written.
        may_begin = engine.dialect.name != "sqlite" or statement.startswith("INSERT")
        if not is_other and may_begin:
            fresh.append(others.start(kim.digest))

    event.listen(engine, "before_cursor_execute", another)
    fresh.append(one.sessions.start(kim))
    event.remove(engine, "before_cursor_execute", another)
    one.refresh()
    assert len(fresh) >= 2
    assert all(one.find(each) for each in fresh)
    assert not all(one.find(each) for each in old)


def test_sessions_that_a_clock_set_back_has_ended_make_room_first(
    one: Process, engine: Engine, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_SESSIONS", 3)
    kim = token(one, store)
    for _ in range(3):
        one.sessions.start(kim)
    age(engine, created_at=-60.0, used_at=-60.0)
    secrets = [one.sessions.start(kim) for _ in range(3)]
    one.refresh()
    assert all(one.find(each) for each in secrets)
    assert one.sessions._store.count() == 3


def test_ended_sessions_are_removed(one: Process, engine: Engine, store: TokenStore) -> None:
    kim = token(one, store)
    for _ in range(3):
        one.sessions.start(kim)
    age(engine, used_at=IDLE + 1)
    secret = one.sessions.start(kim)
    assert one.sessions._store.prune() == 3
    assert one.sessions._store.count() == 1
    one.refresh()
    assert one.find(secret) is not None


def test_a_token_is_not_named_by_its_session_alone(one: Process, store: TokenStore) -> None:
    kim = token(one, store)
    assert kim.digest != digest(one.sessions.start(kim))


def test_a_form_acts_once(engine: Engine) -> None:
    acts = ActStore(engine)
    of = act_id("session", "form")
    assert acts.begin(of) is None
    again = acts.begin(of)
    assert again is not None
    assert again.result is None
    acts.finish(of, ActResult.DONE, "Paused m1.", "/merchants")
    again = acts.begin(of)
    assert again is not None
    assert again[:3] == (ActResult.DONE, "Paused m1.", "/merchants")
    assert acts.begin(act_id("other", "form")) is None


def test_of_forms_at_the_same_time_one_acts(engine: Engine) -> None:
    acts, of = ActStore(engine), act_id("session", "form")
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: acts.begin(of), range(8)))
    assert results.count(None) == 1


def test_a_notice_is_taken_once(engine: Engine) -> None:
    acts, of = ActStore(engine), act_id("session", "form")
    assert acts.take_notice(of) is None
    acts.begin(of)
    assert acts.take_notice(of) is None
    acts.finish(of, ActResult.DONE, "Paused m1.", "/")
    assert (acts.take_notice(of), acts.take_notice(of)) == (Notice("Paused m1.", warns=False), None)


def test_words_that_the_table_refuses_leave_no_result_unknown(engine: Engine) -> None:
    acts, of = ActStore(engine), act_id("session", "form")
    acts.begin(of)
    acts.finish(of, ActResult.DONE, "Its POS says \0\ud800.", "/")
    found = acts.take_notice(of)
    assert found is not None and found.says == "Its POS says \N{SYMBOL FOR NULL}?."


def test_a_refusal_is_no_notice(engine: Engine) -> None:
    acts, of = ActStore(engine), act_id("session", "form")
    acts.begin(of)
    acts.finish(of, ActResult.REFUSED, "no")
    assert acts.take_notice(of) is None


def test_old_forms_are_removed(engine: Engine) -> None:
    acts = ActStore(engine)
    acts.begin("old")
    with engine.begin() as connection:
        change = update(schema.page_acts).values(at=schema.page_acts.c.at - 90_000)
        connection.execute(change)
    acts.begin("new")
    assert acts.earlier("old") is None
    assert acts.earlier("new") is not None
