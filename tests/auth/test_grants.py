"""Grants at a strict vendor with refresh tokens for a single use: no pair is lost, and none is fetched twice."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.exc import OperationalError

from pos_gateway.auth import tokens
from pos_gateway.auth.grant_store import (
    AHEAD,
    DUE_WITHIN,
    KEPT_FOR,
    GrantStore,
    Pair,
    StoredGrant,
    in_trouble,
)
from pos_gateway.auth.grants import LEASE, LEFT_ALONE, LOOK_BESIDE, Grants
from pos_gateway.auth.token_endpoint import DEFAULT_LIFETIME, MAX_TOKEN
from pos_gateway.auth.tokens import EARLY, PosTokens
from pos_gateway.database.schema import grants
from pos_gateway.domain.credentials import OAuth2Grant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.records import parse
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply, Request
from testkit.patience import PATIENCE
from testkit.vendors.clover.access import Access
from testkit.vendors.clover.refusal import Refusal

VAULT, HOUR, YEAR = Vault("a passphrase that is long enough"), 3600.0, 365 * 86_400.0
Answer = Callable[[dict[str, Any]], Reply]


class Away(GrantStore):
    """A database that can be away at the moment of storing."""

    is_away = False
    tried = 0

    def replace(self, found: StoredGrant, pair: Pair) -> bool:
        self.tried += 1
        if self.is_away:
            raise OperationalError("update", {}, Exception("away"))
        return super().replace(found, pair)


class World:
    """A vendor, a database, and workers with the clock of this test."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, 1000.0
        self.access = Access(lambda: datetime.now(UTC))
        #: The grant as the operator has it.
        self.first = self.access.pair()
        self.asked: list[dict[str, Any]] = []
        self.is_asked, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()
        #: In place of the vendor's answer, or of the vendor's true answer.
        self.answers: list[Answer] = []
        self.store = Away(engine, VAULT)

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.now(UTC)

    def worker(self) -> Grants:
        return Grants(self.store, self.fetch, self)

    def fetch(self, _: OAuth2Grant, request: Request) -> Reply:
        asked = json.loads(request.body or b"")
        self.asked.append(asked)
        self.is_asked.set()
        assert self.may_answer.wait(PATIENCE)
        return self.answers.pop(0)(asked) if self.answers else self.true_answer(asked)

    def true_answer(self, asked: dict[str, Any]) -> Reply:
        try:
            return reply(self.access.refresh(asked))
        except Refusal as refused:
            return Reply(refused.reply.status, {}, json.dumps(refused.reply.body).encode())

    def grant(self, pair: dict[str, Any] | None = None, **fields: Any) -> OAuth2Grant:
        return granted(pair or self.first, **fields)

    def wait(self, seconds: float) -> None:
        """Let time pass in the database, and here."""
        self.seconds += seconds
        with self.engine.begin() as connection:
            moments = ("expires_at", "due_at", "refreshed_at", "refresh_expires_at", "refused_at")
            earlier = {name: grants.c[name] - seconds for name in moments}
            connection.execute(update(grants).values(**earlier))

    def row(self, grant: OAuth2Grant) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(select(grants).where(grants.c.id == grant.grant_id)).one()


def reply(fields: Any, status: int = 200) -> Reply:
    return Reply(status, {}, json.dumps(fields).encode())


def granted(pair: dict[str, Any], **fields: Any) -> OAuth2Grant:
    known = {
        "type": "oauth2_grant",
        "token_url": "https://pos.example/oauth/v2/refresh",
        "client_id": Access.app_id,
        "refresh_token": pair["refresh_token"],
        "access_token": pair["access_token"],
        "expires_at": pair["access_token_expiration"],
        "refresh_expires_at": pair["refresh_token_expiration"],
    }
    given = {name: each for name, each in {**known, **fields}.items() if each is not None}
    return OAuth2Grant.model_validate(given)


