"""The report of a run, in order: the terminal and the page say the same."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import isinf

from loadtests.bench.gauge import BROKER, DATABASE, PRODUCER, SIMULATOR, WORKER
from loadtests.bench.report import machine, table
from loadtests.load import figures
from loadtests.load.chart import Chart
from loadtests.load.charts import charts
from loadtests.load.histogram import histogram, percentile
from loadtests.load.run import Run
from loadtests.load.scenario import FOLDER
from loadtests.load.scraper import loop_lag
from loadtests.load.slices import Series, Slices
from loadtests.load.verdict import TITLES, Verdict, shown
from pos_gateway.demo.record import ENQUEUE, EVENT, POS, Judged

#: Lines of the table over time.
_LINES = 12


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column names them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the story."""

    title: str
    says: Sequence[str] = ()
    table: Table | None = None
    #: Seconds, by what they are of.
    histograms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: In place of the table, for who can see them.
    charts: Sequence[Chart] = ()


def story(run: Run, verdict: Verdict) -> list[Section]:
    """All of it."""
    return [
        _outcome(run, verdict),
        _limits(verdict),
        _objectives(verdict),
        _accounts(run),
        _latency(run),
        _over_time(run),
        _parts(run),
        _how_it_was_run(run),
    ]


def _outcome(run: Run, verdict: Verdict) -> Section:
    record, scenario = run.record, run.scenario
    seconds = max(record.last - record.began, 1.0)
    busiest = max(Counter(int(at) for at in record.late.at).values(), default=0)
    return Section(
        f"{scenario.name}: {verdict.word.name.replace('_', ' ')}",
        [
            verdict.sentence,
            scenario.description,
            f"{record.sent:,} orders from {scenario.backends} backends in {seconds:,.0f} s: "
            f"{record.sent / seconds:,.0f} a second on average, {busiest} in the busiest one. "
            f"After {record.ended - record.began:,.0f} s the last outcome was known.",
        ],
    )


def _limits(verdict: Verdict) -> Section:
    says = [f"{each.what}: {each.sentence}" for each in verdict.limits]
    return Section("What limited it", says or ["Nothing: every order was taken when it came."])


def _objectives(verdict: Verdict) -> Section:
    rows = [_row(each) for each in (*verdict.accounts, *verdict.objectives)]
    return Section("Objectives", table=Table(("", "wanted", "was", ""), rows))


def _row(judged: Judged) -> list[str]:
    return [judged.what, judged.wanted, judged.was, "met" if judged.met else "MISSED"]


def _accounts(run: Run) -> Section:
    record = run.record
    total: Counter[str] = Counter()
    for counts in record.outcomes.values():
        total.update(counts)
    columns = [name for name, _ in total.most_common()]
    rows = [
        [name, f"{sum(counts.values()):,}", *(f"{counts.get(each, 0):,}" for each in columns)]
        for name, counts in (
            (name, record.outcomes.get(name, {})) for name in run.scenario.merchants
        )
    ]
    summands = " + ".join(f"{number:,} {_word(name)}" for name, number in total.most_common())
    return Section(
        "Accounts",
        [
            f"{record.sent:,} sent = {summands}. "
            f"{len(record.missing):,} missing, {len(record.doubled):,} made twice"
            + (f"; {record.repeated:,} events were told twice." if record.repeated else ".")
        ],
        Table(("", "sent", *map(_word, columns)), rows),
    )


def _word(outcome: str) -> str:
    return outcome.replace("_", " ")


def _latency(run: Run) -> Section:
    rows = [
        [f"{name}: {TITLES[what]}", *_figures(figures.seconds(run, what, name))]
        for what in (ENQUEUE, POS, EVENT)
        for name in run.scenario.merchants
    ]
    columns = ("", "orders", "p50", "p90", "p95", "p99", "worst", "never")
    return Section(
        "Latency",
        [
            "From the moment at which an order is submitted. An order to which it never happens is "
            "slower than any other, and counted in all percentiles."
        ],
        Table(columns, rows),
        histograms={
            f"{name}: {TITLES[what]}": times.seconds
            for name in run.scenario.merchants
            for what in (POS, EVENT)
            if (times := run.record.times[what].get(name))
        },
    )


