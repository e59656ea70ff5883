"""The outcomes of both sides' orders, from the ledger.

The ledger does not record which worker delivered an order, and need not: a merchant's side is
known. Orders that the stable workers delivered for the canary, because it could not, count as the
canary's.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from sqlalchemy import ColumnElement, Engine, case, func, select

from pos_gateway.database.schema import orders
from pos_gateway.domain.order import timestamp
from pos_gateway.domain.split import Split
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key, State

#: The outcomes compared, beside accepted and cancelled. Unfinished: claimed before ``until``, and
#: neither terminal nor in doubt.
OUTCOMES = ("rejected", "expired", "failed", "in_doubt", "unfinished")

#: A merchant was healthy if, in the hour before the split changed, a share ``WELL`` of its orders,
#: at least ``ENOUGH``, was accepted at the first attempt, within ``QUICK`` seconds of the claim.
BEFORE, WELL, QUICK, ENOUGH = 3600.0, 0.95, 3.0, 3
#: Maximum healthy merchants of a side whose times are read, and maximum times of all of them.
MAX_MERCHANTS, MAX_TIMES = 200, 10_000


@dataclass(frozen=True, slots=True)
class Side:
    """The canary's merchants, or the stable workers'."""

    #: Each merchant's orders, by outcome.
    outcomes: Mapping[str, Counter[str]]
    #: Seconds from an order's ``placed_at`` until it was accepted, of merchants that were healthy
    #: before.
    seconds: Mapping[str, Sequence[float]]

    @property
    def orders(self) -> int:
        """How many, of all merchants."""
        return sum(each.total() for each in self.outcomes.values())

    def count(self, outcome: str) -> list[tuple[int, int]]:
        """Of each merchant: how many of its orders have this outcome, of how many."""
        return [(each[outcome], each.total()) for each in self.outcomes.values()]


def gather(
    database: Engine,
    payloads: Payloads,
    split: Split,
    *,
    changed_at: float,
    since: float,
    until: float,
) -> tuple[Side, Side]:
    """The canary's side, and the stable side.

    Args:
        database, payloads: the ledger, and the key to the orders in it.
        split: says which merchants are the canary's.
        changed_at: since when (Unix time): merchants' health is taken from the time before.
        since, until: the times (Unix time) between which an order was first claimed. ``until`` must
            be so long ago that an order has usually ended.
    """
    outcomes = _outcomes(database, since, until)
    well = _healthy(database, changed_at) & outcomes.keys()
    sides = []
    for is_canary in (True, False):
        mine = {each for each in outcomes if split.takes(each) is is_canary}
        sample = sorted(well & mine)
        if len(sample) > MAX_MERCHANTS:
            sample = Random(int(since)).sample(sample, MAX_MERCHANTS)
        times = sum(outcomes[each][State.ACCEPTED] for each in sample)
        every = max(1, ceil(times / MAX_TIMES))
        seconds = _seconds(database, payloads, sample, since, until, every)
        sides.append(Side({each: outcomes[each] for each in mine}, seconds))
    return sides[0], sides[1]


def _outcomes(database: Engine, since: float, until: float) -> dict[str, Counter[str]]:
    query = (
        select(orders.c.merchant_id, orders.c.state, func.count())
        .where(*_begun(since, until))
        .group_by(orders.c.merchant_id, orders.c.state)
    )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    with database.connect() as connection:
        for merchant_id, state, number in connection.execute(query):
            ended = State(state).is_final or state == State.IN_DOUBT
            found[merchant_id][state if ended else "unfinished"] += number
    return found


def _healthy(database: Engine, changed_at: float) -> set[str]:
    row = orders.c
    was_well = (
        (row.state == State.ACCEPTED)
        & (row.attempts <= 1)
        & (row.updated_at - row.created_at <= QUICK)
    )
    number, well = func.count(), func.sum(case((was_well, 1), else_=0))
    query = (
        select(row.merchant_id)
        .where(*_begun(changed_at - BEFORE, changed_at))
        .group_by(row.merchant_id)
        .having(number >= ENOUGH, well >= WELL * number)
    )
    with database.connect() as connection:
        return set(connection.scalars(query))


def _seconds(
    database: Engine,
    payloads: Payloads,
    merchants: Iterable[str],
    since: float,
    until: float,
    every: int,
) -> dict[str, list[float]]:
    """The times of one in ``every`` orders, as the database finds them: from the whole period.

    The newest orders would cover the whole hour on one side and the last minutes on the other.
    """
    row = orders.c
    numbered = (
        select(
            *(row.merchant_id, row.order_id, row.updated_at, row.payload),
            func.row_number().over().label("number"),
        )
        .where(
            *_begun(since, until),
            row.state == State.ACCEPTED,
            row.merchant_id.in_(list(merchants)),
        )
        .subquery()
        .c
    )
    query = select(
        numbered.merchant_id, numbered.order_id, numbered.updated_at, numbered.payload
    ).where(numbered.number % every == 0)
    found: dict[str, list[float]] = defaultdict(list)
    with database.connect() as connection:
        for merchant_id, order_id, at, payload in connection.execute(query):
            order = json.loads(payloads.open(Key(merchant_id, order_id), payload))
            placed_at = timestamp(order["placed_at"])
            if placed_at is not None:
                found[merchant_id].append(max(0.001, at - placed_at))
    return found


def _begun(since: float, until: float) -> tuple[ColumnElement[bool], ...]:
    row = orders.c
    return (
        row.action == Action.SUBMIT,
        row.created_at >= since,
        row.created_at < until,
        # So that the index by state and time finds them.
        row.state.in_(list(State)),
        row.updated_at >= since,
    )