def merchant(merchant_id: str, grant: OAuth2Grant, **fields: Any) -> Merchant:
    auth = grant.reveal()
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos", "auth": auth, **fields})


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    yield World(engine)
    failpoints.disarm()


def test_the_operators_token_is_used_and_refreshed_at_half_its_life(world: World) -> None:
    worker, grant = world.worker(), world.grant()
    found = worker.token(grant)
    assert found.value == world.first["access_token"]
    assert found.lasts / 2 == pytest.approx(found.due_in, abs=60)
    assert not world.asked
    world.wait(found.due_in)
    assert worker.token(grant).value == "access_token-2"
    assert world.worker().token(grant).value == "access_token-2"
    [asked] = world.asked
    assert asked == {
        "client_id": Access.app_id,
        "grant_type": "refresh_token",
        "refresh_token": world.first["refresh_token"],
    }
    row = world.row(grant)
    assert (row.version, row.refresher) == (2, None)
    assert not any("token-" in str(each) for each in row)


@pytest.mark.parametrize("given", ["expires_at", "access_token"])
def test_a_token_that_is_missing_or_of_unknown_end_is_refreshed_at_once(
    world: World, given: str
) -> None:
    grant = world.grant(**{given: None})
    assert world.worker().token(grant).value == "access_token-2"


def test_a_token_of_a_month_is_refreshed_within_a_week(world: World) -> None:
    month = int(datetime.now(UTC).timestamp() + 30 * 86_400)
    found = world.worker().token(world.grant(expires_at=month))
    assert found.due_in == pytest.approx(DUE_WITHIN, abs=5)


def test_of_many_workers_one_refreshes_and_the_others_go_on_with_the_present_token(
    world: World,
) -> None:
    grant, workers = world.grant(), [world.worker() for _ in range(5)]
    first = workers[0].token(grant)
    world.wait(first.due_in)
    world.may_answer.clear()
    with ThreadPoolExecutor(1) as threads:
        refreshed = threads.submit(workers[0].token, grant)
        assert world.is_asked.wait(PATIENCE)
        for each in workers[1:]:
            meanwhile = each.token(grant)
            assert (meanwhile.value, meanwhile.due_in) == (first.value, LOOK_BESIDE)
        world.may_answer.set()
        assert refreshed.result(PATIENCE).value == "access_token-2"
    assert {each.token(grant).value for each in workers} == {"access_token-2"}
    assert len(world.asked) == 1


def test_of_many_workers_without_a_token_one_refreshes_and_the_others_wait(world: World) -> None:
    grant = world.grant(access_token=None)
    world.may_answer.clear()
    with ThreadPoolExecutor(5) as threads:
        found = [threads.submit(world.worker().token, grant) for _ in range(5)]
        assert world.is_asked.wait(PATIENCE)
        world.may_answer.set()
        assert {each.result(PATIENCE).value for each in found} == {"access_token-2"}
    assert len(world.asked) == 1


def test_a_pair_that_dies_with_its_process_is_seen_by_an_operator_while_orders_go_on(
    world: World,
) -> None:
    grant, other = world.grant(), world.worker()
    MerchantStore(world.engine, vault=VAULT).put([merchant("m1", grant)])
    world.wait(world.worker().token(grant).due_in)
    failpoints.arm_all("grant.answered=raise")
    with pytest.raises(failpoints.Reached):
        world.worker().token(grant)
    failpoints.disarm()
    for seconds in (0.0, LEASE - 1):
        world.wait(seconds)
        assert other.token(grant).value == world.first["access_token"]
    assert len(world.asked) == 1, "the one that died may still be at work"
    world.wait(1)
    assert other.token(grant).value == world.first["access_token"]
    assert [each["refresh_token"] for each in world.asked] == [world.first["refresh_token"]] * 2
    assert "refused (the token endpoint answered 401); its access token" in (
        other.problem(grant) or ""
    )
    assert [each.merchant_id for each in in_trouble(world.engine, 9)] == ["m1"]
    world.wait(HOUR)
    with pytest.raises(Misconfigured, match="401"):
        other.token(grant)
    for _ in range(3):  # no process asks again at once
        with pytest.raises(Misconfigured, match="401"):
            world.worker().token(grant)
    assert len(world.asked) == 3
    brought = world.grant(world.access.pair())
    MerchantStore(world.engine, vault=VAULT).put([merchant("m1", brought)])
    assert other.token(brought).value == "access_token-3"
    assert not in_trouble(world.engine, 9)
    assert other.problem(brought) is None


