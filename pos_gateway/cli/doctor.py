"""``pos-gateway doctor``: runs every check, one line for each finding."""

import errno
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import click
from sqlalchemy import Engine, and_, func, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.alerts.sender import sender_of
from pos_gateway.auth.grant_store import in_trouble
from pos_gateway.cli import options
from pos_gateway.cli.database import is_barred, reason, require_exists
from pos_gateway.cli.doctor_broker import check_broker
from pos_gateway.cli.doctor_server import check_server
from pos_gateway.cli.findings import Check, CheckResult, Severity, fail, ok, show, show_json, warn
from pos_gateway.cli.worker import command
from pos_gateway.database.engine import COMMAND_ANSWER, open_database, require_current
from pos_gateway.database.schema import merchants, orders
from pos_gateway.domain.errors import (
    InvalidSettings,
    PendingMigration,
    PosGatewayError,
    SchemaTooNew,
)
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.resealing import any_in_clear
from pos_gateway.ledger.states import State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.fleet_view import FleetView, a_minute
from pos_gateway.reports.words import MORE_CPU, START_READING, not_delivered, without_cpu
from pos_gateway.runtime.clock import SYSTEM_CLOCK, shown
from pos_gateway.runtime.limits import OTHER_FILES
from pos_gateway.runtime.urls import mask_url
from pos_gateway.runtime.vault import Vault, has_short_passphrase
from pos_gateway.settings import Settings, celerys, explain, setting
from pos_gateway.tokens.store import TokenStore
from pos_gateway.worker.command_line import contradictions

#: Seconds to wait for PostgreSQL, whose driver would wait for minutes.
_DATABASE_PATIENCE = "5"
#: Seconds after its ``deliver_by`` by which a cancel request has ended, unless its message is lost.
_ANSWERED = 600.0
_SETTINGS = """
select name, setting from pg_settings
where name in ('synchronous_commit', 'fsync', 'synchronous_standby_names')"""
#: Seconds to wait for Redis, and for a worker's first steps.
_REDIS_PATIENCE, _WORKER_PATIENCE = 3.0, 60.0
#: Seconds to wait for what has the metrics' port.
_METRICS_PATIENCE = 0.5
#: Merchants that a finding names.
_NAMED = 5
#: What ``celery/__main__.py`` and ``-A`` do, in order; then the check. Late patching makes gevent
#: warn, and TLS recurse without end.
_PROBE = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import celery
    celery.maybe_patch_concurrency()
    import pos_gateway.gcelery
from gevent import monkey
late = [str(w.message) for w in caught if issubclass(w.category, monkey.MonkeyPatchWarning)]
names = ("socket", "ssl", "threading", "time", "select", "queue", "subprocess")
problems = [f"{name} is not patched" for name in names if not monkey.is_module_patched(name)]
import gevent.ssl, urllib3.util.ssl_
if urllib3.util.ssl_.SSLContext is not gevent.ssl.SSLContext:
    problems.append("TLS would block every green thread")
try:
    urllib3.util.ssl_.create_urllib3_context()
except RecursionError:
    problems.append("TLS recurses without end")
print("; ".join(problems + late) or "patched")
"""


@click.command()
@click.option(
    "--server", "server_alone", is_flag=True, help="The HTTP server at POS_GATEWAY_HTTP_URL alone."
)
@options.as_json_lines
def doctor(server_alone: bool, as_json: bool) -> None:
    """Check the settings, the broker, the database and this machine.

    A line for each finding: ok, warn or fail; what; and the remedy. Nothing is changed. With
    POS_GATEWAY_HTTP_URL and POS_GATEWAY_TOKEN the HTTP server there is checked, too, as a backend
    meets it: TLS, the token, its readiness, its clock.

    \b
    Examples:
      pos-gateway doctor
      export POS_GATEWAY_HTTP_URL=https://orders.example.com POS_GATEWAY_TOKEN=$(cat shop.token)
      pos-gateway doctor --server
      pos-gateway doctor --json | jq -r 'select(.level == "fail").what'

    Exit code: 0, or 1 if something keeps orders from being delivered.
    """
    if server_alone and setting("http_url") is None:
        raise click.UsageError(
            "set POS_GATEWAY_HTTP_URL, where the server is, and POS_GATEWAY_TOKEN"
        )
    failed = False
    for finding in _findings((check_settings, check_server) if server_alone else ()):
        failed = failed or finding.level is Severity.FAIL
        (show_json if as_json else show)(finding)
    if failed:
        raise click.exceptions.Exit(1)


def _findings(wanted: Collection[Check]) -> Iterator[CheckResult]:
    """Those of the wanted checks, or of all."""
    settings, valid = _usable()
    for check, needed in CHECKS:
        if wanted and check not in wanted:
            continue
        if not valid.issuperset(Settings.model_fields if needed is None else needed):
            continue  # check_settings reports it
        try:
            yield from check(settings)
        except Exception as error:  # noqa: BLE001  (a crash of a check is a finding)
            name = check.__name__.removeprefix("check_")
            yield fail(f"{name}: {type(error).__name__}: {error}", "this is a mistake in doctor")


def _usable() -> tuple[Settings, set[str]]:
    """The settings with defaults in place of invalid ones, and the names of the valid ones."""
    values: dict[str, Any] = {}
    for name in Settings.model_fields:
        with suppress(InvalidSettings):
            values[name] = setting(name)
    return Settings.model_validate(values), set(values)


def check_settings(settings: Settings) -> Iterator[CheckResult]:
    """Every environment variable is a setting, every value is valid, and none of Celery's contradicts."""
    for sentence in contradictions(settings.broker_url, celerys()):
        yield warn(f"settings: {sentence}", "a worker with it does not start")
    if celerys().get("CELERY_WORKER_CONCURRENCY"):
        yield warn(
            "settings: CELERY_WORKER_CONCURRENCY, Celery's --concurrency, is a green worker's number of slots"
            " instead of POS_GATEWAY_SLOTS",
            "unset it, unless it is a synchronous worker's number of processes",
        )
    wrong = [line for line in explain() if line.problem]
    for line in wrong:
        yield fail(f"settings: {line.variable}={line.value} {line.problem}", "pos-gateway settings")
    if wrong:
        return
    try:
        Settings.from_environment()
    except InvalidSettings as error:
        for each in error.errors:
            yield fail(f"settings: {each}", "pos-gateway settings")
    else:
        yield ok("settings: all valid")


