"""The events kept in the configured database."""

from collections.abc import Iterator
from contextlib import contextmanager

from pos_gateway.cli.database import database
from pos_gateway.events.archive import Archive
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings


@contextmanager
def archive() -> Iterator[Archive]:
    """The archive, with the keys to its orders, while entered. Raises as ``database``."""
    keys = Settings.from_environment().secret_keys
    with database() as engine:
        yield Archive(engine, Hydration(Payloads(Vault(keys))))
