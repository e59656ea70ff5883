"""A ledger on green threads, as in a worker: ``python -m tests.ledger.green URL``.

It exits with 0 if all checks pass. A green thread ticks meanwhile: the ledger must not block
others.
"""

from gevent import monkey

from testkit.patience import PATIENCE

monkey.patch_all()

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
from gevent.event import Event
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from pos_gateway.attempt.gateway import off_the_loop
from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.database.psycopg_internals import wait_at_most
from pos_gateway.database.schema import metadata
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger import commits, writer
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.commits import GroupCommit
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Ended, Key, LeasedElsewhere
from pos_gateway.ledger.writer import Writer
from tests.ledger.lab import Rows, an_entry, claimed

Story = Callable[[Ledger, "Hold", Engine], None]
#: Turns that other green threads have at least while the ledger is blocked.
TURNS = 100
#: And while a server sleeps for 0.3 s: on a slow machine far fewer than one a millisecond, on a blocked
#: loop none.
FEW = 10


class Ticking:
    """Counts a green thread's turns."""

    def __init__(self) -> None:
        self.turns = 0
        self._thread = gevent.spawn(self._tick)

    def _tick(self) -> None:
        while True:
            # Not 0: a loop that never waits keeps the GIL, and a native thread hardly ever runs.
            gevent.sleep(0.001)
            self.turns += 1

    def stop(self) -> None:
        self._thread.kill()


@contextlib.contextmanager
def ticking() -> Iterator[Ticking]:
    tick = Ticking()
    gevent.sleep(0.001)
    yield tick
    tick.stop()


class Hold:
    """Blocks the next write inside the database driver until ``open`` is called.

    On SQLite in a function of the database, on a native thread; on PostgreSQL in a lock that the
    server waits for.
    """

    def __init__(self, engine: Engine, url: str) -> None:
        self._engine = engine
        self._other = open_database(url).connect()
        self._is_sqlite = engine.dialect.name == "sqlite"

    def close(self) -> None:
        lock = "begin immediate" if self._is_sqlite else "lock table orders in exclusive mode"
        if self._is_sqlite:
            driver: Any = self._other.connection.driver_connection
            driver.isolation_level = None
            driver.execute(lock)
        else:
            self._other.execute(text(lock))

    def open(self) -> None:
        driver: Any = self._other.connection.driver_connection
        driver.execute("rollback") if self._is_sqlite else self._other.rollback()


def a_slow_commit_blocks_no_other_thread(ledger: Ledger, hold: Hold, _engine: Engine) -> None:
    """A slow commit blocks no other green thread."""
    claim = claimed(ledger.claim(Key("m", "o"), send=True))
    hold.close()
    writing = gevent.spawn(ledger.finish, claim, an_entry(key=claim.key))
    with ticking() as tick:
        while tick.turns < TURNS:
            gevent.sleep(0.001)
        assert not writing.ready()
        hold.open()
        assert writing.get(timeout=PATIENCE) is True


def an_outcome_and_the_claim_that_follows_share_a_transaction(
    _ledger: Ledger, _hold: Hold, _engine: Engine
) -> None:
    """The order that gets the freed slot starts in the same turn of the loop, a little later."""
    transactions: list[list[Any]] = []

    def write(operations: Sequence[Any]) -> list[Any]:
        transactions.append(list(operations))
        return list(operations)

    group, place = GroupCommit(write), Event()

    def dispatch() -> None:
        place.wait()
        gevent.spawn(group, "the next one's claim").join()

    dispatcher = gevent.spawn(dispatch)
    group("something before, so that there is a thread")
    gevent.sleep(2 * commits.GATHER)
    place.set()
    group("an outcome")
    dispatcher.get()
    assert transactions[1:] == [["an outcome", "the next one's claim"]], transactions
    assert group.close()