def check_addresses(settings: Settings) -> Iterator[CheckResult]:
    """Private merchant addresses are for development, with a local broker."""
    if not settings.allow_private_addresses:
        return
    hosts = [urlsplit(url).hostname or "localhost" for url in settings.broker_url.split(";")]
    away = [host for host in hosts if not _is_here(host)]
    if away:
        yield warn(
            f"private addresses are allowed, and the broker is at {away[0]}: a merchant's record "
            "can make a worker call hosts of your own network",
            "unset POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES in production",
        )


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_database(settings: Settings) -> Iterator[CheckResult]:
    """Reads only; a missing SQLite file is not created."""
    shown = mask_url(settings.database_url)
    try:
        url = make_url(settings.database_url)
        if url.get_backend_name() != "sqlite":
            url = url.update_query_dict({"connect_timeout": _DATABASE_PATIENCE})
        engine = open_database(url.render_as_string(False), answer=COMMAND_ANSWER)
    except InvalidSettings as error:
        yield fail(f"database: {error}", "pos-gateway settings")
        return
    except (SQLAlchemyError, ValueError):
        yield fail(f"database: {shown} is not a URL", "set POS_GATEWAY_DATABASE_URL")
        return
    try:
        require_exists(engine)
        require_current(engine)
        yield ok(f"database: {shown} is up to date")
        with engine.connect() as connection:
            count = connection.execute(select(func.count()).select_from(merchants)).scalar_one()
        ledger = [
            *_durability(engine),
            *_secrets(engine, settings),
            *_ledger(engine, settings),
            *_tokens(engine),
            *_workers(engine),
        ]
    except (PendingMigration, SchemaTooNew) as error:
        what, _, then = str(error).partition("; run: ")
        yield fail(f"database: {shown}: {what}", then)
    except InvalidSettings as error:
        yield fail(f"database: {error}", "docs/deploy.md")
    except SQLAlchemyError as error:
        yield fail(
            f"database: {shown} cannot be used: {reason(error)}",
            "this user must be able to write the file and its folder"
            if is_barred(error)
            else "start it, or set POS_GATEWAY_DATABASE_URL",
        )
    else:
        if count:
            yield ok(f"merchants: {count}")
        else:
            yield warn("merchants: none", "pos-gateway merchants import FILE")
        yield from ledger
    finally:
        engine.dispose()


def _durability(engine: Engine) -> Iterator[CheckResult]:
    """Whether PostgreSQL's confirmed commits survive; each SQLite connection sets it."""
    if engine.dialect.name == "sqlite":
        return
    with engine.connect() as connection:
        said = {row.name: row.setting for row in connection.execute(text(_SETTINGS))}
        standbys = connection.scalar(text("select count(*) from pg_stat_replication"))
    for name, lossy in (("synchronous_commit", ("off", "local")), ("fsync", ("off",))):
        if said[name] in lossy:
            yield warn(
                f"database: {name} is {said[name]}: orders can be sent twice", f"{name} = on"
            )
    if standbys and not said["synchronous_standby_names"]:
        yield warn(
            "database: its standby is asynchronous: a failover loses the last commits",
            "synchronous_standby_names (docs/deploy.md)",
        )


