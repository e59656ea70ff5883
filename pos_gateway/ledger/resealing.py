"""Sealing what is kept of orders with the present key, while others read and write."""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, and_, or_, select, tuple_, update

from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.schema import events, orders, pipeline
from pos_gateway.ledger.states import Action, Key
from pos_gateway.vault import CannotOpen

#: Orders a transaction: workers wait for no more than that.
BATCH = 200
#: Orders that are looked at to say whether there are any in clear.
_SOME = 10_000


@dataclass(frozen=True, slots=True)
class Resealed:
    """What a batch came to."""

    looked_at: int
    sealed: int
    #: Orders that no key opens, and why. They stay as they are.
    unopened: tuple[tuple[Key, str], ...] = ()


def reseal(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal every order that is in clear or under an earlier key; what each batch came to.

    An order that somebody writes meanwhile is left as they wrote it. It can be broken off and
    begun again at any time.
    """
    key = (orders.c.merchant_id, orders.c.order_id)
    last = ("", "")
    while True:
        query = (
            select(*key, orders.c.payload)
            .where(
                tuple_(*key) > tuple_(*last),
                orders.c.action == Action.SUBMIT,
                orders.c.payload.is_not(None),
            )
            .order_by(*key)
            .limit(batch)
        )
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        last = (rows[-1].merchant_id, rows[-1].order_id)
        # Sealed before the transaction begins, which is then as short as can be.
        anew, unopened = [], []
        for row in rows:
            whose = Key(row.merchant_id, row.order_id)
            if payloads.is_stale(row.payload):
                try:
                    order_json = payloads.open(whose, row.payload)
                except CannotOpen as error:
                    unopened.append((whose, str(error)))
                else:
                    anew.append((whose, row.payload, payloads.seal(whose, order_json)))
        sealed = 0
        with engine.begin() as connection:
            for whose, before, after in anew:
                unchanged = and_(
                    orders.c.merchant_id == whose.merchant_id,
                    orders.c.order_id == whose.order_id,
                    orders.c.action == whose.action,
                    orders.c.payload == before,
                )
                done = connection.execute(update(orders).where(unchanged).values(payload=after))
                sealed += done.rowcount
        yield Resealed(len(rows), sealed, tuple(unopened))


def reseal_events(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """The same for what events have of orders: what came as one and was none, and what was hydrated.

    The former is sealed anew. The latter is removed, for it can be hydrated again; from events that
    are not published it is left to be used, and does no harm if it cannot be opened then.
    """
    last = 0
    while True:
        query = (
            select(events)
            .where(
                events.c.id > last, or_(events.c.payload.is_not(None), events.c.body.is_not(None))
            )
            .order_by(events.c.id)
            .limit(batch)
        )
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        last = rows[-1].id
        anew, unopened = [], []
        for row in rows:
            whose = Key(row.merchant_id, row.order_id)
            if row.payload is not None and payloads.is_stale(row.payload):
                try:
                    kept = payloads.open(whose, row.payload)
                except CannotOpen as error:
                    unopened.append((whose, str(error)))
                else:
                    anew.append((row.id, payloads.seal(whose, kept)))
        hydrated = [row.id for row in rows if row.body is not None and payloads.is_stale(row.body)]
        # One by one: the leader, which locks many, waits for none of it.
        for row_id, payload in anew:
            with engine.begin() as connection:
                one = events.c.id == row_id
                connection.execute(update(events).where(one).values(payload=payload))
        sealed = len(anew)
        if hydrated:
            published = select(pipeline.c.published).scalar_subquery()
            these = and_(events.c.id.in_(hydrated), events.c.position <= published)
            with engine.begin() as connection:
                sealed += connection.execute(update(events).where(these).values(body=None)).rowcount
        yield Resealed(len(rows), sealed, tuple(unopened))


def any_in_clear(engine: Engine) -> bool:
    """Whether an order is kept in clear, of as many as can be looked at in a moment."""
    some = select(orders.c.payload).where(orders.c.payload.is_not(None)).limit(_SOME).subquery()
    in_clear = select(some.c.payload).where(some.c.payload.startswith("{")).limit(1)
    with engine.connect() as connection:
        return connection.execute(in_clear).first() is not None
