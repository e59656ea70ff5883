"""Group commit: many callers' operations in one transaction, and a database that fails at times."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from traceback import walk_tb
from typing import Any

import pytest

from pos_gateway.domain.errors import LedgerLocked, LedgerUnavailable
from pos_gateway.ledger import commits
from pos_gateway.ledger.commits import GroupCommit, at_once
from tests.ledger.lab import SOON
from tests.telemetry.lab import value


class Database:
    """Writes its operations if it is available; a gate blocks a write until it is opened."""

    def __init__(self) -> None:
        self.transactions: list[list[Any]] = []
        self.tried: list[list[Any]] = []
        self.away = False
        #: Fails for this many more writes.
        self.failures = 0
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.poison: set[Any] = set()

    def write(self, operations: Sequence[Any]) -> list[Any]:
        self.tried.append(list(operations))
        self.entered.release()
        assert self.gate.wait(SOON)
        if self.away or self.failures:
            self.failures = max(0, self.failures - 1)
            raise LedgerUnavailable("it is away")
        if self.poison & set(operations):
            raise ValueError("it cannot be written")
        self.transactions.append(list(operations))
        return [f"{each} is written" for each in operations]

    @property
    def written(self) -> list[Any]:
        return [each for transaction in self.transactions for each in transaction]

    def is_tried(self, times: int = 1) -> None:
        """Wait until there were this many writes since the last wait."""
        for _ in range(times):
            assert self.entered.acquire(timeout=SOON)


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.001, 0.001))


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def commit(database: Database) -> Iterator[GroupCommit]:
    group = GroupCommit(database.write)
    yield group
    database.gate.set()
    assert group.close()


class Caller(threading.Thread):
    """A caller with an operation."""

    def __init__(
        self, commit: Callable[..., Any], operation: Any, timeout: float = inf, **options: Any
    ) -> None:
        super().__init__(daemon=True)
        self._commit = partial(commit, operation, timeout=timeout, **options)
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._commit()
        except Exception as error:  # noqa: BLE001
            self.result = error

    def came_to(self) -> Any:
        self.join(SOON)
        assert not self.is_alive(), "it still waits"
        return self.result


def callers(
    commit: GroupCommit, operations: Sequence[Any], timeout: float = inf, **options: Any
) -> list[Caller]:
    """Have them all wait, in this order."""
    present = len(commit._waiting)
    threads = []
    for number, each in enumerate(operations, start=present + 1):
        threads.append(Caller(commit, each, timeout, **options))
        _wait_until(lambda number=number: len(commit._waiting) >= number)
    return threads


def _wait_until(condition: Callable[[], bool]) -> None:
    tick = threading.Event()
    for _ in range(int(SOON * 1000)):
        if condition():
            return
        tick.wait(0.001)
    raise AssertionError("it has not come to it")


def test_an_operation_during_a_transaction_is_in_the_next_one(
    commit: GroupCommit, database: Database
) -> None:
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, range(1, 51))
    database.gate.set()
    assert first.came_to() == "0 is written"
    assert [each.came_to() for each in others] == [f"{n} is written" for n in range(1, 51)]
    assert database.transactions == [[0], list(range(1, 51))]


class Time:
    """Stands for the module ``time``; a sleep lasts until the gate is opened."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 1:
            return  # a yield to the others, before the first transaction
        self.entered.release()
        assert self.gate.wait(SOON)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    fake = Time()
    monkeypatch.setattr(commits, "time", fake)
    yield fake
    fake.gate.set()


def test_an_operation_soon_after_a_transaction_waits_and_the_first_one_does_not(
    database: Database, time: Time
) -> None:
    commit = GroupCommit(database.write)
    assert Caller(commit, 0).came_to() == "0 is written"
    others = callers(commit, [1, 2, 3])
    assert time.entered.acquire(timeout=SOON)
    assert database.transactions == [[0]]
    time.gate.set()
    for each in others:
        each.came_to()
    assert database.transactions == [[0], [1, 2, 3]]
    assert time.slept[:2] == [0, pytest.approx(commits.GATHER)]
    assert commit.close()


@pytest.mark.parametrize(("took", "left"), [(0.001, commits.GATHER - 0.001), (1.0, 0.0)])
def test_a_transactions_duration_counts_towards_the_gap_to_the_next(
    database: Database, time: Time, took: float, left: float
) -> None:
    def write(operations: Sequence[Any]) -> list[Any]:
        time.now += took
        return database.write(operations)

    commit = GroupCommit(write)
    Caller(commit, 0).came_to()
    second = Caller(commit, 1)
    assert time.entered.acquire(timeout=SOON)
    assert time.slept == [0, pytest.approx(left)]
    time.gate.set()
    second.came_to()
    assert commit.close()