def _secrets(engine: Engine, settings: Settings) -> Iterator[CheckResult]:
    """A worker that cannot open a merchant's secrets retries its orders until they expire."""
    if has_short_passphrase(settings.secret_keys):
        yield warn(
            "secrets: POS_GATEWAY_SECRET_KEY has a short passphrase, or a mistyped key",
            "pos-gateway secrets key makes a key, and says how to change to it",
        )
    store = MerchantStore(engine, vault=Vault(settings.secret_keys))
    with engine.connect() as connection:
        merchant_id = connection.scalar(select(merchants.c.id).limit(1))
    try:
        store.stamped([merchant_id] if merchant_id else [])
    except PosGatewayError:
        pass  # counted below
    except Exception as error:  # noqa: BLE001  (whatever it is, a worker would meet it, too)
        yield fail(
            f"merchants: {merchant_id} cannot be read: {error}", "its orders are not delivered"
        )
    unopened = store.count_unopened()
    if unopened:
        yield fail(
            f"merchants: the secrets of {unopened} are sealed with a key that POS_GATEWAY_SECRET_KEY "
            "has not",
            "put that key back, after the present one; pos-gateway merchants check names them "
            "(docs/rotations.md)",
        )
    if endangered := in_trouble(engine, most=_NAMED):
        yield warn(
            "merchants: " + "; ".join(f"{each.merchant_id}: {each.problem}" for each in endangered),
            "bring in a new grant, or let pos-gateway merchants check ID refresh it (docs/authentication.md)",
        )
    held_up = and_(orders.c.state == State.NEW, orders.c.reason_code == "secret_key")
    with engine.connect() as connection:
        count = connection.scalar(select(func.count()).where(held_up))
    if count:
        yield fail(
            f"orders: {count} wait for a key: the last worker that had them could not open their "
            "merchant's secrets",
            "give every worker all keys that are in use in POS_GATEWAY_SECRET_KEY, and restart it "
            "(docs/rotations.md)",
        )


def _ledger(engine: Engine, settings: Settings) -> Iterator[CheckResult]:
    admin = OrderAdmin(engine, Payloads(Vault()))
    in_doubt = admin.count(State.IN_DOUBT)
    if in_doubt:
        yield warn(f"orders: {in_doubt} in doubt", "pos-gateway orders list --state in_doubt")
    else:
        yield ok("orders: none in doubt")
    count, oldest = admin.unanswered_cancels(SYSTEM_CLOCK.now().timestamp() - _ANSWERED)
    if oldest is not None:
        yield warn(
            f"cancel requests: {count} unanswered, the oldest until {shown(oldest.deliver_by)}",
            "look in orders.dead, or ask again: pos-gateway cancel "
            f"{oldest.order_id} --merchant {oldest.merchant_id}",
        )
    if any_in_clear(engine):
        yield warn(
            "orders: kept in clear, with people's names in them",
            "pos-gateway secrets rotate"
            if settings.secret_key
            else "set POS_GATEWAY_SECRET_KEY (pos-gateway secrets key makes one), "
            "then pos-gateway secrets rotate",
        )


def _workers(engine: Engine) -> Iterator[CheckResult]:
    view = FleetView(engine)
    fleet = view.now()
    if fleet.delivering and (says := not_delivered(fleet)):
        yield fail(f"workers: {says}", START_READING)
    if short := without_cpu(fleet, a_minute(view.history(2))):
        yield warn(f"workers: {short}", MORE_CPU)


def _tokens(engine: Engine) -> Iterator[CheckResult]:
    """A gateway without an HTTP server needs none."""
    if TokenStore(engine).is_empty():
        yield ok("tokens: none; for HTTP: pos-gateway tokens create NAME --role backend")


def check_redis(settings: Settings) -> Iterator[CheckResult]:
    """Redis answers."""
    if settings.redis_url is None:
        return
    shown = mask_url(settings.redis_url)
    try:
        from redis import Redis
        from redis.exceptions import RedisError, ResponseError
    except ModuleNotFoundError:
        yield fail("redis: its package is not installed", "pip install 'pos-gateway[redis]'")
        return
    try:
        client = Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=_REDIS_PATIENCE,
            socket_timeout=_REDIS_PATIENCE,
        )
        with client:
            client.ping()
            try:
                evicts = _eviction(client.info("memory"))
            except ResponseError:  # its user may not ask, and workers need not
                evicts = ""
    except (RedisError, OSError, ValueError) as error:
        yield fail(
            f"redis: {shown} cannot be used: {error}", "start it, or unset POS_GATEWAY_REDIS_URL"
        )
    else:
        yield ok(f"redis: {shown} answers")
        if evicts:
            yield warn(
                f"redis: it evicts keys when its memory is full ({evicts})",
                "set its maxmemory-policy to noeviction: a key that is gone stops starts for some seconds",
            )
        if settings.secret_key is None:
            yield warn(
                "redis: records, catalogs and tokens are not shared, for want of a key to seal them",
                "set POS_GATEWAY_SECRET_KEY (pos-gateway secrets key makes one)",
            )


