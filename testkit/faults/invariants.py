"""What must hold whatever went wrong, judged by the POSes' own records.

1. Every confirmed order has come to an end, or is in doubt and listed as such. What failed or
   expired is in ``orders.dead``, and nothing else is.
2. A POS made an order once at most, whatever it offers against a second time.
3. What was told of an order, repeats aside, came in the order in which it was written; and all
   events, repeats aside, by their positions, without a gap. One that a broker had delivered to a
   connection that was lost may come behind later ones (docs/consuming-events.md).
4. The ledger says what the POS says.
5. Merchants that were healthy had all of their orders accepted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from testkit.faults.backend import IN_DOUBT, TERMINAL, Name, distinct
from testkit.faults.books import Books, Entry

_ENDS = frozenset(kind.removeprefix("order.") for kind in TERMINAL)
#: Ends after which the order is in ``orders.dead``, to be replayed or discarded.
_SET_ASIDE = frozenset({"failed", "expired"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by."""

    #: Orders that the broker confirmed.
    placed: Collection[Name]
    #: What was told of them, as it came.
    told: Mapping[Name, Sequence[dict[str, Any]]]
    books: Books
    #: The POSes' own records.
    at_pos: Mapping[Name, Mapping[str, Any]]
    #: Orders that an operator is shown as in doubt; None if that was not asked for.
    listed: Collection[Name] | None = None
    #: Ids of the orders in ``orders.dead``; None if that was not asked for.
    dead: Collection[str] | None = None
    #: The events' positions in the order in which each came first.
    positions: Collection[int] = ()
    #: Those of them that came first as a redelivery.
    redelivered: Collection[int] = ()


@dataclass(slots=True)
class Verdict:
    """What was found: orders that broke an invariant, and those that are in doubt."""

    #: Not at an end, and not in doubt; or at an end without an event.
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    contradicted: list[str] = field(default_factory=list)
    held_up: list[str] = field(default_factory=list)
    in_doubt: list[Name] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """A sentence for every order that broke an invariant; empty if all hold."""
        return [
            *self.lost,
            *self.doubled,
            *self.out_of_order,
            *self.contradicted,
            *self.held_up,
        ]

    def __str__(self) -> str:
        found = "\n".join(self.broken[:20])
        return f"{len(self.broken)} broken, {len(self.in_doubt)} in doubt\n{found}"


def records(at_pos: Iterable[Mapping[str, Any]]) -> dict[Name, Mapping[str, Any]]:
    """``MerchantsClient.orders()`` by merchant and order."""
    return {(each["merchant"], each["order_id"]): each for each in at_pos}


def judge(
    evidence: Evidence, *, healthy: Callable[[str], bool] = lambda _merchant: False
) -> Verdict:
    """Hold the evidence against every invariant.

    Args:
        evidence: collected when no order is in flight any more.
        healthy: whether nothing was wrong with this merchant (5), nor its orders cancelled.
    """
    verdict = Verdict()
    for name in evidence.placed:
        entry = evidence.books.submissions.get(name)
        told = distinct(evidence.told.get(name, ()))
        _end(verdict, name, entry, {event["type"] for event in told})
        _set_aside(verdict, name, entry, evidence)
        if healthy(name[0]) and (entry is None or entry.state != "accepted"):
            verdict.held_up.append(f"{name}: at a healthy merchant it is {_state(entry)}")
    for name, events in evidence.told.items():
        _sequence(verdict, name, events, evidence)
    _positions(verdict, evidence)
    for name, record in evidence.at_pos.items():
        if record["creates"] > 1:
            verdict.doubled.append(f"{name}: made {record['creates']} times")
    for name in {*evidence.books.submissions, *evidence.at_pos}:
        _truth(verdict, name, evidence.books, evidence.at_pos.get(name, {}))
    return verdict


def _end(verdict: Verdict, name: Name, entry: Entry | None, kinds: set[str]) -> None:
    if entry is not None and entry.state == "in_doubt" and IN_DOUBT in kinds:
        verdict.in_doubt.append(name)
    elif entry is None or entry.state not in _ENDS:
        verdict.lost.append(f"{name}: {_state(entry)}, told {sorted(kinds)}")
    elif f"order.{entry.state}" not in kinds:
        verdict.lost.append(f"{name}: {entry.state}, but told {sorted(kinds)}")


def _set_aside(verdict: Verdict, name: Name, entry: Entry | None, evidence: Evidence) -> None:
    """What waits for an operator is listed to operators, and nothing else is."""
    state = None if entry is None else entry.state
    listed = evidence.listed is not None and name in evidence.listed
    if evidence.listed is not None and listed != (state == "in_doubt"):
        where = "listed" if listed else "not listed"
        verdict.lost.append(f"{name}: {_state(entry)}, but {where} as in doubt")
    if evidence.dead is not None and (name[1] in evidence.dead) != (state in _SET_ASIDE):
        where = "in" if name[1] in evidence.dead else "not in"
        verdict.lost.append(f"{name}: {_state(entry)}, but {where} orders.dead")


def _sequence(
    verdict: Verdict, name: Name, events: Sequence[dict[str, Any]], evidence: Evidence
) -> None:
    written = list(evidence.books.events.get(name, ()))
    told = distinct(events)
    if strange := {event["id"] for event in told} - set(written):
        verdict.out_of_order.append(f"{name}: told {len(strange)} events that were never written")
    in_turn = [event["id"] for event in told if event["position"] not in evidence.redelivered]
    if in_turn != [event for event in written if event in in_turn]:
        verdict.out_of_order.append(f"{name}: told {in_turn}, written {written}")


def _positions(verdict: Verdict, evidence: Evidence) -> None:
    came = set(evidence.positions)
    if missing := set(range(1, max(came, default=0) + 1)) - came:
        verdict.out_of_order.append(f"positions {sorted(missing)[:5]} never came")
    in_turn = [each for each in evidence.positions if each not in evidence.redelivered]
    for earlier, later in pairwise(in_turn):
        if later < earlier:
            verdict.out_of_order.append(f"position {later} came behind {earlier}")
            break


def _truth(verdict: Verdict, name: Name, books: Books, record: Mapping[str, Any]) -> None:
    entry, made = books.submissions.get(name), record.get("creates", 0) > 0
    cancelled = name in books.cancellations and books.cancellations[name].state == "cancelled"
    there = made and record["state"] != "cancelled"
    match None if entry is None else entry.state:
        case None:
            wrong = bool(record)  # a request that nothing was written of before
        case "accepted":
            wrong = not made or there == cancelled
        case "rejected" | "cancelled" | "expired" | "failed":
            wrong = there
        case _:
            wrong = False  # not at its end: (1) has something to say of it
    if wrong:
        at_pos = record.get("state") or ("asked" if record else "nothing")
        verdict.contradicted.append(f"{name}: the ledger says {_state(entry)}, its POS {at_pos}")


def _state(entry: Entry | None) -> str:
    return "unknown" if entry is None else f"{entry.state} ({entry.reason or 'no reason'})"
