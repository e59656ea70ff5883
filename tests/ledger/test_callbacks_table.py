"""What follows from a callback, by the order's state: this table is all of it.

| the order is       | accepted | rejected         | cancelled        | preparing | ready    | completed |
|--------------------|----------|------------------|------------------|-----------|----------|-----------|
| not known          | unknown  | unknown          | unknown          | unknown   | unknown  | unknown   |
| not sent           | unsent   | unsent           | unsent           | unsent    | unsent   | unsent    |
| sending            | +accepted | +rejected       | +cancelled       | +accepted +preparing | +accepted +ready | +accepted +completed |
| to be sent again   | +accepted | +rejected       | +cancelled       | +accepted +preparing | +accepted +ready | +accepted +completed |
| pending            | +accepted | +rejected       | +cancelled       | +accepted +preparing | +accepted +ready | +accepted +completed |
| in_doubt           | +accepted | +rejected       | +cancelled       | +accepted +preparing | +accepted +ready | +accepted +completed |
| accepted           | known    | +cancelled_by_pos | +cancelled_by_pos | +preparing | +ready | +completed |
| preparing          | known    | +cancelled_by_pos | +cancelled_by_pos | known    | +ready   | +completed |
| ready              | known    | +cancelled_by_pos | +cancelled_by_pos | late     | known    | +completed |
| completed          | known    | +cancelled_by_pos | +cancelled_by_pos | late     | late     | known     |
| cancelled_by_pos   | known    | known            | known            | late      | late     | late      |
| rejected           | contradiction | known       | known            | contradiction | contradiction | contradiction |
| cancelled          | contradiction | known       | known            | contradiction | contradiction | contradiction |
| expired            | contradiction | known       | known            | contradiction | contradiction | contradiction |
| failed             | contradiction | known       | known            | contradiction | contradiction | contradiction |

``+`` is an event that is recorded. An order's standing is the last one of them, so the table also
says what follows from callbacks that come late, twice, or in the wrong order.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from pos_gateway.domain.callback import Callback
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import Applied, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import DAY, Clock, Rows, Worker, an_entry, claimed, without_event

HERE = "the POS"
_, _HEAD, _, *_ROWS, _, _, _ = (__doc__ or "").replace("\n\n", "\n", 1).splitlines()
_CELLS = [[cell.strip() for cell in row.strip("|").split("|")] for row in (_HEAD, *_ROWS)]
MEANINGS = _CELLS[0][1:]
#: By the order's standing and the callback's meaning.
TABLE = {
    (row[0], meaning): cell
    for row in _CELLS[1:]
    for meaning, cell in zip(MEANINGS, row[1:], strict=True)
}
STANDINGS = list(dict.fromkeys(standing for standing, _ in TABLE))
STAGES = [each.value for each in Lifecycle]


@pytest.fixture
def ledgers(engine: Engine) -> Iterator[list[CallbackLedger]]:
    """Of two servers."""
    clock = Clock()
    found = [CallbackLedger(engine, Payloads(Vault()), dehydrated, clock) for _ in range(2)]
    yield found
    for each in found:
        each.close()


def meaning_of(name: str) -> Kind | Lifecycle:
    return Lifecycle(name) if name in STAGES else Kind(name)


def said(key: Key, meaning: str, event_id: str) -> Received:
    callback = Callback(event_id, meaning_of(meaning), key.order_id)
    return Received("rest", key.merchant_id, callback, {key.merchant_id: (HERE,)})


def bring(worker: Worker, ledger: CallbackLedger, key: Key, standing: str) -> None:
    """Bring an order there, by an attempt and, behind an acceptance, a callback."""
    if standing == "not known":
        return
    claim = claimed(worker.claim(key, send=standing != "not sent", endpoint=HERE))
    match standing:
        case "sending":
            return
        case "not sent" | "to be sent again":
            entry = without_event()
        case "pending":
            entry = an_entry(Kind.PENDING, key=key, pending=True)
        case "in_doubt":
            entry = an_entry(Kind.IN_DOUBT, key=key, doubt_since=DAY)
        case _:
            entry = an_entry(Kind.ACCEPTED if standing in STAGES else Kind(standing), key=key)
    assert worker.finish(claim, entry)
    if standing in STAGES:
        ledger.apply([said(key, "cancelled" if standing == STAGES[-1] else standing, f"to {key}")])


def expected(standing: str, meaning: str) -> tuple[str, list[str], str]:
    """What is answered, the events, and the order's standing then."""
    cell = TABLE[standing, meaning]
    events = [each.removeprefix("+") for each in cell.split() if each.startswith("+")]
    return ("applied", events, events[-1]) if events else (cell, [], standing)


