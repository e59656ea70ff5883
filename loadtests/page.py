"""What the operations page costs its server: ``python -m loadtests.page``.

Fills a database with the story of the last hour, 100,000 orders and 10,000 merchants, starts a server on
it, and reads the CPU of the server's process: for each view, and with viewers who leave it open. On SQLite
and on PostgreSQL. Every figure is CPU, not time: other programs on the machine change little. Ends with 1
if the first view takes more than its target.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import requests
from sqlalchemy import Engine, text

from loadtests.viewers import logged_in
from loadtests.viewers import viewers as looking
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.page_screenshots import filled
from testkit.page_story import Story, seed
from testkit.servers.http_server import HttpServer
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ

#: Milliseconds of CPU for the first view.
TARGET = 200.0
PATHS = (
    *("/", "/merchants", "/merchants?find=north", "/merchants/{slow}", "/orders"),
    *("/merchants/{in_doubt}", "/in-doubt", "/dead-letters", "/runs", "/canary"),
)
#: Looks at each path after the first one, and the seconds between two: what is shared is read again.
LOOKS, PAUSE = 5, 1.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on both databases, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--merchants", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0, help="that viewers look")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    given = parser.parse_args(arguments)
    worst = 0.0
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        rabbitmq = stack.enter_context(RabbitMQ())
        for name in given.database or ("sqlite", "postgresql"):
            url = f"sqlite:///{folder}/gateway.db"
            if name == "postgresql":
                url = stack.enter_context(PostgreSQL(durable=False)).database()
            engine = open_database(url)
            upgrade(engine)
            began = time.process_time()
            broker_url = rabbitmq.add_vhost()
            story = seed(engine, broker_url, merchants=given.merchants, orders=given.orders)
            if name == "postgresql":
                _analyze(engine)
            token = TokenStore(engine).create("viewer", Role.VIEWER, operator="loadtests")
            print(
                f"\n{name}: {given.orders:,} orders, {given.merchants:,} merchants "
                f"(written in {time.process_time() - began:.0f} s of CPU)"
            )
            with HttpServer(broker_url, url) as server:
                worst = max(worst, _views(server, token, story))
                _viewers(server, token, engine, given.viewers, given.seconds)
            engine.dispose()
    print(f"\nthe first view: {worst:.0f} ms at most, wanted {TARGET:g}")
    return int(worst > TARGET)


def _views(server: HttpServer, token: str, story: Story) -> float:
    """Print the CPU of each view; returns that of the first one, cold."""
    first = 0.0
    print(f"{'view':<40} {'first, ms':>10} {'later, ms':>10} {'KiB':>6}")
    with logged_in(server.url, token) as session:
        for path in PATHS:
            cold, size = _look(server, session, filled(path, story))
            later = []
            for _ in range(LOOKS):
                time.sleep(PAUSE)
                later.append(_look(server, session, filled(path, story))[0])
            first = first or cold
            print(f"{path:<40} {cold:>10.1f} {median(later):>10.1f} {size / 1024:>6.0f}")
    return first


def _look(server: HttpServer, session: requests.Session, path: str) -> tuple[float, int]:
    """Milliseconds of the server's CPU for a page, and its bytes."""
    before = _cpu(server)
    reply = session.get(server.url + path, timeout=60)
    reply.raise_for_status()
    return 1000 * (_cpu(server) - before), len(reply.content)


def _viewers(server: HttpServer, token: str, engine: Engine, viewers: int, seconds: float) -> None:
    """Print the CPU of a second in which this many look at the first view."""
    print(f"{'viewers of the first view':<40} {'CPU, % of a core':>17} {'connections':>12}")
    with logged_in(server.url, token) as session:
        for number in (0, 1, viewers):
            with looking(server.url, session, number):
                time.sleep(3.0)  # their first parts are sent
                before, began = _cpu(server), time.monotonic()
                time.sleep(seconds)
                share = (_cpu(server) - before) / (time.monotonic() - began)
                held = _connections(engine)
            print(f"{number:<40} {100 * share:>17.1f} {held:>12}")


def _cpu(server: HttpServer) -> float:
    """Seconds of CPU of all its threads, to the nanosecond."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


def _connections(engine: Engine) -> str:
    """How many the server has to the database, where that tells."""
    if engine.dialect.name != "postgresql":
        return "—"
    engine.dispose()
    with engine.connect() as connection:
        query = "select count(*) - 1 from pg_stat_activity where datname = current_database()"
        return str(connection.execute(text(query)).scalar_one())


def _analyze(engine: Engine) -> None:
    """What autovacuum does in a minute."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("vacuum analyze"))


if __name__ == "__main__":
    sys.exit(main())