def _eviction(memory: Any) -> str:
    """The policy by which Redis evicts keys; empty: it evicts none, or does not say."""
    policy = str(memory.get("maxmemory_policy", "")) if isinstance(memory, dict) else ""
    return "" if policy == "noeviction" else policy


def check_alerts(settings: Settings) -> Iterator[CheckResult]:
    """The alert hook's settings are right, and its receiver can be reached. It is sent nothing."""
    if settings.alert_url is None:
        if settings.alert_secret is not None or settings.alert_secret_file is not None:
            yield warn(
                "alerts: there is a secret, and no URL: none are sent",
                "set POS_GATEWAY_ALERT_URL, or unset the secret (docs/alerts.md)",
            )
        return
    try:
        sender = sender_of(settings, SYSTEM_CLOCK)
    except InvalidSettings as error:
        yield fail(f"alerts: {error}: pos-gateway serve does not start", "docs/alerts.md")
        return
    if sender is None:  # without a URL alone
        return
    problem = sender.unreachable()
    if problem is None:
        yield ok(f"alerts: {sender.host} can be reached; pos-gateway alerts test sends one")
    else:
        yield warn(
            f"alerts: {sender.host} cannot be reached: {problem}",
            "check POS_GATEWAY_ALERT_URL, then pos-gateway alerts test",
        )


def check_files(settings: Settings) -> Iterator[CheckResult]:
    """Every slot may have a connection in use, and as many again are kept open for the next.

    A worker raises the soft limit.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * settings.slots + OTHER_FILES
    what = f"open files: {limit} allowed, {needed} needed for {settings.slots} slots"
    if limit == resource.RLIM_INFINITY or limit >= needed:
        yield ok(what)
    else:
        yield warn(what, f"ulimit -n {needed}, or lower POS_GATEWAY_SLOTS")


def check_metrics_port(settings: Settings) -> Iterator[CheckResult]:
    """A worker started now can serve its metrics."""
    host, port = settings.metrics_host, settings.metrics_port
    if not port:
        yield ok("metrics: off")
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and _is_worker(host, port):
                yield ok(f"metrics: port {port} of {host} is a worker's that runs")
                return
            yield warn(
                f"metrics: port {port} of {host} cannot be used: {error.strerror}",
                "if that is no worker, set POS_GATEWAY_METRICS_HOST or POS_GATEWAY_METRICS_PORT (0 is off)",
            )
        else:
            yield ok(f"metrics: port {port} of {host} is free")


def _is_worker(host: str, port: int) -> bool:
    """Whether a process of the gateway answers there."""
    connection = HTTPConnection(host, port, timeout=_METRICS_PATIENCE)
    try:
        connection.request("GET", "/readyz")
        found = json.loads(connection.getresponse().read(64 * 1024))
        return isinstance(found, dict) and "ready" in found
    except (OSError, HTTPException, ValueError, RecursionError):
        return False
    finally:
        connection.close()


def check_patching(_: Settings) -> Iterator[CheckResult]:
    """Runs a worker's first steps in a subprocess: a second of CPU, no connection."""
    advice = "something imports urllib3 or requests first: look for .pth files and sitecustomize"
    try:
        done = subprocess.run(  # noqa: S603  (this interpreter, our own arguments)
            [sys.executable, "-P", "-c", _PROBE, *command(())[4:]],
            capture_output=True,
            text=True,
            timeout=_WORKER_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail(f"green threads: cannot try a worker: {error}", advice)
        return
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield fail(
            f"green threads: a worker does not start: {said}", "pos-gateway worker says more"
        )
    elif done.stdout.strip() != "patched":
        yield fail(f"green threads: {done.stdout.strip()}", advice)
    else:
        yield ok("green threads: gevent patches a worker before anything else")


#: Each check with the settings that it requires; None: all of them.
CHECKS: tuple[tuple[Check, tuple[str, ...] | None], ...] = (
    (check_settings, ()),
    (check_addresses, ("broker_url", "allow_private_addresses")),
    (check_broker, ("broker_url", "events_to_broker")),
    (check_database, ("database_url",)),
    (check_redis, ("redis_url",)),
    (check_server, ("http_url", "token")),
    (check_alerts, ("alert_url", "alert_secret", "alert_secret_file", "ca_file")),
    (check_files, ("slots",)),
    (check_metrics_port, ("metrics_host", "metrics_port")),
    (check_patching, None),
)
