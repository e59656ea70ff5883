"""The tables: each adversary beside its limits, then latency and stages of every run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from loadtests.bench.attacks.bout import LATENCY, latency_line
from loadtests.bench.report import Verdict, section, table
from loadtests.bench.small_core.core import LEAST_ALONE, LEAST_SHARE, REPLY
from loadtests.bench.small_core.trio import BESIDE, UNDISTURBED, Seen, Trio, judge
from loadtests.bench.stages import STAGES

_COLUMNS = (
    *("healthy merchants, beside", "p50 ms, alone", "beside", "p99 ms, alone", "beside"),
    *("added", "at most", "missing", "others/s", "possible"),
    *(f"share, >= {LEAST_SHARE:g}", "others alone/s", f"used, >= {LEAST_ALONE:g}", ""),
)
_WORDS = """\
Columns: "alone" is undisturbed, with the same quota, minutes before or after. "missing": healthy orders that
had not come when time was up. "others/s": the adversary's orders a second (delivered, expired, cancelled, or
events published). "possible": what the CPU that healthy orders leave allows at the cost of an order of the
adversary's alone, and no more than it reached alone. "share": others/s of that. "used": of the quota, or of
the slots, by the adversary alone. Medians; a target is met if each round meets it."""


@dataclass(frozen=True, slots=True)
class Played:
    """One round."""

    trios: list[Trio] = field(default_factory=list)
    #: Why an adversary was not measured.
    broken: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """Why runs say nothing."""
        return [*self.broken, *(fault for each in self.trios for fault in each.faults)]


def report(name: str, rounds: Sequence[Played]) -> str:
    """The tables as Markdown."""
    groups = list(_by_scene(rounds))
    runs = [
        (f"{trios[0].core}, {trios[0].name}: {run}", seen)
        for trios in groups
        for run, seen in (
            (UNDISTURBED, [each.undisturbed for each in trios]),
            (BESIDE, [each.beside for each in trios]),
        )
    ]
    faults = [fault for played in rounds for fault in played.faults]
    title = f"{name}: healthy merchants at {1000 * REPLY:g} ms on a part of a core"
    if not groups:
        return section(title, faults=faults)
    return section(
        title,
        table(_COLUMNS, [line(trios) for trios in groups]),
        _WORDS,
        table(
            ("healthy merchants", *LATENCY),
            [latency_line(what, [each.latency for each in seen]) for what, seen in runs],
        ),
        table(("p50 / p99, ms", *STAGES), [[what, *_stages(seen)] for what, seen in runs]),
        faults=faults,
    )


def line(trios: Sequence[Trio]) -> list[str]:
    """An adversary on a core, of all rounds: its figures, and whether each round is as wanted."""
    verdicts = list(judge(trios))
    added, missing, share, used = (_cell(each) for each in verdicts)

    def middle(figures: Sequence[float], form: str = ",.0f") -> str:
        return format(median(figures), form)

    def ms(which: str, runs: Sequence[Seen]) -> str:
        return middle([1000 * getattr(each.latency, which) for each in runs], ",.1f")

    undisturbed, beside = [each.undisturbed for each in trios], [each.beside for each in trios]
    return [
        f"{trios[0].core}, {trios[0].title}",
        *(ms(which, runs) for which in ("p50", "p99") for runs in (undisturbed, beside)),
        added,
        f"{trios[0].core.most_added:g}",
        missing,
        middle([each.others for each in beside]),
        middle([each.could for each in trios]),
        share,
        middle([each.alone.rate for each in trios]),
        used,
        "INVALID" if any(each.faults for each in trios) else word(verdicts),
    ]


def word(verdicts: Sequence[Verdict]) -> str:
    """``met`` if each round is as wanted; else what was missed."""
    missed = [
        each.what
        for each in verdicts
        if any(replace(each, values=[value]).word == "MISSED" for value in each.values)
    ]
    return f"MISSED: {', '.join(missed)}" if missed else "met"


def _cell(verdict: Verdict) -> str:
    """The median, and each round's figure if there are several."""
    _, middle, rounds, *_ = verdict.line()
    return f"{middle} ({rounds})" if len(verdict.values) > 1 else middle


def _by_scene(rounds: Sequence[Played]) -> Iterator[list[Trio]]:
    scenes: dict[tuple[float, str], list[Trio]] = {}
    for trio in (each for played in rounds for each in played.trios):
        scenes.setdefault((trio.core.part, trio.name), []).append(trio)
    yield from scenes.values()


def _stages(runs: Sequence[Seen]) -> Iterator[str]:
    for name in STAGES:
        found = [stage for run in runs for stage in run.stages if stage.name == name]
        if found:
            p50, p99 = (
                median(1000 * getattr(each, which) for each in found) for which in ("p50", "p99")
            )
            yield f"{p50:,.1f} / {p99:,.1f}"
        else:
            yield "none came"
