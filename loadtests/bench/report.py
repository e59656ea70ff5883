"""Medians, ratios and tables."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from loadtests.bench.accounting import Accounting
from loadtests.bench.run import Result
from loadtests.bench.scenario import FIGURES, Case, Target
from loadtests.bench.verdict import Verdict

#: One round: the results of a case's entries by name.
Round = Mapping[str, Result]

_COLUMNS = (
    "",
    "orders/s",
    "CPU ms/order",
    "MiB",
    "worker",
    "had to wait",
    "merchants",
    "RabbitMQ",
    "PostgreSQL",
    "limited by",
)


def report(case: Case, rounds: Sequence[Round]) -> str:
    """A case's figures and targets as Markdown, which a terminal shows as well."""
    lines = [_line(entry.name, [each[entry.name] for each in rounds]) for entry in case.entries]
    parts = [f"## {case.name}: {case.title}", table(_COLUMNS, lines)]
    if case.targets:
        parts.append(
            table(
                ("", "median", "rounds", "target", ""),
                [judge(target, rounds).line() for target in case.targets],
            )
        )
    parts += _accounts([result for each in rounds for result in each.values()])
    return "\n\n".join(parts) + "\n"


def judge(target: Target, rounds: Sequence[Round]) -> Verdict:
    """A target's figure, or its ratio to another entry's within each round."""
    what, form = FIGURES[target.figure]
    note = f" ({target.note})" if target.note else ""

    def figures(entry: str) -> list[float]:
        return [float(getattr(each[entry], target.figure)) for each in rounds]

    values, of = figures(target.entry), target.entry
    if target.against is not None:
        others, form = figures(target.against), ",.2f"
        values = [ours / theirs for ours, theirs in zip(values, others, strict=True)]
        of += f" / {target.against}"
    return Verdict(
        f"{of}: {what}{note}",
        values,
        at_least=target.at_least,
        at_most=target.at_most,
        form=form,
    )


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, figures to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
    rule = ["-" * width + ("-:" if place else "--") for place, width in enumerate(widths)]

    def row(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    return "\n".join([row(columns), f"|{'|'.join(rule)}|", *map(row, lines)])


def _line(name: str, results: Sequence[Result]) -> list[str]:
    def share(part: str) -> str:
        return f"{median(getattr(each, part) for each in results):.0%}"

    stopped = "" if all(each.complete for each in results) else " (time was up)"
    return [
        name,
        number(median(each.rate for each in results)),
        f"{median(each.cpu_ms for each in results):.2f}",
        number(median(each.memory for each in results)),
        share("worker"),
        share("waited"),
        share("simulator"),
        share("rabbitmq"),
        share("postgresql"),
        ", ".join(dict.fromkeys(each.limited_by for each in results)) + stopped,
    ]


def _accounts(results: Sequence[Result]) -> list[str]:
    """That the gateway's orders add up, which ``run`` has checked, and where it could not."""
    lines = accounted([each.accounting for each in results])
    open_ = dict.fromkeys(each.entry for each in results if each.unfinished)
    if open_:
        lines.append(f"Not accounted for, since time was up before the last: {', '.join(open_)}.")
    return lines


def accounted(accounts: Iterable[Accounting | None]) -> list[str]:
    """That these orders add up, if there are any."""
    kept = [accounting for accounting in accounts if accounting is not None]
    if not kept:
        return []
    again = sum(accounting.sent_again for accounting in kept)
    return [
        f"{sum(accounting.orders for accounting in kept):,} orders of the gateway's are "
        "accounted for: one create and one event each"
        + (f"; {again:,} were sent more than once." if again else ".")
    ]


def number(figure: float) -> str:
    """Orders a second: whole ones, unless there are but a few."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"
