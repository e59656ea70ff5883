"""A database with a story in it, for tests and pictures of the operations page.

The last hour of a gateway with many merchants: one has become slow, one is not reached, one breaks
off and leaves orders in doubt, one refuses its credentials, one was paused; all others are well. It
is the same story each time, and ends now.
"""

from dataclasses import dataclass

from sqlalchemy import Engine, select

from pos_gateway.audit.note import By, Note, write
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.database.clock import Now
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.patience import PATIENCE
from testkit.story.fleet_rows import write_fleet
from testkit.story.ledger_rows import LedgerRows
from testkit.story.plot import SINCE, Part, plot

#: Seconds for the broker to take a dead letter.
_SOON = PATIENCE


@dataclass(frozen=True)
class Story:
    """Who is who, and which orders are worth a look; each list in the order of time."""

    #: Unix time at which it ends, by the database's clock.
    now: float
    #: All merchants' ids, those in trouble first.
    merchants: tuple[str, ...]
    #: It has taken 7 to 10 s for the last 25 minutes: its orders wait and are parked.
    slow: str
    #: It has not been reached for 40 minutes: breaker open, orders retried, then expired.
    dead: str
    #: It has broken off after each order for 15 minutes: in doubt, for an operator.
    doubtful: str
    #: It has refused our credentials for 30 minutes: orders fail and are dead-lettered.
    locked_out: str
    #: An operator paused it 10 minutes ago.
    paused: str
    #: A merchant in no trouble.
    healthy: str
    #: The workers' ids.
    workers: tuple[str, ...]
    in_doubt: tuple[Key, ...]
    in_flight: tuple[Key, ...]
    #: Failed and expired; with a broker they are in ``orders.dead``, too.
    dead_letters: tuple[Key, ...]
    #: Accepted after more than one attempt.
    retried: tuple[Key, ...]
    #: Accepted, and then cancelled by a cancel request.
    cancelled: tuple[Key, ...]
    #: Accepted, and their POS has said since that they are prepared, or ready.
    with_callbacks: tuple[Key, ...]


def seed(
    engine: Engine,
    broker: str | None = None,
    *,
    merchants: int = 200,
    orders: int = 2000,
    workers: int = 4,
    vault: Vault | None = None,
) -> Story:
    """Write the story into an empty database, and its dead letters into the broker.

    Args:
        engine: the database, with the schema.
        broker: the broker's URL; None: the dead letters are in no queue.
        merchants, orders, workers: how many.
        vault: seals orders and secrets, with the server's key.

    Raises:
        ValueError: fewer merchants or orders than have every part of the story.
    """
    with engine.connect() as connection:
        now = float(connection.scalar(select(Now())) or 0.0)
    told = plot(now, merchants, orders)
    vault = vault or Vault()
    payloads = Payloads(vault)
    MerchantStore(engine, vault=vault).put(told.merchants)
    written = LedgerRows(engine, payloads, told).write()
    names = write_fleet(engine, told, workers, len(written.dead))
    paused = told.cast[Part.PAUSED].id
    pause = Note("merchants.pause", paused, changes={"paused": (False, True)})
    with engine.begin() as connection:
        write(
            connection,
            [pause],
            by=By("operator", "the kitchen is flooded"),
            at=now - 60 * SINCE[Part.PAUSED],
        )
    if broker is not None:
        publisher = PlainPublisher(broker)
        for _, letter in written.dead:
            publisher.publish(letter, timeout=_SOON)
        publisher.close()
    return Story(
        now=now,
        merchants=tuple(each.id for each in told.merchants),
        slow=told.cast[Part.SLOW].id,
        dead=told.cast[Part.DEAD].id,
        doubtful=told.cast[Part.DOUBTFUL].id,
        locked_out=told.cast[Part.LOCKED_OUT].id,
        paused=paused,
        healthy=told.merchants[len(told.cast)].id,
        workers=tuple(names),
        in_doubt=tuple(written.in_doubt),
        in_flight=tuple(written.in_flight),
        dead_letters=tuple(key for key, _ in written.dead),
        retried=tuple(written.retried),
        cancelled=tuple(written.cancelled),
        with_callbacks=tuple(written.with_callbacks),
    )
