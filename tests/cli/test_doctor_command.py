"""``pos-gateway doctor``: a line for each finding, and never a traceback."""

import json
import socket
import time
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
from kombu import Connection, Exchange, Queue
from psycopg import sql
from redis import Redis

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.cli import doctor
from pos_gateway.cli.doctor import check_metrics_port, check_patching, check_redis
from pos_gateway.cli.findings import Severity
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.states import State
from pos_gateway.runtime.vault import new_key
from pos_gateway.settings import Settings
from testkit.servers.postgresql import PostgreSQL, Standby
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli.books import Books
from tests.cli.conftest import PATIENCE, Orders, Program
from tests.reports.lab import Reports


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of green threads, which takes a second and a process."""
    checks = tuple(check for check in doctor.CHECKS if check[0] is not check_patching)
    monkeypatch.setattr(doctor, "CHECKS", checks)


def findings(stdout: str) -> list[str]:
    lines = stdout.splitlines()
    assert all(line[:6] in ("ok    ", "warn  ", "fail  ") for line in lines), stdout
    return lines


def test_a_gateway_that_is_set_up_is_all_well(connected: Program, orders: Orders) -> None:
    connected.invoke("db", "upgrade")
    connected.invoke("declare")
    record = '{"id": "m", "base_url": "https://pos.example.com"}'
    connected.invoke("merchants", "import", "-", stdin=record)
    done = connected.run("doctor")
    lines = findings(done.stdout)
    assert done.returncode == 0
    assert {line[:4] for line in lines} == {"ok  "}, lines
    assert "merchants: 1" in done.stdout
    assert "queue orders: 0 messages ready, 0 consumers" in done.stdout
    assert "gevent patches a worker before anything else" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_variable_of_celerys_that_a_worker_refuses_is_said(program: Program) -> None:
    done = program.invoke("doctor", CELERY_BROKER_URL="amqp://elsewhere")
    assert "warn  settings: CELERY_BROKER_URL names another broker" in done.stdout
    assert "CELERY_WORKER_CONCURRENCY" not in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_variable_of_celerys_that_sets_a_workers_slots_is_said(program: Program) -> None:
    """A deployment of Celery's may have left it behind: a worker with four slots, not with two hundred."""
    done = program.invoke("doctor", CELERY_WORKER_CONCURRENCY="4")
    assert "warn  settings: CELERY_WORKER_CONCURRENCY, Celery's --concurrency, is" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_broker_user_who_may_not_declare_is_well_if_all_queues_are_there(
    connected: Program, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    url = rabbitmq.add_user("few", broker_url, configure="")
    publisher = Publisher(broker_url)
    publisher.connect()
    lacking = connected.invoke("doctor", POS_GATEWAY_BROKER_URL=url).stdout
    assert "warn  queues for delays: not all there yet  -> a worker, or pos-gateway" in lacking
    publisher.close()
    assert connected.invoke("declare").exit_code == 0
    lines = findings(connected.invoke("doctor", POS_GATEWAY_BROKER_URL=url).stdout)
    found = [line for line in lines if line[6:].startswith(("broker", "exchange", "queue"))]
    assert {line[:4] for line in found} == {"ok  "}, found
    assert "queue orders (this user may not declare it: " in str(found)
    assert "ok    queues for delays" in found


@pytest.mark.usefixtures("unpatched")
def test_a_postgresql_that_loses_what_it_has_confirmed_is_said(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_DATABASE_PATIENCE", f"{PATIENCE:.0f}")
    with PostgreSQL(fsync="off") as primary, Standby(primary.url) as standby:
        url = {"POS_GATEWAY_DATABASE_URL": primary.url.replace("+psycopg", "")}
        assert program.invoke("db", "upgrade", **url).exit_code == 0
        lines = findings(program.invoke("doctor", **url).stdout)
        assert [line for line in lines if "database: " in line and "warn" in line] == [
            "warn  database: fsync is off: orders can be sent twice  -> fsync = on",
            "warn  database: its standby is asynchronous: a failover loses the last commits"
            "  -> synchronous_standby_names (docs/deploy.md)",
        ]
        primary.commit_with("*")
        primary.execute(sql.SQL("ALTER DATABASE postgres SET synchronous_commit = 'local'"))
        lines = findings(program.invoke("doctor", **url).stdout)
        assert "synchronous_commit is local" in str(lines)
        assert "asynchronous" not in str(lines)
        there = {"POS_GATEWAY_DATABASE_URL": standby.url.replace("+psycopg", "")}
        assert "cannot be used" in program.invoke("doctor", **there).stdout


@pytest.mark.usefixtures("unpatched")
def test_everything_that_is_wrong_is_said_at_once(program: Program) -> None:
    with socket.create_server(("", 0)) as taken:
        done = program.invoke(
            "doctor",
            POS_GATEWAY_SLOT="3",
            POS_GATEWAY_METRICS_PORT=str(taken.getsockname()[1]),
            POS_GATEWAY_REDIS_URL="redis://:hunter2@127.0.0.1:1",
            POS_GATEWAY_SLOTS="10000",
        )
    assert done.exit_code == 1
    lines = findings(done.stdout)
    for expected in (
        "fail  settings: POS_GATEWAY_SLOT=******** is not a setting; did you mean POS_GATEWAY_SLOTS?",
        "fail  broker: amqp://127.0.0.1:1// cannot be used",
        "there is no file",
        "fail  redis: redis://:********@127.0.0.1:1 cannot be used",
        "cannot be used: Address already in use",
    ):
        assert any(expected in line for line in lines), (expected, lines)
    assert all(" -> " in line for line in lines if not line.startswith("ok"))
    assert "hunter2" not in done.stdout
    assert not list(program.folder.iterdir()), "it made the database that it looked for"


@pytest.mark.usefixtures("unpatched")
def test_an_invalid_setting_skips_only_what_needs_it(program: Program) -> None:
    done = program.invoke("doctor", POS_GATEWAY_BROKER_URL="http://localhost")
    assert "fail  settings: POS_GATEWAY_BROKER_URL=http://localhost must start" in done.stdout
    assert "broker:" not in done.stdout
    assert "database:" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_programs_read_findings_as_json_lines(program: Program) -> None:
    done = program.invoke("doctor", "--json", POS_GATEWAY_BROKER_URL="http://localhost")
    first, *_ = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert first.keys() == {"level", "what", "advice"}
    assert (first["level"], first["advice"]) == ("fail", "pos-gateway settings")


@pytest.mark.usefixtures("unpatched")
def test_a_queue_of_another_type_fails(connected: Program, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        Queue("orders", durable=True).bind(connection.channel()).queue_declare()
    done = connected.invoke("doctor")
    assert done.exit_code == 1
    assert "fail  queue orders: has another type or other arguments" in done.stdout
    assert "warn  queue orders.dead: not there yet" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_stream_without_a_leader_fails(
    connected: Program, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    with Connection(broker_url) as connection:
        topology.declare(connection)
    rabbitmq.lose_leader(broker_url, topology.splits_stream.name)
    done = connected.invoke("doctor")
    assert done.exit_code == 1
    assert "fail  queue orders.canary.split: no node leads it" in done.stdout
    assert "start that node, or restart it if it runs" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_orders_without_a_consumer_are_a_warning(connected: Program, broker_url: str) -> None:
    publisher = Publisher(broker_url)
    for key in (topology.ORDERS_KEY, topology.CANARY_KEY, topology.DEAD_KEY):
        publisher.publish(Message("orders", key, b"{}", message_id=key))
    publisher.close()
    done = connected.invoke("doctor")
    # -Q orders would leave orders.canary without a worker.
    for queue in ("orders", "orders.canary"):
        alone = f"warn  queue {queue}: 1 messages ready, 0 consumers  -> no worker delivers these: "
        assert f"{alone}pos-gateway worker\n" in done.stdout
    dead = "warn  queue orders.dead: 1 messages ready, 0 consumers  -> these were dead-lettered: "
    assert f"{dead}pos-gateway dlq list" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_orders_that_need_an_operator_are_a_warning_with_the_command_to_run(
    program: Program, any_books: Books
) -> None:
    any_books.in_doubt("o-1")
    done = program.invoke("doctor")
    doubt = "warn  orders: 1 in doubt  -> pos-gateway orders list --state in_doubt"
    assert doubt in done.stdout
    in_clear = "warn  orders: kept in clear, with people's names in them  -> "
    assert f"{in_clear}set POS_GATEWAY_SECRET_KEY" in done.stdout
    key = new_key()
    with_key = program.invoke("doctor", POS_GATEWAY_SECRET_KEY=key)
    assert f"{in_clear}pos-gateway secrets rotate" in with_key.stdout
    assert program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=key).exit_code == 0
    assert "kept in clear" not in program.invoke("doctor", POS_GATEWAY_SECRET_KEY=key).stdout


@pytest.mark.usefixtures("unpatched")
def test_workers_that_report_and_take_no_order_are_a_failure(
    program: Program, books: Books
) -> None:
    Reports(books.engine).worker("one").report(consumers=0)
    done = program.invoke("doctor")
    assert done.exit_code == 1
    assert "fail  workers: No worker takes orders, though workers report" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_worker_without_cpu_is_a_warning_with_the_remedy(program: Program, books: Books) -> None:
    Reports(books.engine).worker("one").report(lacks_cpu=True, cores=0.5)
    done = program.invoke("doctor")
    assert "warn  workers: 1 of 1 worker has no CPU left (of 0.5 cores)" in done.stdout
    assert "pos-gateway plan" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_secrets_that_no_key_opens_and_the_orders_that_wait_for_it_are_failures(
    program: Program, books: Books
) -> None:
    key, other = new_key(), new_key()
    record = '{"id": "m", "base_url": "https://pos.example.com", "auth": {"type": "bearer", "token": "t"}}'
    sealed = {"POS_GATEWAY_SECRET_KEY": key}
    assert program.invoke("merchants", "import", "-", stdin=record, **sealed).exit_code == 0
    both = {"POS_GATEWAY_SECRET_KEY": f"{other},{key}"}
    for right in (sealed, both):
        assert "sealed with" not in program.invoke("doctor", **right).stdout
    for wrong in ("", other):
        done = program.invoke("doctor", POS_GATEWAY_SECRET_KEY=wrong)
        assert "fail  merchants: the secrets of 1 are sealed with a key that" in done.stdout
        assert "short passphrase" not in done.stdout
    assert "wait for a key" not in done.stdout
    short = program.invoke("doctor", POS_GATEWAY_SECRET_KEY=f"{key},abc")
    assert "warn  secrets: POS_GATEWAY_SECRET_KEY has a short passphrase" in short.stdout
    books.order("o-1", State.NEW, reason=Reason("secret_key", "no key"))
    done = program.invoke("doctor", **both)
    assert "fail  orders: 1 wait for a key: " in done.stdout
    assert done.exit_code == 1


@pytest.mark.usefixtures("unpatched")
def test_the_alert_hooks_settings_are_checked_and_nothing_is_sent(
    program: Program, tmp_path: Path
) -> None:
    def said(**settings: str) -> list[str]:
        done = program.invoke("doctor", **settings)
        return [line for line in findings(done.stdout) if "  alerts: " in line]

    secret = {"POS_GATEWAY_ALERT_SECRET": "whsec_" + "QUFB" * 8}
    assert said() == []
    [alone] = said(**secret)
    assert alone.startswith("warn  alerts: there is a secret, and no URL")
    with socket.create_server(("127.0.0.1", 0)) as receiver:
        port = receiver.getsockname()[1]
        url = {"POS_GATEWAY_ALERT_URL": f"http://127.0.0.1:{port}/hidden-path"}
        [well] = said(**url, **secret)
        assert well.startswith(f"ok    alerts: 127.0.0.1:{port} can be reached")
        with receiver.accept()[0] as connection:
            assert connection.recv(1) == b""  # closed without a byte
    for wrong, why in (
        ({}, "POS_GATEWAY_ALERT_SECRET: is needed with POS_GATEWAY_ALERT_URL"),
        ({"POS_GATEWAY_ALERT_SECRET": "short"}, "POS_GATEWAY_ALERT_SECRET: should be"),
        ({"POS_GATEWAY_ALERT_SECRET_FILE": str(tmp_path / "none")}, "none: No such file"),
    ):
        [line] = said(**url, **wrong)
        assert line.startswith("fail  alerts: ")
        assert why in line
        assert "hidden-path" not in line
    [away] = said(**url, **secret)
    assert away.startswith(f"warn  alerts: 127.0.0.1:{port} cannot be reached: ")
    assert "hidden-path" not in away


@pytest.mark.usefixtures("unpatched")
def test_a_file_that_is_no_database_is_not_said_to_be_unwritable(program: Program) -> None:
    path = program.folder / "other.db"
    path.write_text("not SQLite's" * 1000)
    done = program.invoke("doctor", POS_GATEWAY_DATABASE_URL=f"sqlite:///{path}")
    assert "file is not a database" in done.stdout
    assert "be able to write" not in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_a_broker_that_refuses_is_not_said_to_be_down(connected: Program, broker_url: str) -> None:
    parts = urlsplit(broker_url)
    wrong = f"amqp://guest:hunter2@{parts.hostname}:{parts.port}{parts.path}"
    done = connected.invoke("doctor", POS_GATEWAY_BROKER_URL=wrong)
    assert "it refuses this user or password (ACCESS_REFUSED)" in done.stdout
    assert "start RabbitMQ" not in done.stdout
    assert "hunter2" not in done.stdout
    nowhere = broker_url.removesuffix(parts.path) + "/no-such"
    done = connected.invoke("doctor", POS_GATEWAY_BROKER_URL=nowhere)
    assert "vhost no-such not found" in done.stdout
    assert "rabbitmqctl add_vhost" in done.stdout
    tls = f"amqps://{parts.netloc}{parts.path}"
    assert (
        "is that its port for TLS" in connected.invoke("doctor", POS_GATEWAY_BROKER_URL=tls).stdout
    )


@pytest.mark.usefixtures("unpatched")
def test_cancel_requests_that_nothing_ends_are_a_warning(
    program: Program, any_books: Books
) -> None:
    for order_id, ago in (("o-1", 3600.0), ("o-2", 7200.0), ("o-3", 30.0)):
        key = any_books.order(order_id, State.ACCEPTED)
        any_books.cancellation(key, State.NEW, deliver_by=time.time() - ago)
    ended = any_books.order("o-4", State.ACCEPTED)
    any_books.cancellation(ended, State.EXPIRED, deliver_by=time.time() - 9000)
    done = program.invoke("doctor")
    assert "warn  cancel requests: 2 unanswered, the oldest until 20" in done.stdout
    assert "pos-gateway cancel o-2 --merchant m-1" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_private_addresses_with_a_broker_elsewhere_are_a_warning(program: Program) -> None:
    done = program.invoke(
        "doctor",
        POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES="true",
        POS_GATEWAY_BROKER_URL="amqp://rabbit.invalid//",
    )
    assert "warn  private addresses are allowed, and the broker is at rabbit.invalid" in done.stdout


@pytest.mark.parametrize(
    ("body", "level"),
    [
        (b'{"ready": false, "reasons": []}', Severity.OK),
        (b"[1]", Severity.WARN),
        (b"\xff", Severity.WARN),
    ],
)
def test_a_metrics_port_that_a_worker_has_is_no_warning(
    body: bytes, level: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_METRICS_PATIENCE", PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        replying = Thread(target=_reply, args=(taken, body))
        replying.start()
        port = taken.getsockname()[1]
        [found] = check_metrics_port(Settings(metrics_host="127.0.0.1", metrics_port=port))
        replying.join()
    assert found.level is level


def _reply(server: socket.socket, body: bytes) -> None:
    with server.accept()[0] as connection:
        assert connection.recv(4096).startswith(b"GET /readyz ")
        connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_patching_that_comes_too_late_is_found(program: Program, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import urllib3\n")
    root = program.environment({})["PYTHONPATH"]
    done = program.run("doctor", PYTHONPATH=f"{tmp_path}:{root}")
    assert done.returncode == 1
    assert "fail  green threads: TLS" in done.stdout


def test_doctor_warns_of_a_redis_that_evicts(redis_url: str) -> None:
    settings = Settings.model_validate({"redis_url": redis_url})
    with Redis.from_url(redis_url) as client:
        for policy, warned in (("allkeys-random", True), ("noeviction", False)):
            client.config_set("maxmemory-policy", policy)
            assert warned is any(policy in each.what for each in check_redis(settings))


def test_doctor_needs_no_right_to_ask_redis_for_its_policy(redis_url: str) -> None:
    with Redis.from_url(redis_url) as client:
        client.acl_setuser("few", enabled=True, passwords=["+pw"], commands=["+@all", "-info"])
        url = redis_url.replace("redis://", "redis://few:pw@")
        try:
            found = [*check_redis(Settings.model_validate({"redis_url": url, "secret_key": "k"}))]
        finally:
            client.acl_deluser("few")
    assert [each.level for each in found] == [Severity.OK]


def test_without_a_key_doctor_says_what_workers_do_not_share(redis_url: str) -> None:
    def found(**settings: str) -> list[Severity]:
        return [
            each.level
            for each in check_redis(Settings.model_validate({"redis_url": redis_url, **settings}))
        ]

    assert found() == [Severity.OK, Severity.WARN]
    assert found(secret_key="k") == [Severity.OK]


# The broker's exchanges, and events.


@pytest.mark.usefixtures("unpatched")
def test_an_exchange_of_another_program_fails(connected: Program, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        Exchange("orders", type="fanout", durable=True).bind(connection.channel()).declare()
    done = connected.invoke("doctor")
    assert done.exit_code == 1
    assert "fail  exchange orders: is another program's" in done.stdout
    assert "-> use another vhost, or delete it" in done.stdout


@pytest.mark.usefixtures("unpatched")
def test_events_without_a_consumer_and_a_consumer_without_events_are_warnings(
    connected: Program, broker_url: str
) -> None:
    publisher = Publisher(broker_url)
    publisher.publish(Message("order-events", "order.accepted", b"{}", message_id="e-1"))
    publisher.close()
    queue = "queue order-events: 1 messages ready, 0 consumers"
    unread = connected.invoke("doctor").stdout
    assert f"warn  {queue}: RabbitMQ keeps these until its disk is full" in unread
    without = connected.invoke("doctor", POS_GATEWAY_EVENTS_TO_BROKER="false").stdout
    assert f"warn  {queue}, and no event comes there: POS_GATEWAY_EVENTS_TO_BROKER is" in without
    with Connection(broker_url) as connection, connection.channel() as channel:
        topology.events_queue.bind(channel).purge()
        assert f"ok    {queue.replace('1', '0')}" in connected.invoke("doctor").stdout
        with channel.Consumer([topology.events_queue]):
            waits = connected.invoke("doctor", POS_GATEWAY_EVENTS_TO_BROKER="false").stdout
    assert "0 messages ready, 1 consumers, and no event comes there" in waits
