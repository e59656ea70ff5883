"""A ledger on green threads, as the worker has it: ``python -m tests.ledger.green URL``.

It exits with 0 if all is well. A green thread ticks meanwhile: where the ledger is held up, the
others go on.
"""

from gevent import monkey

monkey.patch_all()

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
from gevent.event import Event
from sqlalchemy import Engine, text

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import metadata
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger import commits, writer
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.commits import GroupCommit
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Ended, Key, LeasedElsewhere
from pos_gateway.ledger.writer import Writer
from pos_gateway.processing.gateway import off_the_loop
from tests.ledger.lab import Rows, an_entry, claimed

Story = Callable[[Ledger, "Hold", Engine], None]
#: Turns that other green threads have at least while the ledger is held up.
TURNS = 100


class Ticking:
    """Counts the turns that a green thread has."""

    def __init__(self) -> None:
        self.turns = 0
        self._thread = gevent.spawn(self._tick)

    def _tick(self) -> None:
        while True:
            # Not 0: a loop that never waits for anything keeps the interpreter to itself, and a
            # native thread hardly ever gets it.
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
    """Holds the next write up inside the database driver until ``open`` is called.

    On SQLite in a function of the database's, on a native thread; on PostgreSQL in a lock that
    the server waits for.
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


def others_go_on(ledger: Ledger, hold: Hold, _engine: Engine) -> None:
    """A commit that takes its time takes nobody else's."""
    claim = claimed(ledger.claim(Key("m", "o"), send=True))
    hold.close()
    writing = gevent.spawn(ledger.finish, claim, an_entry(key=claim.key))
    with ticking() as tick:
        while tick.turns < TURNS:
            gevent.sleep(0.001)
        assert not writing.ready()
        hold.open()
        assert writing.get(timeout=30) is True


def an_outcome_takes_the_claim_along_that_follows_from_it(
    _ledger: Ledger, _hold: Hold, _engine: Engine
) -> None:
    """The order that gets its place begins in the same turn of the loop, and a little later."""
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
    """psycopg waits as green threads do, in the ledger's connection and in any other."""
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
            thread.get(timeout=30)
            assert tick.turns > TURNS, tick.turns


def silence_has_an_end(_ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """A database that does not answer counts as away, and is spoken to on another connection then."""
    answer, patience = writer._ANSWER, module.CLAIM_PATIENCE
    writer._ANSWER, module.CLAIM_PATIENCE = 0.2, 0
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
    claimed(alone.claim(Key("m", "p"), send=True))
    writer._ANSWER, module.CLAIM_PATIENCE = answer, patience
    alone.close()


def each_statement_has_all_of_its_time(_ledger: Ledger, _hold: Hold, engine: Engine) -> None:
    """What those before it have waited for is not taken off."""
    answer, writer._ANSWER = writer._ANSWER, 3.0
    one = Writer(engine)
    for _ in range(8):
        one.write(lambda cursor: cursor.execute("select pg_sleep(0.5)").fetchall())
    one.close()
    writer._ANSWER = answer


def more_than_a_socket_takes_at_once(ledger: Ledger, _hold: Hold, _engine: Engine) -> None:
    """What is written is then waited for, too, as green threads do."""
    order = b"x" * 30_000_000
    with ticking() as tick:
        claimed(ledger.claim(Key("m", "o"), send=True, order=b'{"n": "%b"}' % order))
        assert tick.turns > 1, tick.turns
    assert ledger.order(Key("m", "o")) == b'{"n": "%b"}' % order


def the_killed_lose_nobody_anything(ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """Green threads that are killed while they wait for the ledger: the others' are written."""
    keys = [Key("m", f"o{n}") for n in range(30)]
    first = claimed(ledger.claim(Key("m", "first"), send=True))
    hold.close()
    writing = gevent.spawn(ledger.finish, first, an_entry(key=first.key))
    gevent.sleep(0.01)  # it is in the driver now, and these are in the next transaction
    threads = [gevent.spawn(ledger.claim, key, send=True) for key in keys]
    gevent.sleep(0.01)
    gevent.killall(threads[::3])
    hold.open()
    assert writing.get(timeout=30) is True
    for n, thread in enumerate(threads):
        if n % 3:
            assert isinstance(thread.get(timeout=30), Claim)
        else:
            again = ledger.claim(keys[n], send=True)  # the killed one's message comes again
            assert isinstance(again, Claim), again
            assert not again.past.may_be_there
    for n, thread in enumerate(threads):
        if n % 3:
            assert isinstance(ledger.claim(keys[n], send=True), LeasedElsewhere)
            assert ledger.finish(thread.value, an_entry(key=keys[n]))
    assert len(Rows(engine).events()) == 21


def a_killed_writer_leaves_a_connection_in_step(ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """A green thread that is killed in the middle of its own transaction (no thread commits for it)."""
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
    for n in range(20):  # every answer is the one to its own question
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
    gevent.joinall(threads, timeout=60, raise_error=True)
    assert all(thread.successful() for thread in threads)
    assert len(Rows(engine).events()) == 200


def an_outage_is_said_in_the_log_alone(ledger: Ledger, hold: Hold, engine: Engine) -> None:
    """Tracebacks on standard error, one for each try, would be an outage's own outage."""
    database._SQLITE_BUSY, module.CLAIM_PATIENCE = 0.05, 0
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
    others_go_on,
    an_outcome_takes_the_claim_along_that_follows_from_it,
    the_killed_lose_nobody_anything,
    native_threads_and_green_ones_share_the_engine,
]
STORIES: dict[str, list[Story]] = {
    "sqlite": [*ANYWHERE, an_outage_is_said_in_the_log_alone],
    "postgresql": [
        *ANYWHERE,
        the_server_sleeps,
        silence_has_an_end,
        each_statement_has_all_of_its_time,
        more_than_a_socket_takes_at_once,
        a_killed_writer_leaves_a_connection_in_step,
    ],
}


def main(url: str) -> None:
    # Nothing here is to need a second try: where one is made, somebody waits in vain.
    commits.RETRY_AFTER = (1000.0, 1000.0)
    for story in STORIES[open_database(url).dialect.name]:
        print(story.__name__, flush=True)
        engine = open_database(url)
        with engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
        ledger = Ledger(engine, run=off_the_loop(engine))
        ledger.start()
        with gevent.Timeout(60):
            story(ledger, Hold(engine, url), engine)
        ledger.close()
        engine.dispose()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
