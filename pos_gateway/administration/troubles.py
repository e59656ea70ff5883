"""Which merchants are in trouble, all workers together: the worst first, each in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, select

from pos_gateway.audit.log import AuditLine
from pos_gateway.database.schema import merchants
from pos_gateway.domain.masking import MASK
from pos_gateway.merchants.pauses import pauses
from pos_gateway.reports.fleet_view import Fleet, FleetTrouble, FleetView
from pos_gateway.reports.report import MAX_TROUBLES
from pos_gateway.reports.words import RecordStatus, in_words
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class InTrouble:
    """A merchant in trouble."""

    trouble: FleetTrouble
    record: RecordStatus
    #: What is wrong.
    words: str


@dataclass(frozen=True, slots=True)
class Troubles:
    """The merchants in trouble at one moment."""

    fleet: Fleet
    #: The worst first.
    worst: Sequence[InTrouble]

    @property
    def more(self) -> int:
        """How many others are in trouble, at least."""
        return max(0, self.fleet.in_trouble - len(self.worst))


def troubles(
    engine: Engine,
    most: int = MAX_TROUBLES,
    clock: Clock = SYSTEM_CLOCK,
    fleet_view: FleetView | None = None,
    *,
    reveal: bool = True,
) -> Troubles:
    """The merchants in most trouble. Four queries; raises SQLAlchemyError.

    Args:
        reveal: show an operator's words, which may name a customer.
    """
    fleet = (fleet_view or FleetView(engine)).now()
    worst = fleet.troubles(most)
    with engine.connect() as connection:
        known = records(connection, [each.merchant_id for each in worst], reveal=reveal)
    return Troubles(fleet, [in_trouble(each, known, fleet, clock) for each in worst])


def in_trouble(
    trouble: FleetTrouble,
    known: Mapping[str, RecordStatus],
    fleet: Fleet,
    clock: Clock = SYSTEM_CLOCK,
) -> InTrouble:
    """One merchant of the fleet's."""
    record = known[trouble.merchant_id]
    words = in_words(trouble, record, workers=fleet.watching, now=clock.now())
    return InTrouble(trouble, record, words)


def records(
    connection: Connection, ids: Sequence[str], *, reveal: bool = True
) -> dict[str, RecordStatus]:
    """What the database has of each of these merchants."""
    query = select(merchants.c.id, merchants.c.paused).where(merchants.c.id.in_(ids))
    are_paused = {row.id: row.paused for row in connection.execute(query)}
    why = pauses(connection, [each for each, paused in are_paused.items() if paused])
    return {
        each: RecordStatus(exists=False)
        if each not in are_paused
        else _record(are_paused[each], why.get(each), reveal=reveal)
        for each in ids
    }


def _record(paused: bool, line: AuditLine | None, *, reveal: bool) -> RecordStatus:
    if line is None:
        return RecordStatus(paused=paused)
    reason = line.reason if reveal else line.reason and MASK
    return RecordStatus(paused=paused, since=line.at, by=line.operator, reason=reason)
