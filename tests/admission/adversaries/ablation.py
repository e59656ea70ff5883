"""Which adversary succeeds without a rule: ``python -m tests.admission.adversaries.ablation``."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import sqrt
from typing import Any
from unittest.mock import PropertyMock, patch

from pos_gateway.admission import scheduler
from pos_gateway.admission.breaker import Breaker
from pos_gateway.admission.bulkhead import Bulkhead
from pos_gateway.admission.health import Health
from pos_gateway.admission.lane import Lane, LookUps, Provider
from pos_gateway.admission.limit_trial import LimitTrial
from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.admission.pacing import Pacing
from pos_gateway.admission.scheduler import Scheduler
from pos_gateway.admission.usage import Usage
from tests.admission.adversaries.table import ADVERSARIES

Patch = Callable[[], AbstractContextManager[Any]]


def _all_heavy(line: Any, lane: Any, _now: float) -> float:
    lane.is_light = False
    return 1.0


def _by_what_is_held(line: Any, _now: float) -> float:
    return float(line._reserve + line.light.held + 2 * sqrt(line.light.held))


def _any_slot(line: Any, lane: Any, now: float) -> bool:
    part = _HAS_SLOT(line, lane, now)
    return line.in_flight < line._slots if lane.is_light else part


def _any_silent(line: Any, lane: Any, now: float) -> bool:
    line._budget = line._slots
    return _HAS_SLOT(line, lane, now)


def _heavy_lack(line: Any, now: float) -> bool:
    return bool(line._heavy) or (bool(line._paced) and line._pacing.lets_start(now))


def _by_arrival(_line: Any, _lane: Any, now: float) -> float:
    return now


_HAS_SLOT = Scheduler.has_slot
FLAPPING = "500 of 1,000 hang and recover, of 20 providers"
_BY_NAME = {each.name: each for each in ADVERSARIES}

#: The rules, how each is switched off, and adversaries that may succeed then.
RULES: dict[str, tuple[Patch, Sequence[str]]] = {
    "light merchants first": (
        partial(patch.object, Scheduler, "judge", _all_heavy),
        ("40 at 2.5 s", "100 at 1 s"),
    ),
    "up to their whole fair part while they keep up": (
        partial(patch.object, scheduler, "LIGHT", scheduler.LIGHT_WITH_BACKLOG),
        (FLAPPING,),
    ),
    "and half of it with a backlog": (
        partial(patch.object, scheduler, "LIGHT_WITH_BACKLOG", scheduler.LIGHT),
        (FLAPPING, "40 at 2.5 s", "500 at 1 s, one each", "300 at 1.5 s, an order each at once"),
    ),
    "or while strangers wait": (
        partial(patch.object, Scheduler, "_keeps_up", lambda _line, lane: lane.waiting <= 1),
        ("a rate just over what 100 at 1 s take",),
    ),
    "a reserve of 4 %": (
        partial(patch.object, AdmissionLimits, "reserve", PropertyMock(return_value=0)),
        ("300 at 1.5 s, an order each at once", "40 at 2.5 s", "500 at 1 s, one each"),
    ),
    "a reserve that leaves more the less is used": (
        partial(patch.object, Scheduler, "has_slot", _any_slot),
        ("300 at 1.5 s, an order each at once",),
    ),
    "a reserve for the average of light calls": (
        partial(patch.object, Scheduler, "_need", _by_what_is_held),
        ("100 at 2.5 s beside 540 orders/s at 0.2 s", "a busy one beside 100 that hang"),
    ),
    "and for chance, twice the root of it": (
        partial(patch.object, scheduler, "DEVIATIONS", 0.0),
        ("100 at 2.5 s beside 540 orders/s at 0.2 s", "40 at 2.5 s"),
    ),
    "who has used least goes first": (
        partial(patch.object, Scheduler, "_key", _by_arrival),
        ("20 at 2 s with a limit of 50 beside 100 at 0.3 s",),
    ),
    "heavy merchants' starts are paced": (
        partial(patch.object, Pacing, "lets_start", lambda *_: True),
        ("40 at 2.5 s, in step", "100 at 1 s, in step"),
    ),
    "one call at once of a stranger": (
        partial(patch.object, Lane, "is_early", PropertyMock(return_value=False)),
        ("40 at 2.5 s", "20 at 2 s, a limit of 50", "100 at 2.5 s of one provider"),
    ),
    "a budget for silent merchants": (
        partial(patch.object, Scheduler, "has_slot", _any_silent),
        ("40 at 2.5 s beside 100 that are dead",),
    ),
    "a provider falls silent as one": (
        partial(patch.object, Provider, "is_unusual", lambda *_: None),
        ("500 of one provider hang",),
    ),
    "its silence is no credit": (
        partial(patch.object, Usage, "raise_to", lambda *_: None),
        (FLAPPING,),
    ),
    "calls are cut short": (
        partial(patch.object, Health, "to_cut_short", lambda *_: []),
        ("500 of 1,000 hang", "500 hang, and the worker has just started"),
    ),
    "for heavy orders, too": (
        partial(patch.object, Scheduler, "silence_is_costly", lambda *_: False),
        ("a busy one beside 100 that hang",),
    ),
    "but only while silent ones hold a quarter": (
        partial(patch.object, Scheduler, "silence_is_costly", _heavy_lack),
        ("100 at 1 s on average, some at 10 s",),
    ),
    "new orders do not go before every look-up": (
        partial(patch.object, LookUps, "go_first", lambda *_: False),
        ("2 with three times the orders that they take, and some in doubt",),
    ),
    "nor look-ups before every new order": (
        partial(patch.object, LookUps, "go_first", lambda *_: True),
        ("2 whose look-ups hang",),
    ),
    "look-ups have room of their own to wait": (
        partial(patch.object, Lane, "waiting_of", lambda lane, look_ups: lane.waiting),
        ("2 with three times the orders that they take, and some in doubt",),
    ),
    "a breaker for each merchant": (
        partial(patch.object, Breaker, "is_tripped", lambda *_: False),
        ("10 that answer 500 to all",),
    ),
    "a limit that is halved": (
        partial(patch.object, Bulkhead, "overloaded", lambda *_, **__: None),
        ("10 that take 3 at once, and are agreed to take 10",),
    ),
    "and kept lowered only if that helps": (
        partial(patch.object, LimitTrial, "is_useless", PropertyMock(return_value=False)),
        ("5 that time out in every fourth call, whatever the load",),
    ),
}


def gets_through(rule: str) -> Iterator[str]:
    """The rule's adversaries that succeed without it, each with the promises it breaks."""
    switch_off, names = RULES[rule]
    for name in names:
        with switch_off():
            driver = _BY_NAME[name].play()
        if broken := _BY_NAME[name].broken(driver):
            yield f"{name}: {', '.join(broken)}"


def main(parts: Sequence[str] = ()) -> None:
    """Switch off one rule after the other; those with a part in their names."""
    print("| without | gets through |")
    print("|---|---|")
    for rule in RULES:
        if not parts or any(part in rule for part in parts):
            print(f"| {rule} | {'; '.join(gets_through(rule))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
