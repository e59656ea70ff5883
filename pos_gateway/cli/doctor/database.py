"""The database: reachable, schema of this version, merchants in it, no order in doubt."""

from collections.abc import Iterator

from sqlalchemy import Engine, func, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.cli.database import reason, require_exists
from pos_gateway.cli.doctor.finding import Finding, fail, ok, warn
from pos_gateway.database.engine import open_database, require_current
from pos_gateway.database.schema import merchants
from pos_gateway.domain.errors import InvalidSettings, PendingMigration, SchemaTooNew
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.resealing import any_in_clear
from pos_gateway.ledger.states import State
from pos_gateway.runtime.clock import SYSTEM_CLOCK, shown
from pos_gateway.runtime.urls import mask_url
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings

#: Seconds to wait for PostgreSQL, whose driver would wait for minutes.
_PATIENCE = "5"
#: Seconds after its ``deliver_by`` by which a cancel request has ended, unless its message is lost.
_ANSWERED = 600.0
_SETTINGS = """
select name, setting from pg_settings
where name in ('synchronous_commit', 'fsync', 'synchronous_standby_names')"""


def check_database(settings: Settings) -> Iterator[Finding]:
    """Reads only; a missing SQLite file is not created."""
    shown = mask_url(settings.database_url)
    try:
        url = make_url(settings.database_url)
        if url.get_backend_name() != "sqlite":
            url = url.update_query_dict({"connect_timeout": _PATIENCE})
        engine = open_database(url.render_as_string(hide_password=False))
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
        ledger = [*_durability(engine), *_ledger(engine, settings)]
    except (PendingMigration, SchemaTooNew) as error:
        what, _, then = str(error).partition("; run: ")
        yield fail(f"database: {shown}: {what}", then)
    except SQLAlchemyError as error:
        yield fail(
            f"database: {shown} cannot be used: {reason(error)}",
            "start it, or set POS_GATEWAY_DATABASE_URL",
        )
    else:
        if count:
            yield ok(f"merchants: {count}")
        else:
            yield warn("merchants: none", "pos-gateway merchants import FILE")
        yield from ledger
    finally:
        engine.dispose()


def _durability(engine: Engine) -> Iterator[Finding]:
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


def _ledger(engine: Engine, settings: Settings) -> Iterator[Finding]:
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