def test_a_mark_of_a_process_that_is_at_work_is_not_taken_over(world: World) -> None:
    """Looks far apart see another mark each: both processes were alive."""
    grant, other = world.grant(), world.worker()
    world.wait(other.token(grant).due_in)
    found = world.store.read(grant)
    claimed = world.store.claim(found)
    assert claimed is not None
    assert world.store.claim(found) is None
    for seconds in (0, LEASE - 1):
        world.seconds += seconds
        assert other.token(grant).due_in == LOOK_BESIDE
    world.store.give_up(claimed, None)
    assert world.store.claim(world.store.read(grant))
    for seconds in (1, LEASE - 1):
        world.seconds += seconds
        assert other.token(grant).due_in == LOOK_BESIDE
    assert not world.asked
    world.seconds += 1
    assert other.token(grant).value == "access_token-2"


def test_a_process_that_is_paused_once_it_has_the_mark_asks_for_nothing(world: World) -> None:
    """Another one has taken the mark over: a refresh token is used once, and vendors may end a grant for the second time."""
    grant, other = world.grant(), world.worker()
    world.wait(other.token(grant).due_in)

    class Paused(GrantStore):
        def claim(self, found: StoredGrant) -> StoredGrant | None:
            claimed = super().claim(found)
            assert other.token(grant).due_in == LOOK_BESIDE
            world.seconds += LEASE
            assert other.token(grant).value == "access_token-2"
            return claimed

    paused = Grants(Paused(world.engine, VAULT), world.fetch, world)
    assert paused.token(grant).due_in == LOOK_BESIDE
    assert len(world.asked) == 1
    assert paused.token(grant).value == "access_token-2"


def test_a_new_pair_outlives_a_database_that_is_away(world: World) -> None:
    grant, worker = world.grant(access_token=None), world.worker()
    world.store.is_away = True
    with pytest.raises(NotSent, match="until the database has stored it"):
        worker.token(grant)
    stopped = threading.Thread(target=worker.stop)
    stopped.start()
    assert stopped.is_alive(), "its process waits until the pair is stored"
    world.store.is_away = False
    stopped.join(PATIENCE)
    assert not stopped.is_alive()
    assert {each.token(grant).value for each in (worker, world.worker())} == {"access_token-2"}
    assert len(world.asked) == 1


def test_a_pair_that_was_stored_unheard_is_used(world: World) -> None:
    grant, store = world.grant(access_token=None), world.store

    class Unheard(GrantStore):
        heard = False

        def replace(self, found: StoredGrant, pair: Pair) -> bool:
            done = store.replace(found, pair)
            if not self.heard:
                self.heard = True
                raise OperationalError("commit", {}, Exception("the connection is gone"))
            return done

    worker = Grants(Unheard(world.engine, VAULT), world.fetch, world)
    with pytest.raises(NotSent):
        worker.token(grant)
    worker.stop()
    assert worker.token(grant).value == "access_token-2"
    assert (len(world.asked), world.row(grant).version) == (1, 2)


def test_an_older_pair_never_replaces_a_newer_one(world: World) -> None:
    grant = world.grant()
    slow = world.store.claim(world.store.read(grant))
    assert slow is not None
    assert world.store.replace(slow, Pair("newer", "r-newer", HOUR, None))
    assert not world.store.replace(slow, Pair("older", "r-older", HOUR, None))
    world.store.give_up(slow, "refused, of a token that is replaced")
    found = world.store.read(grant)
    assert (found.access, found.refresh, found.version) == ("newer", "r-newer", 2)
    assert not found.refusal


