"""A whole benchmark: the cases that are named, in turn, and what they showed."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from loadtests.bench import (
    admission,
    bursts,
    cache,
    holding,
    one_hangs,
    overhead,
    steady,
    viewers,
)
from loadtests.bench.attacks import backlog, bout
from loadtests.bench.attacks.attack import ATTACKS
from loadtests.bench.attacks.plays import Observation
from loadtests.bench.attacks.series import series
from loadtests.bench.cases import CASES, Case, Round, report, run
from loadtests.bench.catalogue import HOSTILE
from loadtests.bench.events import measure as events
from loadtests.bench.http import measure as http
from loadtests.bench.micro.cases import MICROS
from loadtests.bench.report import machine, number
from loadtests.bench.servers import Servers
from loadtests.bench.slow_merchants import SLOW_MERCHANTS
from loadtests.bench.small_core.measure import SmallCore


class Measure(Protocol):
    """A module, or an object, that measures something in rounds and reports it.

    One whose rounds can be invalid also has ``faults``, which takes what ``measure`` returned.
    """

    @property
    def NAME(self) -> str:  # noqa: N802
        """What it is called."""

    @property
    def measure(self) -> Callable[..., Any]:
        """Takes servers, rounds, and ``quick``; returns what ``json`` and ``report`` take."""

    @property
    def report(self) -> Callable[[Any], str]:
        """Its tables."""


#: The names of what can be played, and attacks by their letters, as the documentation has them.
LETTERS = {
    **{attack.letter: attack.name for attack in ATTACKS},
    backlog.LETTER: backlog.NAME,
}
#: Of the whole gateway, beside the cases; merchants in trouble; what a part of it costs.
_WHOLE: Sequence[Measure] = (
    one_hangs.ONE_HANGS,
    overhead,
    SLOW_MERCHANTS,
    bursts,
    holding,
    steady,
)
_ATTACKED: Sequence[Measure] = (backlog, HOSTILE, SmallCore())
_COSTS: Sequence[Measure] = (admission, cache, *MICROS, events, http, viewers)
#: The gateway beside what a user would pick instead, and the figures that it is to reach.
COMPARISON = [*(case.name for case in CASES), *(each.NAME for each in _WHOLE)]
NAMES = [
    *COMPARISON,
    *(LETTERS[letter] for letter in sorted(LETTERS)),
    *(each.NAME for each in (*_ATTACKED[1:], *_COSTS)),
]


class Bench:
    """Plays the cases that are named, and keeps what they showed.

    Args:
        names: of cases and attacks.
        rounds: None: one if quick, else three, but one of the backlog, which takes minutes.
        quick: shorter runs.
        measures: those that are played instead of the usual ones of their names.
    """

    def __init__(
        self,
        names: Sequence[str],
        rounds: int | None,
        *,
        quick: bool,
        measures: Sequence[Measure] = (),
    ) -> None:
        self._cases = [case.of_size(quick=quick) for case in CASES if case.name in names]
        self._attacks = [attack for attack in ATTACKS if attack.name in names]
        instead = {each.NAME: each for each in measures}
        known = [instead.get(each.NAME, each) for each in (*_ATTACKED, *_WHOLE, *_COSTS)]
        self._measures = [each for each in known if each.NAME in names]
        self._rounds, self._quick = rounds, quick
        self._results: dict[str, list[Round]] = {}
        self._bouts: dict[str, list[list[bout.Bout]]] = {each.name: [] for each in self._attacks}
        self._measured: dict[str, Any] = {}
        #: What is being played.
        self.playing = ""
        self._series: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def check(self) -> None:
        """Raises RivalMissingError unless what is to be played is installed."""
        candidates = [entry.candidate for case in self._cases for entry in case.entries]
        if one_hangs.ONE_HANGS in self._measures and not self._quick:
            candidates += one_hangs.RIVALS
        if steady in self._measures and not self._quick:
            candidates += steady.RIVALS
        for candidate in candidates:
            candidate.check()

    def play(self, servers: Servers) -> Iterator[str]:
        """The tables of each case, once it has been played."""
        rounds = self._rounds or (1 if self._quick else 3)
        for case in self._cases:
            self._results[case.name] = [self._play(servers, case, turn) for turn in range(rounds)]
            yield report(case, self._results[case.name])
        for turn in range(rounds if self._attacks else 0):
            self._begin(f"attacks, round {turn + 1} of {rounds}")
            played = bout.play_round(
                servers, self._attacks, turn, quick=self._quick, watcher=self._watch
            )
            for name, bouts in played.items():
                self._bouts[name].append(bouts)
        for attack in self._attacks:
            yield bout.report(attack, self._bouts[attack.name])
        for each in self._measures:
            self._begin(each.NAME)
            times = self._rounds or getattr(each, "ROUNDS", rounds)
            self._measured[each.NAME] = each.measure(servers, times, quick=self._quick)
            self._done("done")
            yield each.report(self._measured[each.NAME])

    @property
    def faults(self) -> list[str]:
        """Why runs that were played say nothing."""
        found = [
            f"{name}: {each.candidate}: {fault}"
            for name, rounds in self._bouts.items()
            for played in rounds
            for each in played
            for fault in each.faults
        ]
        for each in self._measures:
            if each.NAME in self._measured and hasattr(each, "faults"):
                faults = each.faults(self._measured[each.NAME])
                found += [f"{each.NAME}: {fault}" for fault in faults]
        return found

    @property
    def series(self) -> list[dict[str, Any]]:
        """Slots over time of every run in which merchants were in trouble."""
        backlogs = self._measured.get(backlog.NAME, [])
        return self._series + [each.series() for played in backlogs for each in played]

    @property
    def figures(self) -> dict[str, Any]:
        """Every run's figures."""
        return {
            "machine": machine(),
            "cases": {
                name: [list(each.values()) for each in rounds]
                for name, rounds in self._results.items()
            },
            "attacks": self._bouts,
            **self._measured,
        }

    def _play(self, servers: Servers, case: Case, turn: int) -> Round:
        """The entries in turn, every other round backwards: drift meets each of them alike."""
        results = {}
        for entry in case.entries if turn % 2 == 0 else reversed(case.entries):
            self._begin(f"{case.name}, round {turn + 1}: {entry.name}")
            result = results[entry.name] = run(servers, entry, quick=self._quick)
            self._done(f"{number(result.rate)} orders/s")
        return results

    def _watch(self, kind: str, seen: Observation) -> None:
        if seen.trial.attack is not None:
            self._series.append(series(kind, seen))
        self._done(f"{kind}: {seen.trial}{': ' + seen.fault if seen.fault else ''}")

    def _begin(self, what: str) -> None:
        self.playing, self._began = what, time.monotonic()
        _progress(f"{what} ...")

    def _done(self, what: str) -> None:
        now = time.monotonic()
        _progress(f"    {what} ({now - self._began:.0f} s)")
        self._began = now


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