def test_a_transaction_that_nothing_follows_is_followed_by_no_wait(
    database: Database, time: Time
) -> None:
    commit = GroupCommit(database.write)
    Caller(commit, 0).came_to()
    assert commit.close()
    assert time.slept == [0]


def test_a_transaction_takes_a_bounded_number_of_operations(
    commit: GroupCommit, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "MAX_OPERATIONS", 3)
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, range(1, 8))
    database.gate.set()
    for each in (first, *others):
        each.came_to()
    assert database.transactions == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_operations_during_an_outage_are_written_once_after_it(
    commit: GroupCommit, database: Database
) -> None:
    database.away = True
    threads = [Caller(commit, n) for n in range(20)]
    database.is_tried(50)
    assert all(each.is_alive() for each in threads)
    database.away = False
    assert sorted(each.came_to() for each in threads) == sorted(
        f"{n} is written" for n in range(20)
    )
    assert sorted(database.written) == list(range(20))


def test_a_failed_transactions_operations_are_retried_first(
    commit: GroupCommit, database: Database
) -> None:
    database.gate.clear()
    database.failures = 2
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, [1, 2, 3])
    database.gate.set()
    for each in (first, *others):
        each.came_to()
    assert database.tried == [[0], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_caller_whose_time_is_up_stops_waiting_and_the_others_wait(
    commit: GroupCommit, database: Database
) -> None:
    database.away = True
    patient, impatient = Caller(commit, "patient"), Caller(commit, "impatient", timeout=0)
    assert isinstance(impatient.came_to(), LedgerUnavailable)
    database.is_tried(3)
    assert patient.is_alive()
    database.away = False
    assert patient.came_to() == "patient is written"
    assert database.transactions == [["patient"]]


def test_an_unwritable_operation_fails_alone(commit: GroupCommit, database: Database) -> None:
    database.poison = {3, 5}
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, range(1, 8))
    database.gate.set()
    first.came_to()
    results = [each.came_to() for each in others]
    assert [n for n, each in enumerate(results, 1) if isinstance(each, ValueError)] == [3, 5]
    assert sorted(database.written) == [0, 1, 2, 4, 6, 7]


def test_an_unwritable_operation_fails_alone_also_if_the_database_fails_meanwhile(
    database: Database,
) -> None:
    # One by one: 1 is written, at 2 the database fails, and recovers.
    visits = 0

    def write(operations: Sequence[Any]) -> list[Any]:
        nonlocal visits
        visits += 1
        if visits == 4:
            raise LedgerUnavailable("it is away")
        return database.write(operations)

    commit = GroupCommit(write)
    database.poison = {3}
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, [1, 2, 3, 4])
    database.gate.set()
    first.came_to()
    results = [each.came_to() for each in others]
    assert [n for n, each in enumerate(results, 1) if isinstance(each, ValueError)] == [3]
    assert sorted(database.written) == [0, 1, 2, 4]
    assert commit.close()


def test_close_writes_pending_operations_and_accepts_no_more(database: Database) -> None:
    commit = GroupCommit(database.write)
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, [1, 2])
    closing = threading.Thread(target=commit.close)
    closing.start()
    _wait_until(commit._closing.is_set)
    with pytest.raises(LedgerUnavailable, match="going down"):
        commit(3)
    database.gate.set()
    closing.join(SOON)
    assert [each.came_to() for each in (first, *others)] == [f"{n} is written" for n in range(3)]
    assert commit.close()


def test_close_ends_waits_while_the_database_is_unavailable(database: Database) -> None:
    commit = GroupCommit(database.write)
    database.away = True
    threads = [Caller(commit, n) for n in range(5)]
    database.is_tried(3)
    assert commit.close()
    assert all(isinstance(each.came_to(), LedgerUnavailable) for each in threads)


def test_close_before_anything_was_written_is_harmless(database: Database) -> None:
    assert GroupCommit(database.write).close()


