"""The judge of a soak: each way in which an order can go wrong is found, and named."""

from dataclasses import replace
from typing import Any

import pytest

from loadtests.soak.parts import Result
from testkit.faults.books import Books, Entry
from testkit.faults.invariants import Evidence, judge

ORDER = ("keyed-0", "o1")


def entry(state: str, reason: str | None = None) -> Entry:
    return Entry(state, state, reason, attempts=1, deaths=0)


def evidence(state: str, *, told: list[str] | None = None, creates: int = 0) -> Evidence:
    """One order that came to this state, was told so, and was made so often at its POS."""
    kinds = [f"order.{state}"] if told is None else told
    events = [{"id": kind, "type": kind, "position": n} for n, kind in enumerate(kinds, 1)]
    record: dict[str, Any] = {"creates": creates, "state": "accepted"}
    return Evidence(
        placed=[ORDER],
        told={ORDER: events},
        books=Books({ORDER: entry(state)}, {}, {ORDER: [event["id"] for event in events]}),
        at_pos={ORDER: record} if creates else {},
        listed=[ORDER] if state == "in_doubt" else [],
        dead=["o1"] if state in ("failed", "expired") else [],
    )


@pytest.mark.parametrize(
    "sound",
    [
        evidence("accepted", creates=1),
        evidence("rejected"),
        evidence("failed"),
        evidence("expired"),
        evidence("in_doubt"),
        evidence("in_doubt", creates=1),
    ],
)
def test_orders_that_came_to_an_end_or_are_in_doubt_pass(sound: Evidence) -> None:
    assert judge(sound).broken == []


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (evidence("new", told=[]), "new (no reason), told []"),
        (evidence("accepted", told=[], creates=1), "accepted, but told []"),
        (evidence("in_doubt", told=[]), "in_doubt (no reason), told []"),
        (replace(evidence("in_doubt"), listed=[]), "not listed as in doubt"),
        (replace(evidence("accepted", creates=1), listed=[ORDER]), "listed as in doubt"),
        (replace(evidence("failed"), dead=[]), "not in orders.dead"),
        (replace(evidence("accepted", creates=1), dead=["o1"]), "in orders.dead"),
        (replace(evidence("new", told=[]), books=Books({}, {}, {})), "unknown, told []"),
    ],
)
def test_an_order_that_is_not_listed_to_operators_is_lost(lost: Evidence, why: str) -> None:
    verdict = judge(lost)

    assert len(verdict.lost) == 1
    assert str(ORDER) in verdict.lost[0]
    assert why in verdict.lost[0]


def test_an_order_that_its_pos_made_twice_is_doubled() -> None:
    assert judge(evidence("accepted", creates=2)).doubled == [f"{ORDER}: made 2 times"]


@pytest.mark.parametrize(
    "contradiction",
    [evidence("accepted"), evidence("rejected", creates=1), evidence("failed", creates=1)],
)
def test_a_ledger_that_says_other_than_the_pos_is_contradicted(contradiction: Evidence) -> None:
    assert len(judge(contradiction).contradicted) == 1


@pytest.mark.parametrize("positions", [[1, 3], [2], [1, 3, 2]])
def test_positions_that_do_not_come_one_by_one_are_out_of_order(positions: list[int]) -> None:
    found = judge(replace(evidence("accepted", creates=1), positions=positions))
    assert len(found.out_of_order) == 1
    assert not judge(replace(evidence("accepted", creates=1), positions=[1, 2])).broken


def test_only_a_redelivered_event_may_come_behind_later_ones() -> None:
    sound = evidence("accepted", told=["order.in_doubt", "order.accepted"], creates=1)
    late = replace(sound, told={ORDER: sound.told[ORDER][::-1]}, positions=[2, 1])
    assert len(judge(late).out_of_order) == 2
    assert len(judge(replace(late, redelivered={2})).out_of_order) == 0
    assert len(judge(replace(late, positions=[2], redelivered={1})).out_of_order) == 1


def test_an_order_in_doubt_of_which_no_worker_died_is_named() -> None:
    name = ("blind-0", "o7")
    result = Result("kills", "1")
    result.verdict.in_doubt.append(name)

    assert result.broken == [f"{name}: in doubt, and no worker was killed while it was in SENDING"]

    result.may_be_in_doubt.add(name)

    assert result.broken == []
