"""A whole benchmark: the cases that are named, in turn, and what they showed."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loadtests.bench import (
    admission,
    bursts,
    cache,
    catalogue,
    exchange,
    holding,
    ledger,
    logging_cost,
    one_hangs,
    overhead,
    slow_merchants,
    telemetry,
    tracing,
)
from loadtests.bench.attacks import backlog_report
from loadtests.bench.attacks.attack import ATTACKS, Attack
from loadtests.bench.attacks.backlog import BACKLOGS, Backlog, play_backlog
from loadtests.bench.attacks.bout import Bout, play_round
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.attacks.report import report as attack_report
from loadtests.bench.attacks.series import series
from loadtests.bench.candidate import OURS
from loadtests.bench.events import measure as events
from loadtests.bench.machine import machine
from loadtests.bench.report import Round, number, report
from loadtests.bench.run import Result, run
from loadtests.bench.scenario import CASES, Case
from loadtests.bench.servers import Servers

#: The names of what can be played, and attacks by their letters, as the documentation has them.
LETTERS = {
    **{attack.letter: attack.name for attack in ATTACKS},
    backlog_report.LETTER: backlog_report.NAME,
}
#: By name: how something is measured (on which servers, in how many rounds, and whether quickly),
#: and its tables.
_Measures = dict[str, tuple[Callable[[Servers, int, bool], Any], Callable[[Any], str]]]
#: Of the whole gateway, beside the cases.
_WHOLE: _Measures = {
    one_hangs.NAME: (lambda s, n, quick: one_hangs.measure(s, n, quick=quick), one_hangs.report),
    overhead.NAME: (lambda s, n, quick: overhead.measure(s, n, quick=quick), overhead.report),
    slow_merchants.NAME: (
        lambda s, n, quick: slow_merchants.measure(s, n, quick=quick),
        slow_merchants.report,
    ),
    bursts.NAME: (lambda s, n, quick: bursts.measure(s, n, quick=quick), bursts.report),
    holding.NAME: (lambda s, n, quick: holding.measure(s, n, quick=quick), holding.report),
}
#: What a part of it costs.
_COSTS: _Measures = {
    admission.NAME: (lambda s, _, quick: admission.measure(s, quick=quick), admission.report),
    exchange.NAME: (lambda _s, _, quick: exchange.measure(quick=quick), exchange.report),
    ledger.NAME: (lambda _s, _, quick: ledger.measure(quick=quick), ledger.report),
    cache.NAME: (lambda _s, _rounds, _quick: cache.measure(), cache.report),
    logging_cost.NAME: (
        lambda _s, _, quick: logging_cost.measure(quick=quick),
        logging_cost.report,
    ),
    telemetry.NAME: (lambda _s, _, quick: telemetry.measure(quick=quick), telemetry.report),
    tracing.NAME: (lambda _s, _, quick: tracing.measure(quick=quick), tracing.report),
    events.NAME: (lambda s, rounds, quick: events.measure(s, rounds, quick=quick), events.report),
}
#: The gateway beside what a user would pick instead, and the figures that it is to reach.
COMPARISON = [*(case.name for case in CASES), *_WHOLE]
#: Merchants in trouble.
ATTACKED = [*(LETTERS[letter] for letter in sorted(LETTERS)), catalogue.NAME]
NAMES = [*COMPARISON, *ATTACKED, *_COSTS]


class Bench:
    """Plays the cases that are named, and keeps what they showed.

    Args:
        names: of cases and attacks.
        rounds: None: one if quick, else three, but one of the backlog, which takes minutes.
        quick: shorter runs.
    """

    def __init__(self, names: Sequence[str], rounds: int | None, *, quick: bool) -> None:
        self._cases = [case.of_size(quick=quick) for case in CASES if case.name in names]
        self._attacks = [attack for attack in ATTACKS if attack.name in names]
        self._with_backlog = backlog_report.NAME in names
        self._with_catalogue = catalogue.NAME in names
        self._measures = {
            name: each for name, each in {**_WHOLE, **_COSTS}.items() if name in names
        }
        self._rounds = rounds or (1 if quick else 3)
        self._backlog_rounds = rounds or 1
        self._quick = quick
        self._results: dict[str, list[Round]] = {}
        self._bouts: list[dict[str, list[Bout]]] = []
        self._backlogs: list[list[Backlog]] = []
        self._hostile: list[catalogue.Bout] = []
        self._costs: dict[str, Any] = {}
        #: What is being played.
        self.playing = ""
        #: Slots over time of every run in which merchants were in trouble.
        self.series: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def check(self) -> None:
        """Raises RivalMissingError unless what is to be played is installed."""
        candidates = [entry.candidate for case in self._cases for entry in case.entries]
        if one_hangs.NAME in self._measures and not self._quick:
            candidates += one_hangs.RIVALS
        for candidate in candidates:
            candidate.check()

    def play(self, servers: Servers) -> Iterator[str]:
        """The tables of each case, once it has been played."""
        for case in self._cases:
            self._results[case.name] = self._play(servers, case)
            yield report(case, self._results[case.name])
        if self._attacks:
            for turn in range(self._rounds):
                self._begin(f"attacks, round {turn + 1} of {self._rounds}")
                bouts = play_round(
                    servers, self._attacks, turn, quick=self._quick, watcher=self._watch
                )
                self._bouts.append(bouts)
            for attack in self._attacks:
                yield attack_report(attack, self._bouts_of(attack))
        if self._with_backlog:
            for turn in range(self._backlog_rounds):
                self._backlogs.append(self._play_backlog(servers, turn))
            yield backlog_report.report(self._backlogs)
        if self._with_catalogue:
            for turn in range(self._rounds):
                self._begin(f"{catalogue.NAME}, round {turn + 1} of {self._rounds}")
                self._hostile.append(catalogue.play(servers, turn, quick=self._quick))
                self._done(f"{self._hostile[-1].growth:.0f} MiB")
            yield catalogue.report(self._hostile)
        for name, (measure, told) in self._measures.items():
            self._begin(name)
            self._costs[name] = measure(servers, self._rounds, self._quick)
            self._done("done")
            yield told(self._costs[name])

    @property
    def faults(self) -> list[str]:
        """Why attacks or backlogs that were played say nothing."""
        pairs = [
            (attack.name, bout.candidate, pair.fault)
            for attack in self._attacks
            for played in self._bouts_of(attack)
            for bout in played
            for pair in (bout.throughput, bout.latency)
            if pair is not None
        ]
        pairs += [
            (backlog_report.NAME, each.candidate, each.fault)
            for played in self._backlogs
            for each in played
        ]
        pairs += [(catalogue.NAME, OURS.name, bout.latency.fault) for bout in self._hostile]
        pairs += [
            (name, OURS.name, fault)
            for name in (one_hangs.NAME, overhead.NAME, slow_merchants.NAME)
            if name in self._costs
            for fault in self._costs[name].faults
        ]
        return [f"{name}: {candidate}: {fault}" for name, candidate, fault in pairs if fault]

    def as_json(self) -> dict[str, Any]:
        """Every run's figures."""
        return {
            "machine": machine(),
            "cases": {
                name: [[result.as_json() for result in each.values()] for each in rounds]
                for name, rounds in self._results.items()
            },
            "attacks": {
                attack.name: [[bout.as_json() for bout in each] for each in self._bouts_of(attack)]
                for attack in self._attacks
            },
            "catalogue": [each.as_json() for each in self._hostile],
            **{name: cost.as_json() for name, cost in self._costs.items()},
            "backlog": [[each.as_json() for each in played] for played in self._backlogs],
        }

    def _play(self, servers: Servers, case: Case) -> list[Round]:
        """The entries in turn, every other round backwards: what drifts meets each of them alike."""
        played: list[Round] = []
        for turn in range(self._rounds):
            results: dict[str, Result] = {}
            for entry in case.entries if turn % 2 == 0 else reversed(case.entries):
                self._begin(f"{case.name}, round {turn + 1} of {self._rounds}: {entry.name}")
                result = results[entry.name] = run(servers, entry, quick=self._quick)
                self._done(f"{number(result.rate)} orders/s")
            played.append(results)
        return played

    def _play_backlog(self, servers: Servers, turn: int) -> list[Backlog]:
        played = []
        # Nothing is compared between the two, so that plain Celery need not play again.
        for candidate, size in list(BACKLOGS[self._quick])[: None if turn == 0 else 1]:
            self._begin(
                f"{backlog_report.NAME}, round {turn + 1} of {self._backlog_rounds}: "
                f"{candidate.name}"
            )
            played.append(play_backlog(servers, candidate, size))
            self.series.append(played[-1].series())
            self._done(f"{number(played[-1].sift_rate)} orders/s sifted")
        return played

    def _bouts_of(self, attack: Attack) -> list[list[Bout]]:
        return [each[attack.name] for each in self._bouts]

    def _watch(self, kind: str, seen: Observation) -> None:
        if seen.trial.attack is not None:
            self.series.append(series(kind, seen))
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