def _figures(ordered: Sequence[float]) -> list[str]:
    if not ordered:
        return ["0"] + [""] * 6
    happened = [each for each in ordered if not isinf(each)]
    return [
        f"{len(ordered):,}",
        *(shown(percentile(ordered, share)) for share in (0.5, 0.9, 0.95, 0.99)),
        shown(happened[-1]) if happened else "",
        f"{len(ordered) - len(happened):,}" if len(ordered) > len(happened) else "",
    ]


def _over_time(run: Run) -> Section:
    slices, first = Slices.of(run, _LINES), next(iter(run.scenario.merchants))
    times = run.record.times
    columns: dict[str, tuple[Series, str]] = {
        "orders/s": (slices.rate(run.record.late.at), ",.0f"),
        f"{first}: order → POS p99, ms": (
            _ms(slices.percentile(times[POS].get(first), 0.99)),
            ",.0f",
        ),
        "slots taken": (slices.scraped(*figures.TAKEN), ",.0f"),
        "waiting": (slices.scraped("waiting.merchant", "waiting.slot"), ",.0f"),
        "parked": (slices.scraped("parked_orders"), ",.0f"),
        "in the queue": (slices.scraped("queue_messages.orders"), ",.0f"),
        "worker's core": (slices.busy(WORKER), ".0%"),
    }
    rows = [
        [f"{start:,.0f} s", *(_cell(values[place], form) for values, form in columns.values())]
        for place, start in enumerate(slices.starts)
    ]
    return Section("Over time", table=Table(("from", *columns), rows), charts=charts(run))


def _ms(values: Series) -> Series:
    return [None if value is None else value * 1000 for value in values]


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _parts(run: Run) -> Section:
    rows = [
        [
            part,
            f"{figures.busy(run, part):.0%}",
            f"{figures.busiest(run, part):.0%}",
            f"{max(figures.memory(run, part), default=0.0):,.0f} MiB",
        ]
        for part in (WORKER, PRODUCER, SIMULATOR, BROKER, DATABASE)
    ]
    lag = max((loop_lag(*pair) for pair in pairwise(run.samples)), default=0.0)
    most = figures.highest
    return Section(
        "Who used what",
        [
            f"Connections to POSes: {most(run, 'connections.leased'):,.0f} in use at most, "
            f"{most(run, 'connections.available'):,.0f} kept, "
            f"{most(run, 'connections.pending'):,.0f} waited for.",
            f"In the queue: {most(run, 'queue_messages.orders'):,.0f} orders at most, up to "
            f"{most(run, 'queue_age_seconds.orders'):.1f} s old (by the worker's own look, once in 10 s). "
            "The worker's event loop was late by "
            f"{shown(lag)} at most (99 of 100 turns of a second).",
            f"One order in a hundred was submitted {shown(figures.late(run))} or more after it was "
            f"due, one reply in a hundred came {shown(run.simulator_late['p99'])} or more after it "
            "was to come.",
        ],
        Table(("", "of a core", f"busiest {figures.STRETCH:g} s", "memory at most"), rows),
    )


def _how_it_was_run(run: Run) -> Section:
    scenario = run.scenario
    asked = scenario.name if scenario.file.parent == FOLDER else scenario.file
    weights = sum(each.weight for each in scenario.merchants.values())
    rows = [
        [
            f"{name}: {each.description}" if each.description else name,
            f"{each.number:,}",
            f"{each.weight / weights:.0%}",
        ]
        for name, each in scenario.merchants.items()
    ]
    return Section(
        "How it was run",
        [
            f"make load SCENARIO={asked} ARGS='--seconds {scenario.seconds:g}', seed {scenario.seed}",
            machine(),
        ],
        Table(("", "merchants", "of the orders"), rows),
    )


def summary(sections: Sequence[Section]) -> str:
    """The sections for a terminal, one below the other."""
    return "\n\n".join(part for section in sections for part in _printed(section)) + "\n"


def _printed(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    if section.says:
        yield "\n".join(section.says)
    if section.table is not None:
        yield table(section.table.columns, section.table.rows)
    # Of the first class; the page has the others.
    for name, seconds in islice(section.histograms.items(), 2):
        yield f"{name}\n{histogram(seconds)}"
