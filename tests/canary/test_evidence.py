"""The evidence in a ledger that workers have written, on both databases."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from pos_gateway.canary import evidence
from pos_gateway.canary.evidence import Side, gather
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.split import Split
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import Clock, an_entry, claimed, without_event
from tests.orders import an_order

#: When the canary got its share, and when it is judged; earlier orders are the baseline. In the past:
#: no order has a row that is newer than the database's time of day.
SINCE, UNTIL = 1_600_000_000.0, 1_600_000_600.0
SPLIT = Split(percent=10, pins=frozenset({"pilot"}))
#: In at 10 %, and not: see docs/wire-format.md.
CANARY, OTHER = "m-8", "m-1"

Write = Callable[..., None]


@pytest.fixture
def payloads() -> Payloads:
    return Payloads(Vault("a passphrase that seals what is kept"))


@pytest.fixture
def write(engine: Engine, payloads: Payloads) -> Iterator[Write]:
    """Has a worker claim an order at a moment, and finish it this many seconds later."""
    clock = Clock()
    ledger = Ledger(engine, payloads, clock=clock)
    number = 0

    def one(
        merchant: str,
        at: float,
        state: State | None = State.ACCEPTED,
        *,
        waited: float = 0.5,
        took: float = 1.0,
        attempts: int = 1,
        written: Callable[[str], str] = str,
    ) -> None:
        nonlocal number
        number += 1
        clock.of_day = at
        key = Key(merchant, f"o{number}")
        placed_at = written(datetime.fromtimestamp(at - waited, UTC).isoformat())
        order = json.dumps(an_order(key.order_id, merchant, placed_at=placed_at)).encode()
        claim = claimed(ledger.claim(key, send=True, deliver_by=at + 300, order=order))
        match state:
            case None:
                return
            case State.NEW:
                entry = without_event(at=at + took)
            case _:
                entry = an_entry(Kind(state.value), key=key, at=at + took, attempts=attempts)
        assert ledger.finish(claim, entry)

    yield one
    ledger.close()


def sides(engine: Engine, payloads: Payloads) -> tuple[Side, Side]:
    return gather(engine, payloads, SPLIT, changed_at=SINCE, since=SINCE, until=UNTIL)


def test_orders_are_counted_by_side_and_outcome(
    engine: Engine, payloads: Payloads, write: Write
) -> None:
    for merchant in (CANARY, "pilot", OTHER):
        for state in State:
            if state.is_final or state is State.IN_DOUBT:
                write(merchant, SINCE + 10, state)
        write(merchant, SINCE + 10, State.NEW)
        write(merchant, SINCE + 10, None)
    canary, stable = sides(engine, payloads)
    assert canary.outcomes.keys() == {CANARY, "pilot"}
    assert stable.outcomes.keys() == {OTHER}
    for outcome, number in {"accepted": 1, "cancelled": 1, "unfinished": 2}.items():
        assert stable.count(outcome) == [(number, 8)]
    for outcome in evidence.OUTCOMES[:-1]:
        assert canary.count(outcome) == [(1, 8)] * 2
    assert (canary.orders, stable.orders) == (16, 8)


def test_only_orders_whose_first_attempt_was_then_count(
    engine: Engine, payloads: Payloads, write: Write
) -> None:
    for at in (SINCE - 1, SINCE, UNTIL - 1, UNTIL):
        write(OTHER, at, took=120.0)
    assert sides(engine, payloads)[1].orders == 2


def _small(time: str) -> str:
    """Also valid by RFC 3339."""
    return time.replace("T", "t").replace("+00:00", "z")


def test_times_are_from_placing_an_order_until_it_is_accepted(
    engine: Engine, payloads: Payloads, write: Write
) -> None:
    for merchant in (CANARY, OTHER):
        for _ in range(evidence.ENOUGH):
            write(merchant, SINCE - 60)
    write(CANARY, SINCE + 1, waited=2.0, took=0.25)
    write(CANARY, SINCE + 2, waited=0.0, took=9.0, attempts=2, written=_small)
    write(CANARY, SINCE + 3, State.REJECTED)
    write(OTHER, SINCE + 1, waited=0.5, took=0.5)
    canary, stable = sides(engine, payloads)
    assert sorted(canary.seconds[CANARY]) == pytest.approx([2.25, 9.0])
    assert stable.seconds[OTHER] == pytest.approx([1.0])


def test_times_are_those_of_merchants_that_were_healthy_before(
    engine: Engine, payloads: Payloads, write: Write
) -> None:
    """Their health since then is what is judged, and must not select the merchants."""
    before = SINCE - 60
    for merchant, bad in {
        "well": {},
        "slow": {"took": evidence.QUICK + 1},
        "failing": {"state": State.REJECTED},
        "repeating": {"attempts": 2},
    }.items():
        for number in range(40):
            write(merchant, before, **(bad if number % 10 == 0 else {}))
    for _ in range(evidence.ENOUGH - 1):
        write("quiet", before)
    for _ in range(evidence.ENOUGH):
        write("long-ago", SINCE - evidence.BEFORE - 1)
    for merchant in ("well", "slow", "failing", "repeating", "quiet", "long-ago", "new"):
        write(merchant, SINCE + 1, took=20.0)
    canary, stable = sides(engine, payloads)
    assert {*canary.seconds, *stable.seconds} == {"well"}


def test_of_many_merchants_a_sample_is_read(
    engine: Engine, payloads: Payloads, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_MERCHANTS", 5)
    monkeypatch.setattr(evidence, "MAX_TIMES", 7)
    for number in range(20):
        for at in (SINCE - 3, SINCE - 2, SINCE - 1, SINCE + 1, SINCE + 2):
            write(f"x{number}", at)
    _, stable = gather(engine, payloads, Split(), changed_at=SINCE, since=SINCE, until=UNTIL)
    assert stable.orders == 40
    assert len(stable.seconds) <= 5
    assert sum(map(len, stable.seconds.values())) == 5  # every second one of ten


def test_a_merchants_health_is_that_before_the_canary_had_its_share(
    engine: Engine, payloads: Payloads, write: Write
) -> None:
    """And not that of the hour before the judged orders, which the canary may have harmed."""
    for _ in range(evidence.ENOUGH):
        write("spoilt-since", SINCE - 7200 - 60)
        write("spoilt-since", SINCE - 60, took=evidence.QUICK + 1)
        write("recovered-since", SINCE - 7200 - 60, took=evidence.QUICK + 1)
        write("recovered-since", SINCE - 60)
        write("new-since", SINCE - 60)
    for merchant in ("spoilt-since", "recovered-since", "new-since"):
        write(merchant, SINCE + 1)
    canary, stable = gather(
        engine, payloads, SPLIT, changed_at=SINCE - 7200, since=SINCE, until=UNTIL
    )
    assert {*canary.seconds, *stable.seconds} == {"spoilt-since"}


def test_a_busy_sides_times_cover_the_same_period_as_a_quiet_ones(
    engine: Engine, payloads: Payloads, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow half hour counts for both, also if the last minutes alone have enough orders."""
    monkeypatch.setattr(evidence, "MAX_TIMES", 10)
    for merchant in (CANARY, OTHER):
        for _ in range(evidence.ENOUGH):
            write(merchant, SINCE - 60)
    for second in range(100):
        slow = 4.0 if second < 50 else 0.5
        write(OTHER, SINCE + second, waited=0.0, took=slow)
        if second % 10 == 0:
            write(CANARY, SINCE + second, waited=0.0, took=slow)
    for side in sides(engine, payloads):
        [times] = side.seconds.values()
        assert len(times) == 10
        assert 3 <= sum(time > 1 for time in times) <= 7
