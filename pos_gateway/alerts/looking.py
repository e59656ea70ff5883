"""What is wrong now, from what the operations page shows: workers' reports, and the orders' rows."""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Engine, func, select

from pos_gateway.alerts.condition import Condition, Finding, Findings
from pos_gateway.database.clock import Now
from pos_gateway.database.schema import orders
from pos_gateway.ledger.states import Action, State
from pos_gateway.reports.fleet_view import Fleet, FleetView

#: Seconds after which a breaker that is not closed, and an order in doubt, need a person.
BREAKER_LASTS = DOUBT_LASTS = 300.0
#: Seconds for which a refused token is a reason to alert, and by which events are late.
REFUSED_WITHIN, LATE = 900.0, 30.0
#: The reason code of an order that failed since its merchant's token was refused.
_TOKEN = "token"  # noqa: S105  (no secret)
#: Merchants of a condition that are counted.
_MAX_SUBJECTS = 10_000
_DEAD = "orders.dead"


def look(database: Engine, fleet_view: FleetView) -> Findings:
    """What is wrong. Three queries. Raises SQLAlchemyError: nothing can be said."""
    fleet = fleet_view.now()
    found = {
        Condition.IN_DOUBT: _by_merchant(
            database,
            State.IN_DOUBT,
            func.coalesce(orders.c.doubt_since, orders.c.updated_at) < Now() - DOUBT_LASTS,
            says="{count} of merchant {merchant} in doubt for {minutes:g} minutes or more: its POS may have {them}",
        ),
        Condition.TOKEN_REFUSED: _by_merchant(
            database,
            State.FAILED,
            orders.c.reason_code == _TOKEN,
            orders.c.updated_at > Now() - REFUSED_WITHIN,
            says="{count} of merchant {merchant} failed: its token endpoint refuses the credentials",
        ),
        Condition.NO_WORKER: []
        if fleet.workers
        else [Finding("workers", "No worker reports: no order is delivered")],
    }
    return found | _by_reports(fleet)


def _by_reports(fleet: Fleet) -> dict[Condition, list[Finding]]:
    """What workers know; without a report nothing can be said of it."""
    found: dict[Condition, list[Finding]] = {}
    if not fleet.workers:
        return found
    found[Condition.BREAKER_OPEN] = list(_breakers(fleet))
    if (age := fleet.events_age) is not None:
        late = Finding("order-events", f"Events are {age:.0f} s late", round(age))
        found[Condition.EVENTS_LATE] = [late] if age > LATE else []
    if (dead := fleet.queues.get(_DEAD)) is not None:
        says = f"{dead:,} dead letter{'' if dead == 1 else 's'} in {_DEAD}"
        found[Condition.DEAD_LETTERS] = [Finding(_DEAD, says, dead)] if dead else []
    return found


def _breakers(fleet: Fleet) -> Iterator[Finding]:
    for each in fleet.troubles(_MAX_SUBJECTS):
        is_paused = not each.agreed
        if each.breaker == "closed" or is_paused or each.breaker_for < BREAKER_LASTS:
            continue
        held_up = each.waiting + each.parked
        yield Finding(
            each.merchant_id,
            f"Merchant {each.merchant_id} does not answer: its breaker has not been closed for"
            f" {each.breaker_for / 60:.0f} minutes, and {held_up:,} of its orders wait or are parked",
            held_up,
        )


def _by_merchant(
    database: Engine, state: State, *which: ColumnElement[bool], says: str
) -> list[Finding]:
    """The orders in this state, by merchant, the most first."""
    number = func.count().label("number")
    query = (
        select(orders.c.merchant_id, number)
        .where(orders.c.state == state, orders.c.action == Action.SUBMIT, *which)
        .group_by(orders.c.merchant_id)
        .order_by(number.desc(), orders.c.merchant_id)
        .limit(_MAX_SUBJECTS)
    )
    with database.connect() as connection:
        rows = connection.execute(query).all()
    return [
        Finding(
            merchant,
            says.format(
                count=f"{count:,} order{'' if count == 1 else 's'}",
                merchant=merchant,
                minutes=DOUBT_LASTS / 60,
                them="it" if count == 1 else "them",
            ),
            count,
        )
        for merchant, count in rows
    ]