def seen(applied: Applied) -> tuple[str, list[str]]:
    return applied.result.value, [each.value for each in applied.events]


def test_every_state_is_in_the_table() -> None:
    states = {"sending", "pending", "in_doubt", *(each for each in State if each.is_final)}
    assert {*STANDINGS} == {"not known", "not sent", "to be sent again", *states, *STAGES}


@pytest.mark.parametrize("standing", STANDINGS)
def test_what_follows_is_as_the_table_has_it(
    ledgers: list[CallbackLedger], worker: Callable[..., Worker], rows: Rows, standing: str
) -> None:
    keys = [Key(f"m-{meaning}", "o1") for meaning in MEANINGS]
    one = worker()
    for key in keys:
        bring(one, ledgers[0], key, standing)
    before = len(rows.events())
    calls = [said(key, meaning, "1") for key, meaning in zip(keys, MEANINGS, strict=True)]
    applied = ledgers[0].apply(calls)
    wanted = [expected(standing, meaning) for meaning in MEANINGS]
    assert [seen(each) for each in applied] == [(result, events) for result, events, _ in wanted]
    recorded = [(row.merchant_id, row.type) for row in rows.events()[before:]]
    assert recorded == [
        (key.merchant_id, event)
        for key, (_, events, _) in zip(keys, wanted, strict=True)
        for event in events
    ]


#: An order, what is said of it, which message of that it is, and which server it comes to.
_SAID = st.tuples(
    st.integers(0, 2), st.sampled_from(MEANINGS), st.integers(0, 1), st.integers(0, 1)
)


def test_any_history_is_as_the_table_has_it(
    engine: Engine, ledgers: list[CallbackLedger], worker: Callable[..., Worker]
) -> None:
    """Late, twice, in any order and in any groups, at two servers."""
    one, rows, number = worker(), Rows(engine), iter(range(10**9))
    most = int(os.environ.get("EXAMPLES", "24"))

    @settings(
        max_examples=most // (4 if engine.dialect.name == "postgresql" else 1),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=list(Phase) if "SHRINK" in os.environ else [Phase.generate],
    )
    @given(
        begins=st.lists(st.sampled_from(STANDINGS), min_size=3, max_size=3),
        history=st.lists(st.lists(_SAID, min_size=1, max_size=4), max_size=8),
    )
    def holds(begins: list[str], history: list[list[tuple[int, str, int, int]]]) -> None:
        keys = [Key(f"m{next(number)}", "o1") for _ in begins]
        for key, standing in zip(keys, begins, strict=True):
            bring(one, ledgers[0], key, standing)
        standings, told = list(begins), [told_of(rows, key) for key in keys]
        known = set[tuple[int, str, int]]()
        for group in history:
            ledger = ledgers[group[0][3]]
            calls = [said(keys[n], meaning, f"{meaning}-{copy}") for n, meaning, copy, _ in group]
            for (n, meaning, copy, _), applied in zip(group, ledger.apply(calls), strict=True):
                result, events, standing = expected(standings[n], meaning)
                if (n, meaning, copy) in known:
                    result, events, standing = "duplicate", [], standings[n]
                known.add((n, meaning, copy))
                assert seen(applied) == (result, events)
                standings[n] = standing
                told[n] += events
        assert [told_of(rows, key) for key in keys] == told

    holds()


def told_of(rows: Rows, key: Key) -> list[str]:
    return [row.type for row in rows.events() if row.merchant_id == key.merchant_id]


@pytest.mark.parametrize("first", ["accepted", "rejected", "cancelled"])
def test_behind_its_end_an_orders_standing_is_the_same_in_any_order_of_arrival(
    first: str,
) -> None:
    for others in permutations([each for each in MEANINGS if each != first]):
        standing = "pending"
        for meaning in (first, *others):
            *_, standing = expected(standing, meaning)
        assert standing == ("cancelled_by_pos" if first == "accepted" else first)


@pytest.mark.parametrize("said_of_it", [("accepted", "rejected"), ("accepted", "cancelled")])
def test_an_acceptance_and_its_contrary_are_both_heard_of(said_of_it: Sequence[str]) -> None:
    """Whichever comes first is the end; the other is an event or an operator's."""
    for one, other in permutations(said_of_it):
        _, events, standing = expected("sending", one)
        assert events == [one]
        result, events, _ = expected(standing, other)
        assert (result, events) in [("applied", ["cancelled_by_pos"]), ("contradiction", [])]