@pytest.mark.parametrize(
    "is_refused", [False, True], ids=["reusable refresh token", "for a single use"]
)
def test_a_pair_that_is_stored_late_is_kept_until_there_is_a_newer_one(
    world: World, is_refused: bool
) -> None:
    """Its process could not store it for so long that another one has taken the mark over."""
    grant, store = world.grant(), world.store
    late, second = (store.claim(store.read(grant)) for _ in range(2))
    assert late is not None
    assert second is not None
    assert store.replace(late, Pair("late", "r-late", HOUR, None))
    if is_refused:
        store.give_up(second, "refused: the refresh token is used up")
    else:
        assert store.replace(second, Pair("newer", "r-newer", HOUR, None))
        assert not store.replace(late, Pair("late", "r-late", HOUR, None))
    found = store.read(grant)
    assert (found.access, found.refusal) == ("late" if is_refused else "newer", "")


def test_a_refresh_that_is_given_up_after_it_was_taken_over_does_not_lose_the_late_pair(
    world: World,
) -> None:
    grant, store = world.grant(), world.store
    late, second = (store.claim(store.read(grant)) for _ in range(2))
    assert late is not None
    assert second is not None
    store.give_up(second, "refused: the refresh token is used up")
    assert store.replace(late, Pair("late", "r-late", HOUR, None))
    assert (store.read(grant).access, store.read(grant).refusal) == ("late", "")


def test_grants_that_others_refresh_are_waited_for_with_one_look(world: World) -> None:
    """A read of each row five times a second took the connections with which merchants' records are read."""
    looks: list[set[str]] = []
    came = threading.Semaphore(0)

    class Counted(GrantStore):
        reads = 0

        def read(self, grant: OAuth2Grant) -> StoredGrant:
            self.reads += 1
            return super().read(grant)

        def marks(self, ids: Collection[str]) -> Mapping[str, tuple[int, str | None]]:
            marks = super().marks(ids)
            looks.append(set(ids))
            came.release()
            return marks

    polls = Polls(world.engine)
    counted = Counted(world.engine, VAULT, polls)
    every = [world.grant(world.access.pair(), access_token=None) for _ in range(20)]
    ids = {grant.grant_id for grant in every}
    assert len(ids) == len(every)
    claimed = [world.store.claim(world.store.read(grant)) for grant in every]
    worker = Grants(counted, world.fetch, world)
    with ThreadPoolExecutor(len(every)) as threads:
        waiting = [threads.submit(worker.token, grant) for grant in every]
        while not looks or looks[-1] != ids:
            assert came.acquire(timeout=PATIENCE)
        before = len(looks)
        for _ in range(2):
            assert came.acquire(timeout=PATIENCE)
        assert looks[before : before + 2] == [ids, ids]
        assert counted.reads == len(every)
        for number, each in enumerate(claimed):
            assert each is not None
            world.store.replace(each, Pair(f"theirs-{number}", f"r-{number}", HOUR, None))
        values = [each.result(PATIENCE).value for each in waiting]
    assert values == [f"theirs-{number}" for number in range(len(every))]
    assert counted.reads == 2 * len(every)
    assert not world.asked
    polls.close()


def test_an_operators_new_grant_and_a_refresh_of_the_old_one_leave_each_other_alone(
    world: World,
) -> None:
    old, new = world.grant(access_token=None), world.grant(world.access.pair())
    worker = world.worker()
    world.may_answer.clear()
    with ThreadPoolExecutor(1) as threads:
        refreshed = threads.submit(worker.token, old)
        assert world.is_asked.wait(PATIENCE)
        assert worker.token(new).value == "access_token-2"
        world.may_answer.set()
        assert refreshed.result(PATIENCE).value == "access_token-3"
    assert worker.token(new).value == "access_token-2"
    # The operator was wrong, and brings back the old one.
    assert worker.token(old).value == "access_token-3"
    assert len(world.asked) == 1


