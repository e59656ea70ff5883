"""The database for commands: up to date, or an error that says what to do.

What a command opens is imported when it opens it: ``--help`` needs none of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pos_gateway.cli.failure import Failure

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pos_gateway.events.archive import Archive
    from pos_gateway.ledger.order_admin import OrderAdmin
    from pos_gateway.ledger.payloads import Payloads
    from pos_gateway.merchants.catalogs import CatalogStore
    from pos_gateway.merchants.store import MerchantStore
    from pos_gateway.runtime.vault import Vault
    from pos_gateway.tokens.store import TokenStore


@contextmanager
def database(*, current: bool = True, answer: float | None = None) -> "Iterator[Engine]":
    """The configured database while entered.

    Args:
        current: whether its schema must be one for this version.
        answer: seconds for PostgreSQL's answer to a statement, if not as many as a command has.

    Raises:
        PendingMigration, SchemaTooNew: it is not; or there is no database yet.
        Failure: it cannot be reached, or it failed meanwhile.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from pos_gateway.database.engine import COMMAND_ANSWER, open_database, require_current
    from pos_gateway.runtime.urls import mask_url
    from pos_gateway.settings import Settings

    url = Settings.from_environment().database_url
    try:
        engine = open_database(url, answer=answer or COMMAND_ANSWER)
    except (SQLAlchemyError, ValueError) as error:
        raise Failure(f"POS_GATEWAY_DATABASE_URL: {mask_url(url)} is no URL") from error
    try:
        if current:
            require_exists(engine)
            require_current(engine)
        yield engine
    except SQLAlchemyError as error:
        remedy = (
            "; this user must be able to write the file and its folder" if is_barred(error) else ""
        )
        raise Failure(f"the database at {mask_url(url)} failed: {reason(error)}{remedy}") from error
    finally:
        engine.dispose()


@contextmanager
def merchant_store() -> "Iterator[MerchantStore]":
    """The merchants in the configured database, with the keys to their secrets, while entered."""
    from pos_gateway.merchants.store import MerchantStore

    with database() as engine:
        yield MerchantStore(engine, vault=vault())


@contextmanager
def catalog_store() -> "Iterator[CatalogStore]":
    """The merchants' catalogs in the configured database while entered."""
    from pos_gateway.merchants.catalogs import CatalogStore

    with database() as engine:
        yield CatalogStore(engine)


@contextmanager
def token_store() -> "Iterator[TokenStore]":
    """The access tokens in the configured database while entered."""
    from pos_gateway.tokens.store import TokenStore

    with database() as engine:
        yield TokenStore(engine)


@contextmanager
def order_admin() -> "Iterator[OrderAdmin]":
    """Order administration on the configured database, with the orders' keys, while entered."""
    from pos_gateway.ledger.order_admin import OrderAdmin

    with database() as engine:
        yield OrderAdmin(engine, payloads())


@contextmanager
def archive() -> "Iterator[Archive]":
    """The kept events in the configured database, with their orders' keys, while entered."""
    from pos_gateway.events.archive import Archive
    from pos_gateway.events.hydration import Hydration

    with database() as engine:
        yield Archive(engine, Hydration(payloads()))


def vault() -> "Vault":
    """The configured keys."""
    from pos_gateway.runtime.vault import Vault
    from pos_gateway.settings import Settings

    return Vault(Settings.from_environment().secret_keys)


def payloads() -> "Payloads":
    """Opens and seals orders with the configured keys."""
    from pos_gateway.ledger.payloads import Payloads

    return Payloads(vault())


def require_exists(engine: "Engine") -> None:
    """Raises PendingMigration for a missing SQLite file, which connecting would create."""
    from pos_gateway.domain.errors import PendingMigration

    path = engine.url.database
    embedded = engine.dialect.name == "sqlite" and path and path != ":memory:"
    if embedded and not Path(str(path)).exists():
        raise PendingMigration(f"there is no file {path} yet; run: pos-gateway db upgrade")


def is_barred(error: Exception) -> bool:
    """Whether SQLite may not open or write its file: it says neither of which, nor to whom."""
    name = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
    return str(name).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM"))


def reason(error: Exception) -> str:
    """The driver's message in one line, without SQLAlchemy's wrapping."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__
