"""Medians, ratios and tables."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from loadtests.bench.accounting import Accounting
from loadtests.bench.run import Result
from loadtests.bench.scenario import Case, Target

#: One round: the results of a case's entries by name.
Round = Mapping[str, Result]

_COLUMNS = (
    "",
    "orders/s",
    "CPU ms/order",
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
                [_verdict(target, rounds) for target in case.targets],
            )
        )
    parts += _accounts([result for each in rounds for result in each.values()])
    return "\n\n".join(parts) + "\n"


def value(target: Target, results: Round) -> float:
    """What a target is about, in one round."""
    rate = results[target.entry].rate
    return rate if target.against is None else rate / results[target.against].rate


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
        share("worker"),
        share("waited"),
        share("simulator"),
        share("rabbitmq"),
        share("postgresql"),
        ", ".join(dict.fromkeys(each.limited_by for each in results)) + stopped,
    ]


def _verdict(target: Target, rounds: Sequence[Round]) -> list[str]:
    values = [value(target, each) for each in rounds]
    middle = median(values)
    what = target.entry if target.against is None else f"{target.entry} / {target.against}"
    show = number if target.against is None else _ratio
    wanted, verdict = "", ""
    if target.at_least is not None:
        wanted = f">= {show(target.at_least)}"
        verdict = "met" if middle >= target.at_least else "MISSED"
    return [what, show(middle), " ".join(map(show, values)), wanted, verdict]


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


def _ratio(figure: float) -> str:
    return f"{figure:.2f}"