def test_other_fields_and_another_import_of_the_same_record_keep_the_tokens(world: World) -> None:
    store, grant = MerchantStore(world.engine, vault=VAULT), world.grant(access_token=None)
    store.put([merchant("m1", grant)])
    world.worker().token(grant)
    [record] = store.all()
    sealed = {name: each for name, each in store.row(record).items() if each is not None}
    again = parse(sealed, VAULT)
    edited = merchant("m1", world.grant(access_token=None, client_secret="another"))
    # The access token alone: its refresh token is used up already.
    another = merchant("m1", world.grant(access_token="another"))
    for each in (again, edited, another):
        store.put([each])
        assert isinstance(each.auth, OAuth2Grant)
        assert world.worker().token(each.auth).value == "access_token-2"
    assert len(world.asked) == 1


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
def test_a_database_clock_that_jumps_costs_one_refresh_at_most(world: World, jump: float) -> None:
    grant, worker = world.grant(), world.worker()
    before = worker.token(grant)
    world.wait(jump)
    value = before.value if jump < 0 else "access_token-2"
    for _ in range(3):
        assert worker.token(grant).value == value
    assert len(world.asked) == (jump > 0)
    # Where the database takes an ended token for a good one, the POS does not.
    assert worker.token(grant, rejected=value).value != value or jump > 0


def late(_: dict[str, Any]) -> Reply:
    raise NoValidReply("timeout", "no reply within 10 s")


LONG = "t" * (MAX_TOKEN + 1)
USELESS: dict[str, Answer] = {
    "hangs": late,
    "500": lambda _: reply({}, 500),
    "503 with tokens": lambda _: reply({"access_token": "a", "refresh_token": "r"}, 503),
    "a page": lambda _: Reply(200, {}, b"<html>"),
    "brackets": lambda _: Reply(200, {}, b"[" * 100_000),
    "a list": lambda _: reply([]),
    "no token": lambda _: reply({"expires_in": 3600}),
    "too long": lambda _: reply({"access_token": LONG, "expires_in": 3600}),
    "a line end": lambda _: reply({"access_token": "a\r\nX: 1"}),
    "another type": lambda _: reply({"access_token": "a", "token_type": "mac"}),
    "a number": lambda _: reply({"access_token": 7}),
}


@pytest.mark.parametrize("answer", USELESS.values(), ids=USELESS)
def test_an_answer_of_no_use_changes_nothing(world: World, answer: Answer) -> None:
    grant, worker = world.grant(), world.worker()
    before = worker.token(grant)
    world.wait(before.due_in)
    world.answers = [answer]
    assert worker.token(grant).value == before.value, "which is good for a while"
    world.wait(HOUR)
    world.answers = [answer]
    with pytest.raises(TransportError) as caught:
        worker.token(grant)
    assert not isinstance(caught.value, Misconfigured)
    assert LONG not in str(caught.value)
    assert worker.problem(grant) is None
    assert worker.token(grant).value == "access_token-2"


def test_a_refresh_token_without_a_usable_access_token_is_not_lost(world: World) -> None:
    grant, worker = world.grant(access_token=None), world.worker()
    world.answers = [lambda asked: reply({**world.access.refresh(asked), "access_token": LONG})]
    with pytest.raises(NotSent, match="no usable token"):
        worker.token(grant)
    assert worker.token(grant).value == "access_token-3"


