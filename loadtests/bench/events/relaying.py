"""An event pipeline by itself, whose hydration takes so long for each event.

    python -m loadtests.bench.events.relaying BROKER_URL DATABASE_URL SECONDS

Ends with its standard input.
"""

import sys
import time
from contextlib import suppress

from pos_gateway.database.engine import open_database
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.events.relay import EventRelay
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings


class Expensive(Hydration):
    """Asks a distant server for each event; what a helper has hydrated is there."""

    def __init__(self, seconds: float) -> None:
        super().__init__(Payloads(Vault()))
        self._seconds = seconds

    def _body(self, row: Row) -> bytes:
        time.sleep(self._seconds)
        return super()._body(row)


def main(broker_url: str, database_url: str, seconds: float) -> None:
    """Publish, or help."""
    failpoints.arm_all(Settings.from_environment().failpoints)
    engine = open_database(database_url)
    ledger = Ledger(engine)
    relay = EventRelay(engine, Expensive(seconds), ledger, broker_url=broker_url)
    ledger.start()
    ledger.catch_up()
    relay.start()
    sys.stdin.buffer.read()
    relay.stop()
    ledger.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
