"""Record this release under ``releases/``: ``python -m tests.compatibility.record``.

Done once, when a release is made, and committed with it; later releases are tested against the
recording. Needs PostgreSQL 15 or later, whose log can be JSON.
"""

import json
import re
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kombu import Connection
from sqlalchemy import Engine, event

from pos_gateway import __version__
from pos_gateway.broker import topology
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.engine import open_database, upgrade
from testkit.servers.postgresql import PostgreSQL, installed
from testkit.servers.rabbitmq import RabbitMQ
from tests.compatibility import scenario
from tests.compatibility.release import RELEASES

#: Statements of drivers and of SQLAlchemy.
_OURS = re.compile(r"\s*(with|select|insert|update|delete)\b", re.IGNORECASE)
_THEIRS = re.compile(r"pg_catalog|version\(\)|alembic|sqlite_|^\s*select 1\s*$", re.IGNORECASE)


def main() -> None:
    folder = RELEASES / __version__
    folder.mkdir(parents=True, exist_ok=True)
    _record_sqlite(folder)
    _record_postgresql(folder)
    with RabbitMQ() as broker:
        _write(folder / "messages.json", dict(on_the_wire(broker.url)))
    _write(folder / "queues.json", {q.name: q.queue_arguments for q in topology.QUEUES})
    print(folder)


def on_the_wire(broker_url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """This release's messages as the broker has them."""
    publisher = Publisher(broker_url)
    with Connection(broker_url) as connection:
        channel = connection.channel()
        for name, message in scenario.messages():
            publisher.publish(message)
            got = channel.basic_get(message.routing_key, no_ack=True)
            properties = {n: v for n, v in got.properties.items() if n != "timestamp"}
            headers = properties.pop("application_headers", {})
            headers.pop("x-delivery-count", None)  # the broker's
            body = got.body if isinstance(got.body, str) else got.body.decode()
            yield (
                name,
                {
                    "exchange": message.exchange,
                    "routing_key": message.routing_key,
                    "properties": properties,
                    "headers": headers,
                    "body": body,
                },
            )
    publisher.close()


def _record_sqlite(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        engine = open_database(f"sqlite:///{place}/gateway.db")
        upgrade(engine)
        with sqlite3.connect(f"{place}/gateway.db") as database:
            _schema(folder, "sqlite", "\n".join(_made(database)))
        said: list[str] = []
        with _listening(engine, said):
            scenario.play_on_database(engine)
        _tape(folder, "sqlite", [{"sql": sql} for sql in said])


def _made(database: sqlite3.Connection) -> Iterator[str]:
    for line in database.iterdump():
        if not re.match(r"BEGIN|COMMIT|DELETE FROM .sqlite_sequence", line):
            yield line


@contextmanager
def _listening(engine: Engine, said: list[str]) -> Iterator[None]:
    def listen(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(said.append)  # with the parameters filled in

    event.listen(engine, "connect", listen)
    engine.dispose()
    yield
    engine.dispose()


def _record_postgresql(folder: Path) -> None:
    logging = {"logging_collector": "on", "log_destination": "jsonlog", "log_statement": "all"}
    with PostgreSQL(durable=False, **logging) as server:
        url = server.database("gateway")
        engine = open_database(url)
        upgrade(engine)
        dump = [installed("pg_dump"), "--no-owner", "--inserts", url.replace("+psycopg", "")]
        dumped = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
        _schema(folder, "postgresql", dumped)
        before = len(list(_logged(server.folder)))
        scenario.play_on_database(engine)
        server.drop_connections()
        server.stop()  # all of its log is written then
        _tape(folder, "postgresql", list(_logged(server.folder))[before:])


def _logged(folder: Path) -> Iterator[dict[str, str]]:
    [log] = folder.glob("data/log/*.json")
    for line in log.read_text().splitlines():
        said = json.loads(line)
        kind, _, sql = said.get("message", "").partition(": ")
        if said.get("dbname") == "gateway" and re.match("statement|execute", kind):
            values = re.sub(r"\$\d+ = ", "", said.get("detail", "").partition("arameters: ")[2])
            yield {"sql": sql.strip(), **({"parameters": values} if values else {})}


def _schema(folder: Path, dialect: str, script: str) -> None:
    said = (line for line in script.splitlines() if line)
    kept = [line for line in said if not re.match(r"--|SET |SELECT pg_catalog|\\", line)]
    (folder / f"schema.{dialect}.sql").write_text("\n".join(kept) + "\n")


def _tape(folder: Path, dialect: str, said: list[Mapping[str, str]]) -> None:
    ours = [each for each in said if _OURS.match(each["sql"]) and not _THEIRS.search(each["sql"])]
    lines = [json.dumps({**each, "sql": " ".join(each["sql"].split())}) for each in ours]
    text = "\n".join(lines).replace(f"{socket.gethostname()}-", "worker-")  # in leases
    (folder / f"tape.{dialect}.jsonl").write_text(f"{text}\n")


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