@pytest.mark.parametrize(
    ("fields", "lasts"),
    [
        ({}, DEFAULT_LIFETIME),
        ({"expires_in": 600}, 600),
        ({"expires_in": "600"}, 600),
        ({"expires_in": -1}, DEFAULT_LIFETIME),
        ({"expires_in": float("nan")}, DEFAULT_LIFETIME),
        ({"expires_in": "soon"}, DEFAULT_LIFETIME),
        ({"expires_in": 1e308}, 10 * YEAR),
        ({"expires_at": "2001-01-01T00:00:00Z"}, DEFAULT_LIFETIME),
        ({"expires_at": "2001-01-01T00:00:00"}, DEFAULT_LIFETIME),
        ({"expires_at": {}}, DEFAULT_LIFETIME),
        ({"access_token_expiration": 10**400}, DEFAULT_LIFETIME),
    ],
)
def test_an_end_that_is_not_said_is_near(world: World, fields: Any, lasts: float) -> None:
    grant = world.grant(access_token=None)
    world.answers = [lambda _: reply({"access_token": "a", **fields})]
    found = world.worker().token(grant)
    assert found.lasts == pytest.approx(lasts, abs=PATIENCE)
    assert 0 < found.due_in <= DUE_WITHIN
    assert world.store.read(grant).refresh == world.first["refresh_token"]


def test_a_moment_is_heard_as_square_writes_it(world: World) -> None:
    until = datetime.fromtimestamp(datetime.now(UTC).timestamp() + HOUR, UTC)
    moment = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.answers = [lambda _: reply({"access_token": "a", "expires_at": moment})]
    found = world.worker().token(world.grant(access_token=None))
    assert found.lasts == pytest.approx(HOUR, abs=PATIENCE)


def test_a_pos_that_refuses_a_good_token_causes_one_early_refresh(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "green", lambda: True)
    grant, fetch = world.grant(), world.fetch
    every = [PosTokens(fetch, world, None, world.worker()) for _ in range(3)]
    old = {each.get(grant, PATIENCE) for each in every}
    assert old == {world.first["access_token"]}
    with ThreadPoolExecutor(30) as threads:
        found = [
            threads.submit(each.instead, grant, world.first["access_token"], PATIENCE)
            for each in every * 10
        ]
        assert {each.result(PATIENCE) for each in found} == {"access_token-2"}
    assert len(world.asked) == 1
    # The POS refuses the next one as well, and all others.
    for _ in range(3):
        assert {each.instead(grant, "access_token-2", PATIENCE) for each in every} == {None}
    # Nor does a worker whose clock is wrong.
    assert world.worker().token(grant, rejected="access_token-2").value == "access_token-2"
    assert len(world.asked) == 1
    world.wait(LEFT_ALONE)
    assert world.worker().token(grant, rejected="access_token-2").value == "access_token-3"


def test_a_token_is_used_until_shortly_before_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "green", lambda: True)
    grant = world.grant()
    pos_tokens = PosTokens(world.fetch, world, None, world.worker())
    lasts = world.worker().token(grant).lasts
    world.answers = [late] * 9
    assert pos_tokens.get(grant, PATIENCE) == world.first["access_token"]
    world.wait(lasts - EARLY - 1)
    assert pos_tokens.get(grant, PATIENCE) == world.first["access_token"]


def test_a_revoked_grant_is_told_and_asked_for_once_a_minute(world: World) -> None:
    grant, worker = world.grant(), world.worker()
    MerchantStore(world.engine, vault=VAULT).put(
        [merchant("m1", grant), merchant("m2", grant), merchant("p", grant, paused=True)]
    )
    world.wait(worker.token(grant).due_in)
    world.answers = [lambda _: reply({"error": "invalid_grant", "error_description": "x"}, 400)]
    assert worker.token(grant).due_in == LEFT_ALONE
    found = in_trouble(world.engine, 9)
    assert [each.merchant_id for each in found] == ["m1", "m2"]
    assert "(the token endpoint answered 400 invalid_grant)" in found[0].problem
    assert in_trouble(world.engine, 1) == found[:1]
    world.access.revoke()
    world.wait(LEFT_ALONE / 2)  # the database's own clock goes on
    worker.token(grant)
    assert len(world.asked) == 1
    world.wait(LEFT_ALONE / 2)
    worker.token(grant)
    assert len(world.asked) == 2


