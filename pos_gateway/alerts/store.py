"""The alerts' rows, and the claim of the one server that decides and sends.

The claim is a row with a time limit, by the database's clock. It spares servers double work; what keeps an
alert from being sent twice is that each attempt is counted in its row before it begins, by a server that
has the claim at that moment.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, and_, delete, insert, or_, select, update

from pos_gateway.alerts.condition import Condition
from pos_gateway.alerts.rules import Alert, AlertState, again_in
from pos_gateway.database.clock import Now
from pos_gateway.database.schema import alert_claim, alerts

#: Seconds for which a claim lasts: longer than a round, and than one message.
LEASE = 60.0

Decide = Callable[[Sequence[Alert], float], Sequence[Alert]]


class AlertStore:
    """One server's. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._owner = uuid4().hex

    def claim(self) -> bool:
        """Take or keep the claim; False: another server has it."""
        with self._engine.begin() as connection:
            return self._claimed(connection)

    def release(self) -> None:
        """Let another server have the claim at once. Idempotent."""
        with self._engine.begin() as connection:
            ours = alert_claim.c.owner == self._owner
            connection.execute(update(alert_claim).where(ours).values(owner=None, until=0.0))

    def update(self, decide: Decide) -> bool:
        """Replace the rows by what is decided of them; False: another server has the claim."""
        with self._engine.begin() as connection:
            if not self._claimed(connection):
                return False
            before = {each.key: each for each in _read(connection)}
            decided = {each.key: each for each in decide([*before.values()], _now(connection))}
            for key in before.keys() - decided.keys():
                connection.execute(delete(alerts).where(_has_key(before[key])))
            for key, alert in decided.items():
                if key not in before:
                    connection.execute(insert(alerts).values(_values(alert)))
                elif alert != before[key]:
                    connection.execute(update(alerts).where(_has_key(alert)).values(_values(alert)))
            return True

    def due(self, most: int) -> list[Alert]:
        """Alerts with a message to send now, the oldest first."""
        with self._engine.connect() as connection:
            now = _now(connection)
            found = [each for each in _read(connection) if each.is_due(now)]
        return sorted(found, key=lambda each: each.since)[:most]

    def begin(self, alert: Alert) -> bool:
        """Count an attempt to send; False: it is another server's, or the alert has changed."""
        attempts = alert.attempts + 1
        with self._engine.begin() as connection:
            if not self._claimed(connection):
                return False
            counted = connection.execute(
                update(alerts)
                .where(
                    _is_same(alert),
                    alerts.c.attempts == alert.attempts,
                    alerts.c.is_sent == alert.is_sent,  # a message that came through counts anew
                )
                .values(attempts=attempts, next_at=Now() + again_in(attempts))
            )
            return counted.rowcount == 1

    def delivered(self, alert: Alert) -> None:
        """The receiver has the message."""
        with self._engine.begin() as connection:
            if alert.state is AlertState.RESOLVED:
                connection.execute(delete(alerts).where(_is_same(alert)))
            else:
                values = {"is_sent": True, "attempts": 0, "next_at": 0.0}
                connection.execute(update(alerts).where(_is_same(alert)).values(values))

    def all(self) -> list[Alert]:
        """Every alert, the oldest first."""
        with self._engine.connect() as connection:
            return sorted(_read(connection), key=lambda each: each.since)

    def _claimed(self, connection: Connection) -> bool:
        claim = alert_claim.c
        is_free = or_(
            claim.owner == self._owner,
            claim.owner.is_(None),
            claim.until <= Now(),
            claim.until > Now() + 2 * LEASE,  # the database's clock was set back
        )
        taken = connection.execute(
            update(alert_claim).where(is_free).values(owner=self._owner, until=Now() + LEASE)
        )
        return taken.rowcount == 1


def _now(connection: Connection) -> float:
    return float(connection.execute(select(Now())).scalar_one())


def _read(connection: Connection) -> list[Alert]:
    known = {each.value for each in Condition}  # a later release's are left alone
    rows = connection.execute(select(alerts)).mappings()
    return [_alert(row) for row in rows if row["condition"] in known]


def _alert(row: Mapping[Any, Any]) -> Alert:
    fields = dict(row)
    fields["condition"] = Condition(fields["condition"])
    fields["state"] = AlertState(fields["state"])
    return Alert(**fields)


def _values(alert: Alert) -> dict[str, Any]:
    return {column.name: getattr(alert, column.name) for column in alerts.c}


def _has_key(alert: Alert) -> Any:
    return and_(alerts.c.condition == alert.condition, alerts.c.subject == alert.subject)


def _is_same(alert: Alert) -> Any:
    return and_(_has_key(alert), alerts.c.incident == alert.incident, alerts.c.state == alert.state)
