"""``pos-gateway canary status``: does the canary do as well as the stable workers?"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from pos_gateway.broker.queue_state import QueueState, queue_states
from pos_gateway.canary.administration import unjudged
from pos_gateway.canary.administration import verdict as verdict_of
from pos_gateway.canary.cpu import LOOKS, costs_of
from pos_gateway.canary.verdict import CanaryDecision, CanaryFinding, CanaryVerdict, Costs
from pos_gateway.cli import options, output
from pos_gateway.cli.database import database, payloads
from pos_gateway.cli.exit_codes import ABORT, DONE, HOLD
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.moments import age
from pos_gateway.domain.errors import AdminError, PendingMigration
from pos_gateway.domain.split import Split
from pos_gateway.routing.splits import in_force
from pos_gateway.runtime.clock import shown
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.settings import Settings

#: The verdict as an exit code, for scripts.
EXIT_CODES = {CanaryDecision.PROMOTE: DONE, CanaryDecision.HOLD: HOLD, CanaryDecision.ABORT: ABORT}

_STYLES = {
    **dict.fromkeys((CanaryDecision.PROMOTE, CanaryFinding.FINE), "green"),
    **dict.fromkeys((CanaryDecision.HOLD, CanaryFinding.UNKNOWN), "yellow"),
    **dict.fromkeys((CanaryDecision.ABORT, CanaryFinding.WORSE), "bold red"),
    CanaryFinding.LEFT_OUT: "dim",
}


class MetricsPage(click.ParamType[tuple[str, str]]):
    """A side and the URL of its metrics."""

    name = "page"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "@" in str(value):  # a password is not repeated
            self.fail(
                "a page is asked for without a name and a password: no @ in a URL", param, ctx
            )
        side, _, url = str(value).partition("=")
        if side not in ("canary", "stable") or not url.startswith(("http://", "https://")):
            example = "canary=http://10.0.0.7:9808/metrics"
            self.fail(f"{value!r} does not say whose metrics are where; {example} does", param, ctx)
        return side, url


@click.command()
@click.option(
    "--metrics",
    "pages",
    type=MetricsPage(),
    multiple=True,
    metavar="SIDE=URL",
    help="A page of canary= or stable= workers' metrics, to compare their CPU by.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="How long to look at the CPU.",
)
@click.option("--exit-code", is_flag=True, help="0: promote, 3: hold, 4: abort.")
@options.as_json_object
def status(
    pages: Sequence[tuple[str, str]], seconds: float, exit_code: bool, as_json: bool
) -> None:
    """Show the canary's merchants and queue, and whether it does as well as the stable workers.

    The verdict goes by the orders since the canary's share last changed, or the last hour's:
    promote (as good as stable), hold (not known yet) or abort (worse). It needs the database.

    \b
    Examples:
      pos-gateway canary status
      pos-gateway canary status --metrics canary=http://10.0.0.7:9808/metrics \\
                                --metrics stable=http://10.0.0.5:9808/metrics

    Exit code: 0; with --exit-code the verdict's, and 1 if there is none.
    """
    settings = Settings.from_environment()
    split = in_force(settings.broker_url, settings.canary_percent)
    queues = queue_states(settings.broker_url)
    cpu = _costs(pages, seconds)
    verdict, why_not = None, ""
    try:
        verdict = _verdict(split, queues, cpu)
    except (AdminError, Failure, PendingMigration, CannotOpen) as error:
        why_not = str(error)
    show = _print_json if as_json else _print
    show(split, queues, verdict, why_not)
    if exit_code:
        raise click.exceptions.Exit(EXIT_CODES[verdict.decision] if verdict else 1)


def _verdict(
    split: Split,
    queues: tuple[QueueState, QueueState],
    cpu: tuple[Costs, Costs] | None,
) -> CanaryVerdict:
    """Raises AdminError, Failure, PendingMigration or CannotOpen if there is none."""
    if (why_not := unjudged(split)) is not None:
        raise AdminError(why_not)
    with database() as engine:
        return verdict_of(split, queues, engine, payloads(), cpu)


def _costs(pages: Sequence[tuple[str, str]], seconds: float) -> tuple[Costs, Costs] | None:
    if not pages:
        return None
    sides = [[url for each, url in pages if each == side] for side in ("canary", "stable")]
    if not all(sides):
        raise click.UsageError("--metrics: name a page of canary= and one of stable= workers")
    output.notice(f"looking at the workers for {seconds:g} s")
    canary, stable = costs_of(sides, lambda: time.sleep(seconds / LOOKS))
    return canary, stable


def _print(
    split: Split, queues: tuple[QueueState, QueueState], verdict: CanaryVerdict | None, why_not: str
) -> None:
    since = ""
    if split.changed_at is not None:
        since = f", since {age(split.changed_at.timestamp(), time.time())} ({split.changed_by})"
    output.line(("canary: ", "bold"), (f"{split}{since}", ""))
    output.table(
        ("QUEUE", "READY", "CONSUMERS"),
        [(each.queue, each.ready, each.consumers) for each in queues],
    )
    if verdict is None:
        output.line(("no verdict: ", "bold"), (why_not, ""))
        return
    output.table(
        ("FIGURE", "FINDING", "WHY"),
        [(each.name, each.finding, each.why) for each in verdict.measures],
        style=lambda row: _STYLES[row[1]],  # type: ignore[index]
    )
    output.line(("verdict: ", "bold"), (verdict.decision, _STYLES[verdict.decision]))


def _print_json(
    split: Split, queues: tuple[QueueState, QueueState], verdict: CanaryVerdict | None, why_not: str
) -> None:
    output.json_document(
        {
            "percent": split.percent,
            "pins": sorted(split.pins),
            "changed_by": split.changed_by,
            "changed_at": shown(split.changed_at.timestamp()) if split.changed_at else None,
            "queues": {
                each.queue: {"ready": each.ready, "consumers": each.consumers} for each in queues
            },
            "verdict": verdict.decision if verdict else None,
            "no_verdict": why_not or None,
            "figures": [asdict(each) for each in verdict.measures] if verdict else [],
        }
    )