def test_no_caller_is_forgotten_while_the_database_fails_and_recovers(
    database: Database,
) -> None:
    """Native threads switch at any instruction; here they do so often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    commit = GroupCommit(database.write)

    def rush(name: int) -> None:
        for n in range(200):
            if n % 20 == 0:
                database.failures += 2
            try:
                commit((name, n), timeout=inf if n % 3 else 0)
            except LedgerUnavailable:
                ended.append((name, n))

    ended: list[Any] = []
    threads = [threading.Thread(target=rush, args=[n], daemon=True) for n in range(8)]
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join(SOON)
        assert not any(each.is_alive() for each in threads), "a caller waits for ever"
    finally:
        sys.setswitchinterval(before)
    written = database.written
    assert len(written) == len(set(written))
    assert {*written, *ended} == {(name, n) for name in range(8) for n in range(200)}
    assert not set(written) & set(ended)
    assert commit.close()


def test_no_caller_waits_for_ever_during_close(database: Database) -> None:
    for _ in range(100):
        commit = GroupCommit(database.write)
        threads = [Caller(commit, n) for n in range(4)]
        assert commit.close()
        for each in threads:
            result = each.came_to()
            assert isinstance(result, LedgerUnavailable | str), result


def test_callers_of_one_failed_transaction_share_no_traceback(
    commit: GroupCommit, database: Database
) -> None:
    database.gate.clear()
    first = Caller(commit, 0, 0)
    database.is_tried()
    waiting = callers(commit, range(1, 4), timeout=0)
    database.away = True
    database.gate.set()
    first.came_to()
    errors = [each.came_to() for each in waiting]
    assert [str(each) for each in errors] == ["it is away"] * 3
    callers_in = [
        sum(frame.f_code is Caller.run.__code__ for frame, _ in walk_tb(each.__traceback__))
        for each in errors
    ]
    assert callers_in == [1] * 3


class Locking(Database):
    """A database in which another session has locked what some operations write."""

    def __init__(self, *, is_named: bool = True) -> None:
        super().__init__()
        self.locked: set[Any] = set()
        self._is_named = is_named

    def write(self, operations: Sequence[Any]) -> list[Any]:
        met = self.locked & set(operations)
        if met:
            self.tried.append(list(operations))
            raise LedgerLocked(
                "it is locked", [each for each in operations if each in met and self._is_named]
            )
        return super().write(operations)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_locked_operation_waits_and_the_others_are_written(is_named: bool) -> None:
    database = Locking(is_named=is_named)
    commit = GroupCommit(database.write)
    database.gate.clear()
    first = Caller(commit, "first")
    database.is_tried()
    database.locked = {3, 8}
    others = callers(commit, range(10))
    database.gate.set()
    assert first.came_to() == "first is written"
    for number in {*range(10)} - database.locked:
        assert others[number].came_to() == f"{number} is written"
    assert not database.locked & set(database.written)
    database.locked = set()
    assert [others[each].came_to() for each in (3, 8)] == ["3 is written", "8 is written"]
    assert commit.close()


def test_a_lock_that_has_no_name_is_found_by_trying_each_order_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.001, SOON))
    database = Locking(is_named=False)
    commit = GroupCommit(database.write, order_of=lambda operation: operation[0])
    database.gate.clear()
    first = Caller(commit, "f1")
    database.is_tried()
    database.locked = {"a1"}
    b1, a1, a2, c1 = callers(commit, ["b1", "a1", "a2", "c1"])
    database.gate.set()
    assert [each.came_to()[:2] for each in (first, b1, c1)] == ["f1", "b1", "c1"]
    assert database.tried == [["f1"], ["b1", "a1", "a2", "c1"], ["b1"], ["a1"], ["c1"]]
    database.locked = set()
    assert commit.close()
    assert [each.came_to()[:2] for each in (a1, a2)] == ["a1", "a2"]
    assert database.tried[5:] == [["a1", "a2"]]


def test_no_later_operation_of_an_order_is_written_before_a_locked_one() -> None:
    database = Locking()
    commit = GroupCommit(database.write, order_of=lambda operation: operation[0])
    database.locked = {"a1"}
    first = Caller(commit, "a1")
    _wait_until(lambda: len(database.tried) > 0)
    later = Caller(commit, "a2")
    assert [Caller(commit, f"b{n}").came_to() for n in range(5)] == [
        f"b{n} is written" for n in range(5)
    ]
    database.locked = set()
    assert (first.came_to(), later.came_to()) == ("a1 is written", "a2 is written")
    assert [each for each in database.written if each[0] == "a"] == ["a1", "a2"]
    assert commit.close()


def test_a_locked_operations_wait_ends_with_its_time_or_the_process() -> None:
    database = Locking()
    commit = GroupCommit(database.write)
    database.locked = {1, 2}
    with pytest.raises(LedgerLocked):
        commit(1, timeout=0)
    waiting = Caller(commit, 2)
    _wait_until(lambda: [2] in database.tried)
    assert commit(3) == "3 is written"
    assert commit.close()
    assert isinstance(waiting.came_to(), LedgerLocked)
    assert database.written == [3]


# Without a thread


def test_without_a_thread_an_outage_is_waited_for_until_the_time_limit(
    database: Database,
) -> None:
    commit = at_once(database.write)
    database.failures = 5
    assert commit(1) == "1 is written"
    assert database.tried == [[1]] * 6
    database.away = True
    with pytest.raises(LedgerUnavailable):
        commit(2, timeout=0)
    assert database.transactions == [[1]]


def test_without_a_thread_an_unwritable_operation_fails_at_once(database: Database) -> None:
    database.poison = {1}
    with pytest.raises(ValueError, match="cannot be written"):
        at_once(database.write)(1)
    assert database.tried == [[1]]


def test_transactions_are_timed_and_their_writes_and_failures_counted(
    commit: GroupCommit, database: Database
) -> None:
    names = ("commit_seconds_count", "commit_writes_count", "commit_writes_sum", "failures_total")

    def counted() -> list[float]:
        return [value(f"pos_gateway_ledger_{name}") for name in names]

    before = counted()
    database.gate.clear()
    first = Caller(commit, 0)
    database.is_tried()
    others = callers(commit, range(1, 6))
    database.failures = 1  # the first one fails, and is then written with the others
    database.gate.set()
    for each in (first, *others):
        assert "is written" in each.came_to()
    commit.close()  # the thread counts after it has answered the callers
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 6, 1]


def test_large_operations_share_a_transaction_with_few_others(database: Database) -> None:
    """Each is serialized without a yield."""
    half = commits.MAX_BYTES // 2
    commit = GroupCommit(database.write, int)
    database.gate.clear()
    operations = [0, half, half, 2 * half, 1, half, 0, half - 1]
    first = Caller(commit, operations[0])
    database.is_tried()
    waiting = [first, *callers(commit, operations[1:])]
    database.gate.set()
    assert [each.came_to() for each in waiting] == [f"{each} is written" for each in operations]
    assert database.transactions == [[0], [half, half], [2 * half], [1, half, 0, half - 1]]
    assert commit.close()


@pytest.fixture
def patiently(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCommit]:
    """Commits whose patient operations wait for as long as a test lasts."""
    monkeypatch.setattr(commits, "LINGER", SOON)
    monkeypatch.setattr(commits, "RECENT", SOON)
    group = GroupCommit(database.write)
    yield group
    database.gate.set()
    assert group.close()


def busy(commit: GroupCommit, database: Database) -> None:
    """Two operations that are not patient have just come, each in its transaction."""
    for number in (1, 2):
        assert commit(number) == f"{number} is written"
    database.is_tried(2)


def test_a_patient_operation_shares_the_next_ones_transaction(
    patiently: GroupCommit, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingering, wait = threading.Semaphore(0), commits._Waiting.is_settled_within

    def linger(waiting: Any, seconds: float) -> bool:
        lingering.release()
        return wait(waiting, seconds)

    monkeypatch.setattr(commits._Waiting, "is_settled_within", linger)
    busy(patiently, database)
    patient = [Caller(patiently, each, is_patient=True) for each in (-1, -2)]
    for _ in patient:
        assert lingering.acquire(timeout=SOON)
    assert patiently(3) == "3 is written"
    assert [each.came_to() for each in patient] == ["-1 is written", "-2 is written"]
    assert [sorted(each) for each in database.transactions] == [[1], [2], [-2, -1, 3]]


def test_a_patient_operation_without_others_is_written_at_once(
    patiently: GroupCommit, database: Database
) -> None:
    assert patiently(-1, is_patient=True) == "-1 is written"
    assert patiently(1) == "1 is written"
    # One has come, and promises no other.
    assert patiently(-2, is_patient=True) == "-2 is written"
    assert database.transactions == [[-1], [1], [-2]]


def test_a_patient_operation_does_not_wait_for_others_that_do_not_come(
    patiently: GroupCommit, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(patiently, database)
    monkeypatch.setattr(commits, "LINGER", 0.001)
    assert patiently(-1, is_patient=True) == "-1 is written"


def test_a_patient_operation_is_written_although_its_caller_was_killed(
    patiently: GroupCommit, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As a green thread is."""

    def die(*_: object) -> bool:
        raise Killed

    busy(patiently, database)
    monkeypatch.setattr(commits._Waiting, "is_settled_within", die)
    with pytest.raises(Killed):
        patiently(-1, is_patient=True)
    database.is_tried()
    _wait_until(lambda: database.written == [1, 2, -1])


def test_close_writes_a_patient_operation(patiently: GroupCommit, database: Database) -> None:
    busy(patiently, database)
    [patient] = callers(patiently, [-1], is_patient=True)
    assert patiently.close()
    assert patient.came_to() == "-1 is written"


def test_a_patient_operation_is_retried_when_the_database_is_back(
    patiently: GroupCommit, database: Database
) -> None:
    busy(patiently, database)
    [patient] = callers(patiently, [-1], is_patient=True)
    database.failures = 2
    assert patiently(3) == "3 is written"
    assert patient.came_to() == "-1 is written"


def test_a_thread_that_could_not_be_started_is_started_by_the_next_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without, every later operation would wait for ever."""
    database = Database()
    group = GroupCommit(database.write)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            group("lost")
    assert group("o") == "o is written"
    assert database.written == ["o"]
    assert group.close()
