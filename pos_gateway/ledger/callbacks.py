"""Callbacks in the ledger: what a POS says by itself of an order, its state and its event at once.

One transaction writes a group's state changes, their events and the callbacks' ids, before any of
them is answered. Orders are locked first, so nothing moves between what was read and what is
written; one that a worker is writing at that moment is tried again. The epoch rises: an attempt in
flight loses its claim, and its message finds how the order ended.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Engine, delete, select, tuple_
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.schema import callbacks, orders
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.callback_rules import (
    Applied,
    CallbackGroup,
    CallbackResult,
    Dehydrate,
    Received,
)
from pos_gateway.ledger.callback_statements import SESSION, PostgreSQL, SQLite, Statements
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

#: How often an order is tried that a worker is writing, and the seconds between two tries.
TRIES, PAUSE = 5, 0.02
_ACTIONS = (Action.SUBMIT, Action.CANCEL)


class CallbackLedger:
    """Applies callbacks on one connection. For one caller at a time.

    Args:
        engine: the database.
        payloads: seals the POS's words.
        dehydrate: makes events.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        dehydrate: Dehydrate,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = engine
        self._writer = Writer(engine, session=SESSION)
        self._say: Statements = SQLite() if engine.dialect.name == "sqlite" else PostgreSQL()
        self._payloads = payloads
        self._dehydrate = dehydrate
        self._clock = clock

    def apply(self, received: Sequence[Received]) -> list[Applied]:
        """Write what follows from each, in order.

        Raises:
            LedgerUnavailable: the database is away; the same may be applied again.
        """
        results: dict[int, Applied] = {}
        left = dict(enumerate(received))
        for number in range(TRIES):
            if number:
                time.sleep(PAUSE)
            done = self._writer.write(partial(self._transact, received=left))
            results |= done
            left = {place: each for place, each in left.items() if place not in done}
            if not left:
                break
        return [results.get(each, Applied(CallbackResult.BUSY)) for each in range(len(received))]

    def owners(self, external_id: str) -> list[Key]:
        """The orders that some POS knows by this id. Safe from threads.

        Raises:
            SQLAlchemyError: the database is away.
        """
        query = select(orders.c.merchant_id, orders.c.order_id).where(
            orders.c.external_id == external_id, orders.c.action == Action.SUBMIT
        )
        with self._engine.connect() as connection:
            return [Key(*row) for row in connection.execute(query)]

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def _transact(self, cursor: Any, received: dict[int, Received]) -> dict[int, Applied]:
        """What followed from each; those whose order is being written are left out."""
        keys = sorted({each.key for each in received.values()})
        busy, rows = self._say.lock(cursor, [_key(key) for key in keys])
        found = {(row.key.merchant_id, row.key.order_id, row.key.action): row for row in rows}
        present = {n: each for n, each in received.items() if _key(each.key) not in busy}
        seen = self._say.seen(cursor, sorted({each.identity for each in present.values()}))
        group = CallbackGroup(self._payloads, self._dehydrate, self._clock.now().timestamp())
        done = {}
        for place, each in present.items():
            if each.identity in seen:
                done[place] = Applied(CallbackResult.DUPLICATE)
                continue
            seen.add(each.identity)
            order, request = (found.get((*_key(each.key), action)) for action in _ACTIONS)
            done[place] = group.apply(each, order, request)
        self._say.write(cursor, group)
        return done


def prune_callbacks(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove the rows that are older (Unix time), ``batch`` at a time; yields how many.

    Raises:
        LedgerUnavailable: the database is away.
    """
    key = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)
    old = callbacks.c.received_at < before
    try:
        while True:
            with engine.begin() as connection:
                query = select(*key).where(old).order_by(callbacks.c.received_at).limit(batch)
                rows = [tuple(row) for row in connection.execute(query)]
                if rows:
                    connection.execute(delete(callbacks).where(tuple_(*key).in_(rows), old))
            if not rows:
                return
            yield len(rows)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(str(error)) from error


def _key(key: Key) -> tuple[str, str]:
    return key.merchant_id, key.order_id
