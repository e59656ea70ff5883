"""SQLite's writes on green threads, as in a worker: ``python -m tests.auth.green DIRECTORY``.

Another process has the database's lock until this process's loop has had some turns: a write on the loop would
keep it from having any, and fail. It exits with 0 if none does.
"""

from gevent import monkey

monkey.patch_all()

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gevent

from pos_gateway.attempt.gateway import Gateway
from pos_gateway.database.engine import upgrade
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings
from pos_gateway.transport.errors import NotSent
from testkit.patience import PATIENCE

#: Turns of the loop for which another process writes.
TURNS = 100
KEY = "a passphrase that is long enough"
AUTH = {
    "type": "oauth2_grant",
    "token_url": "http://127.0.0.1:1/token",
    "client_id": "us",
    "refresh_token": "first",
}


def beside_a_writer(path: Path, do: Callable[[], None]) -> None:
    """Call while another process has the database's lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        called = gevent.spawn(do)
        for _ in range(TURNS):
            # Not 0: a loop that never waits keeps the GIL, and a native thread hardly ever runs.
            gevent.sleep(0.001)
        assert not called.ready(), "it waits for the other process"
        other.execute("commit")
        called.get(timeout=PATIENCE)


def main(directory: Path) -> None:
    path = directory / "gateway.db"
    environment = {
        "POS_GATEWAY_DATABASE_URL": f"sqlite:///{path}",
        "POS_GATEWAY_SECRET_KEY": KEY,
        "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
    }
    gate = Gateway(Settings.from_environment(environment))
    upgrade(gate.database)
    merchant = Merchant.parse({"id": "m1", "base_url": "http://127.0.0.1:1", "auth": AUTH})
    MerchantStore(gate.database, vault=Vault(KEY)).put([merchant])
    read = gate.directory.get("m1")

    def refresh() -> None:
        try:
            gate.caller.authenticator.prepare(read, PATIENCE)
        except NotSent as error:
            assert "Connection refused" in str(error), error  # of the token endpoint

    def pause() -> None:
        assert gate.directory.pause(read)

    beside_a_writer(path, refresh)
    beside_a_writer(path, pause)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