def the_server_sleeps(ledger: Ledger, _hold: Hold, engine: Engine) -> None:
    """psycopg waits as green threads do, in the ledger's connection and in every other."""
    claimed(ledger.claim(Key("m", "o"), send=True))

    def sleep() -> None:
        with engine.connect() as connection:
            connection.execute(text("select pg_sleep(0.3)"))

    def write() -> None:
        def do(cursor: Any) -> None:
            cursor.execute("select pg_sleep(0.3)")

        ledger._writer.write(do)

    for do in (sleep, write):
        with ticking() as tick:
            thread = gevent.spawn(do)
            thread.get(timeout=PATIENCE)
            assert tick.turns > FEW, tick.turns


def a_silent_database_is_unavailable(_ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """A database that does not answer counts as unavailable, and the ledger reconnects."""
    answer, timeout = writer._ANSWER, module.CLAIM_TIMEOUT
    writer._ANSWER, module.CLAIM_TIMEOUT = 0.2, 0
    alone = Ledger(engine, run=off_the_loop(engine))
    hold.close()
    try:
        with ticking() as tick:
            alone.claim(Key("m", "o"), send=True)
    except LedgerUnavailable as error:
        assert "not answered for 0.2 s" in str(error)
        assert tick.turns > 1, tick.turns
    else:
        raise AssertionError("it was not away")
    hold.open()
    writer._ANSWER, module.CLAIM_TIMEOUT = answer, timeout
    claimed(alone.claim(Key("m", "p"), send=True))
    alone.close()


def a_silent_read_is_an_error(_ledger: Ledger, _hold: Hold, engine: Engine) -> None:
    """So it is on every other connection; other green threads run meanwhile."""
    with engine.connect() as connection:
        wait_at_most(connection.connection.driver_connection, 0.2)
        try:
            with ticking() as tick:
                connection.execute(text("select pg_sleep(60)"))
        except OperationalError as error:
            assert "not answered for 0.2 s" in str(error)
            assert tick.turns > 1, tick.turns
        else:
            raise AssertionError("it was not silent")
    with engine.connect() as connection:
        connection.execute(text("select 1"))


def each_statement_has_the_whole_timeout(_ledger: Ledger, _hold: Hold, engine: Engine) -> None:
    """The waits of earlier statements are not taken off."""
    answer, writer._ANSWER = writer._ANSWER, 3.0
    one = Writer(engine)
    for _ in range(8):
        one.write(lambda cursor: cursor.execute("select pg_sleep(0.5)").fetchall())
    one.close()
    writer._ANSWER = answer


def a_write_larger_than_the_sockets_buffer(ledger: Ledger, _hold: Hold, _engine: Engine) -> None:
    """Waiting until the socket is writable lets green threads run, too."""
    order = b"x" * 30_000_000
    with ticking() as tick:
        claimed(ledger.claim(Key("m", "o"), send=True, order=b'{"n": "%b"}' % order))
        assert tick.turns > 1, tick.turns
    assert ledger.order(Key("m", "o")) == b'{"n": "%b"}' % order


def killed_callers_do_not_affect_others(ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """Green threads are killed while they wait for the ledger: the others' operations succeed."""
    keys = [Key("m", f"o{n}") for n in range(30)]
    first = claimed(ledger.claim(Key("m", "first"), send=True))
    hold.close()
    writing = gevent.spawn(ledger.finish, first, an_entry(key=first.key))
    gevent.sleep(0.01)  # it is in the driver now, and these are in the next transaction
    threads = [gevent.spawn(ledger.claim, key, send=True) for key in keys]
    gevent.sleep(0.01)
    gevent.killall(threads[::3])
    hold.open()
    assert writing.get(timeout=PATIENCE) is True
    for n, thread in enumerate(threads):
        if n % 3:
            assert isinstance(thread.get(timeout=PATIENCE), Claim)
        else:
            again = ledger.claim(keys[n], send=True)  # the killed order's message is redelivered
            assert isinstance(again, Claim), again
            assert not again.history.may_be_there
    for n, thread in enumerate(threads):
        if n % 3:
            assert isinstance(ledger.claim(keys[n], send=True), LeasedElsewhere)
            assert ledger.finish(thread.value, an_entry(key=keys[n]))
    assert len(Rows(engine).events()) == 21


def a_killed_writer_leaves_the_connection_usable(
    ledger: Ledger, hold: Hold, engine: Engine
) -> None:
    """A green thread is killed in its own transaction (no thread commits for it)."""
    alone = Ledger(engine, run=off_the_loop(engine))
    claim = claimed(alone.claim(Key("m", "o"), send=True))
    for _ in range(3):
        hold.close()
        writing = gevent.spawn(alone.finish, claim, an_entry(key=claim.key))
        gevent.sleep(0.05)
        assert not writing.ready()
        writing.kill()
        hold.open()
    assert alone.finish(claim, an_entry(key=claim.key)) is True
    assert isinstance(alone.claim(claim.key, send=True), Ended)
    for n in range(20):  # every reply belongs to its query
        key = Key("m", f"p{n}")
        mine = claimed(alone.claim(key, send=True))
        assert mine.key == key
        assert alone.finish(mine, an_entry(key=key)) is True
    assert len(Rows(engine).events()) == 21
    alone.close()


def native_threads_and_green_ones_share_the_engine(
    ledger: Ledger, _hold: Hold, engine: Engine
) -> None:
    """Reads of the directory on the loop, of payloads off it, and the ledger's writes."""

    def deliver(n: int) -> None:
        key = Key("m", f"o{n}")
        claim = claimed(ledger.claim(key, send=True, order=b'{"n": %d}' % n))
        assert ledger.order(key) == b'{"n": %d}' % n
        with engine.connect() as connection:
            connection.execute(text("select count(*) from merchants")).scalar()
        assert ledger.finish(claim, an_entry(key=key))

    threads = [gevent.spawn(deliver, n) for n in range(200)]
    gevent.joinall(threads, timeout=PATIENCE, raise_error=True)
    assert all(thread.successful() for thread in threads)
    assert len(Rows(engine).events()) == 200


def an_outage_is_logged_and_prints_no_traceback(ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """A traceback on standard error for each retry would be another outage."""
    database._SQLITE_BUSY, module.CLAIM_TIMEOUT = 0.05, 0
    engine.dispose()
    ledger._writer.close()
    hold.close()
    try:
        ledger.claim(Key("m", "p"), send=True)
    except LedgerUnavailable:
        pass
    else:
        raise AssertionError("it was not away")
    hold.open()


ANYWHERE: list[Story] = [
    a_slow_commit_blocks_no_other_thread,
    an_outcome_and_the_claim_that_follows_share_a_transaction,
    killed_callers_do_not_affect_others,
    native_threads_and_green_ones_share_the_engine,
]
STORIES: dict[str, list[Story]] = {
    "sqlite": [*ANYWHERE, an_outage_is_logged_and_prints_no_traceback],
    "postgresql": [
        *ANYWHERE,
        the_server_sleeps,
        a_silent_database_is_unavailable,
        a_silent_read_is_an_error,
        each_statement_has_the_whole_timeout,
        a_write_larger_than_the_sockets_buffer,
        a_killed_writer_leaves_the_connection_usable,
    ],
}


def main(url: str) -> None:
    # No check needs a retry: where one is made, a caller waits in vain.
    commits.RETRY_AFTER = (1000.0, 1000.0)
    # A commit is slow here by a lock, which a batch else waits for no longer than 50 ms.
    module._SESSION = "set lock_timeout = 0"
    # The database may be slow: what has a limit sets one.
    writer._STATEMENT_TIMEOUT = writer._ANSWER = int(PATIENCE)
    for story in STORIES[open_database(url).dialect.name]:
        print(story.__name__, flush=True)
        engine = open_database(url)
        with engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
        ledger = Ledger(engine, run=off_the_loop(engine))
        ledger.start()
        with gevent.Timeout(PATIENCE):
            story(ledger, Hold(engine, url), engine)
        ledger.close()
        engine.dispose()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