@pytest.mark.parametrize(
    ("lasts", "age", "is_told"),
    [
        (AHEAD - HOUR, YEAR - AHEAD, True),
        (AHEAD + HOUR, YEAR - AHEAD, False),
        (-HOUR, YEAR, True),
        (3 * 86_400, 86_400, False),  # a refresh token of four days: its end is never far
        (86_400, 3 * 86_400, True),
    ],
)
def test_the_end_of_a_refresh_token_is_told_days_ahead(
    world: World, lasts: float, age: float, is_told: bool
) -> None:
    grant, worker = world.grant(access_token=None), world.worker()
    MerchantStore(world.engine, vault=VAULT).put([merchant("m1", grant)])
    world.answers = [
        lambda _: reply({"access_token": "a", "refresh_token_expires_in": lasts + age})
    ]
    worker.token(grant)
    assert worker.problem(grant) is None
    world.wait(age)
    assert bool(worker.problem(grant)) is is_told
    assert bool(in_trouble(world.engine, 9)) is is_told


def test_a_first_grant_that_ends_within_days_is_told_at_once(world: World) -> None:
    end = int(datetime.now(UTC).timestamp() + 3 * 86_400)
    grant, worker = world.grant(refresh_expires_at=end), world.worker()
    worker.token(grant)
    assert worker.problem(grant) == "its grant ends in 3 days, unless it is refreshed before"


def test_tokens_are_sealed_anew_with_another_key(world: World) -> None:
    grant = world.grant()
    MerchantStore(world.engine, vault=VAULT).put([merchant("m1", grant)])
    world.worker().token(grant)
    both = Vault("another one that is long enough,a passphrase that is long enough")
    store = GrantStore(world.engine, both)
    assert store.count_stale() == 1
    assert [each.sealed for each in store.reseal()] == [1]
    assert store.count_stale() == 0
    assert [each.sealed for each in MerchantStore(world.engine, vault=both).reseal()] == [1]
    alone = Vault("another one that is long enough")
    anew = Grants(GrantStore(world.engine, alone), world.fetch, world)
    assert anew.token(grant).value == world.first["access_token"]
    with pytest.raises(NotSent) as caught:
        world.worker().token(grant)
    assert caught.value.code == "secret_key"
    [batch] = GrantStore(world.engine, Vault("a third one that is long enough")).reseal()
    assert (batch.sealed, len(batch.unopened)) == (0, 1)
    world.access.revoke()
    world.wait(HOUR)
    with pytest.raises(Misconfigured):
        anew.token(grant)
    assert [each.merchant_id for each in in_trouble(world.engine, 9)] == ["m1"]


def test_a_grant_that_no_merchant_has_is_kept_for_a_while(world: World) -> None:
    mistaken, good = world.grant(), world.grant(world.access.pair())
    MerchantStore(world.engine, vault=VAULT).put([merchant("m1", good)])
    worker = world.worker()
    for grant in (mistaken, good):
        worker.token(grant)
    world.wait(KEPT_FOR + 1)
    worker.token(world.grant(world.access.pair()))
    with world.engine.connect() as connection:
        kept = {row.id for row in connection.execute(select(grants.c.id))}
    assert good.grant_id in kept
    assert mistaken.grant_id not in kept


def test_a_database_that_is_away_is_no_fault_of_the_merchants(world: World) -> None:
    class Gone(GrantStore):
        def read(self, grant: OAuth2Grant) -> StoredGrant:
            raise OperationalError("select", {}, Exception("away"))

    worker = Grants(Gone(world.engine, VAULT), world.fetch, world)
    with pytest.raises(NotSent) as caught:
        worker.token(world.grant())
    assert caught.value.code == "database"


def test_on_green_threads_a_write_waits_for_sqlite_beside_the_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.auth.green", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
