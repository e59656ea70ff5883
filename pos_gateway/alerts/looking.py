"""What is wrong now, from the operations page's sources: workers' reports, and the orders' rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, and_, func, or_, select, union_all

from pos_gateway.alerts.condition import Condition, Finding, Findings
from pos_gateway.auth.grant_store import in_trouble
from pos_gateway.database.clock import Now
from pos_gateway.database.schema import audit, orders
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.ledger.order_search import MAX_COUNTED, count_overdue
from pos_gateway.ledger.states import Action, State
from pos_gateway.reports.fleet_view import Fleet, FleetView
from pos_gateway.reports.words import not_delivered, outcomes

#: Seconds after which a breaker that is not closed, and an order in doubt, need a person.
BREAKER_LASTS = DOUBT_LASTS = 300.0
#: Seconds in which a refused credential, or a contradiction, is a reason to alert, and the delay of late events.
REFUSED_WITHIN, LATE = 900.0, 30.0
#: Reason codes of orders that failed since the POS refuses the credentials; the last two of an earlier release:
#: an order that waits for its token endpoint has the code ``token``, too.
_FAILED_FOR = ("http_403", "http_401", "token")
#: The states of orders whose credentials are refused: they fail, expire, or wait for another attempt.
_ENDED_OR_WAIT = (State.FAILED, State.EXPIRED, State.NEW)
#: Counted merchants of a condition, and orders of a state read for the condition.
_MAX_SUBJECTS, _MAX_ROWS = 10_000, 20_000
_DEAD = "orders.dead"


def look(database: Engine, fleet_view: FleetView) -> Findings:
    """What is wrong. Eight queries. Raises SQLAlchemyError: nothing can be said."""
    fleet = fleet_view.now()
    row = orders.c
    found = {
        Condition.IN_DOUBT: _by_merchant(
            database,
            [_rows(State.IN_DOUBT, row.updated_at)],
            lambda row: row.in_doubt_since < Now() - DOUBT_LASTS,
            says="{count} of merchant {merchant} in doubt for {minutes:g} minutes or more: its POS may have {them}",
        ),
        Condition.CREDENTIAL_REFUSED: _by_merchant(
            database,
            [
                _rows(state, row.updated_at.desc(), row.updated_at > Now() - REFUSED_WITHIN)
                for state in _ENDED_OR_WAIT
            ],
            lambda row: or_(
                row.reason_code == CREDENTIAL_REFUSED,
                and_(row.state == State.FAILED, row.reason_code.in_(_FAILED_FOR)),
            ),
            says="{count} of merchant {merchant} failed or wait: its credentials are refused",
        ),
        Condition.GRANT_ENDS: [
            Finding(each.merchant_id, f"Merchant {each.merchant_id}: {each.problem}")
            for each in in_trouble(database, _MAX_SUBJECTS)
        ],
        Condition.ORDERS_FAILING: [
            Finding(merchant, f"Merchant {merchant}: {outcomes(each)}", each.bad)
            for merchant, each in fleet.failing.items()
            if (trouble := fleet.trouble(merchant)) and trouble.breaker_for < BREAKER_LASTS
        ],
        Condition.NO_WORKER: [Finding("workers", says)] if (says := not_delivered(fleet)) else [],
        Condition.OVERDUE: _overdue(count_overdue(database)),
        Condition.CONTRADICTED: _contradicted(database),
    }
    return found | _by_reports(fleet)


def _overdue(count: int) -> list[Finding]:
    some = f"{count:,} order{'' if count == 1 else 's'}{' or more' if count >= MAX_COUNTED else ''}"
    says = f"{some} past deliver_by have not ended: no worker gets their messages"
    return [Finding("orders", says, count)] if count else []


def _contradicted(database: Engine) -> list[Finding]:
    row = audit.c
    number = func.count(row.order_id.distinct()).label("number")
    query = (
        select(row.merchant_id, number)
        .where(
            row.id > select(func.max(row.id) - _MAX_ROWS).scalar_subquery(),
            row.what == "callback.contradiction",
            row.at > Now() - REFUSED_WITHIN,
        )
        .group_by(row.merchant_id)
        .order_by(number.desc(), row.merchant_id)
        .limit(_MAX_SUBJECTS)
    )
    says = "{count} of merchant {merchant} accepted at the POS, and ended otherwise by the published event"
    return _counted(database, query, says)


def _by_reports(fleet: Fleet) -> dict[Condition, list[Finding]]:
    """What workers know; without a report nothing can be said of it."""
    found: dict[Condition, list[Finding]] = {}
    if fleet.watching:
        found[Condition.BREAKER_OPEN] = list(_breakers(fleet))
    if (age := fleet.events_age) is not None:
        late = Finding("order-events", f"Events are {age:.0f} s late", round(age))
        found[Condition.EVENTS_LATE] = [late] if age > LATE else []
    elif fleet.delivering:
        found[Condition.EVENTS_LATE] = [Finding("order-events", "No process publishes events")]
    if (dead := fleet.queues.get(_DEAD)) is not None:
        says = f"{dead:,} dead letter{'' if dead == 1 else 's'} in {_DEAD}"
        found[Condition.DEAD_LETTERS] = [Finding(_DEAD, says, dead)] if dead else []
    unknown = fleet.unknown_queues
    if fleet.delivering or not unknown:
        found[Condition.QUEUES_UNKNOWN] = [
            Finding(name, f"No worker has had an answer of the broker about the queue {name}")
            for name in unknown
        ]
    return found


def _breakers(fleet: Fleet) -> Iterator[Finding]:
    for each in fleet.troubles(_MAX_SUBJECTS):
        is_paused = not each.agreed
        if each.breaker == "closed" or is_paused or each.breaker_for < BREAKER_LASTS:
            continue
        if each.error == CREDENTIAL_REFUSED:  # the merchant answers, and has an own alert
            continue
        held_up = each.waiting + each.parked
        yield Finding(
            each.merchant_id,
            f"Merchant {each.merchant_id} does not answer: its breaker has not been closed for"
            f" {each.breaker_for / 60:.0f} minutes, and {held_up:,} of its orders wait or are parked",
            held_up,
        )


def _rows(state: State, order: ColumnElement[Any], *within: ColumnElement[bool]) -> Select[Any]:
    """The first orders of a state, along its index."""
    row = orders.c
    since = func.coalesce(row.in_doubt_since, row.doubt_since, row.updated_at)
    names = ("merchant_id", "action", "state", "reason_code")
    columns = [*(row[name] for name in names), since.label("in_doubt_since")]
    first = select(*columns).where(row.state == state, *within).order_by(order).limit(_MAX_ROWS)
    return select(first.subquery())


def _by_merchant(
    database: Engine,
    parts: Sequence[Select[Any]],
    is_meant: Callable[[Any], ColumnElement[bool]],
    *,
    says: str,
) -> list[Finding]:
    """The orders of these rows that are meant, by merchant, the most first."""
    rows = union_all(*parts).subquery().c
    number = func.count().label("number")
    query = (
        select(rows.merchant_id, number)
        .where(rows.action == Action.SUBMIT, is_meant(rows))
        .group_by(rows.merchant_id)
        .order_by(number.desc(), rows.merchant_id)
        .limit(_MAX_SUBJECTS)
    )
    return _counted(database, query, says)


def _counted(database: Engine, query: Select[Any], says: str) -> list[Finding]:
    """A finding for each merchant of a query, with the number of orders."""
    with database.connect() as connection:
        counts = connection.execute(query).all()
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
        for merchant, count in counts
    ]
