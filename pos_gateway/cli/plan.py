"""``pos-gateway plan``: the capacity that a load needs, and its bottlenecks."""

from dataclasses import fields
from typing import Any

import click

from pos_gateway.cli import options, output
from pos_gateway.worker import capacity
from pos_gateway.worker.capacity import OfferedLoad, Plan, Pod


@click.command()
@click.option(
    "--orders-per-second", type=float, required=True, metavar="N", help="Orders a second."
)
@click.option(
    "--peak", default=1.0, metavar="N", show_default=True, help="At the peak, a multiple of that."
)
@click.option(
    "--latency",
    type=float,
    metavar="SECONDS",
    help="Mean time that a merchant takes over an order.",
)
@click.option("--p50", type=float, metavar="SECONDS", help="Instead of --latency: its median,")
@click.option("--p99", type=float, metavar="SECONDS", help="and what 1 in 100 takes longer than.")
@click.option(
    "--merchants", default=1000, metavar="N", show_default=True, help="Merchants with orders."
)
@click.option(
    "--busiest",
    default=0.01,
    metavar="SHARE",
    show_default=True,
    help="Share of the orders that the busiest merchant has.",
)
@click.option(
    "--slow",
    default=0.0,
    metavar="SHARE",
    show_default=True,
    help="Share of the orders that go to merchants which answer, but slowly.",
)
@click.option(
    "--slow-latency",
    default=8.0,
    metavar="SECONDS",
    show_default=True,
    help="Mean time that these take.",
)
@click.option(
    "--cpu-ms",
    default=capacity.CPU_MS,
    metavar="MS",
    show_default=True,
    help="CPU of an order, measured: see docs/performance.md, and measure yours.",
)
@click.option(
    "--cores", default=1.0, metavar="N", show_default=True, help="A pod's; a worker uses one."
)
@click.option(
    "--busy",
    default=0.6,
    metavar="SHARE",
    show_default=True,
    help="How much of its core a worker is to use at the peak.",
)
@click.option(
    "--memory", default=1024.0, metavar="MIB", show_default=True, help="Limit of a pod's memory."
)
@click.option(
    "--merchant-limit",
    default=10,
    metavar="N",
    show_default=True,
    help="max_concurrency of the busiest merchant.",
)
@options.as_json_document
def plan(
    latency: float | None,
    p50: float | None,
    p99: float | None,
    as_json: bool,
    **figures: Any,
) -> None:
    """Compute how many workers a load needs, their settings, and what gives way first.

    By Little's law: orders in flight = orders a second x seconds that each takes. 300 a second at
    0.5 s are 150 slots, and some more, since they come at random; those of slow merchants have a
    quarter of the slots. And by the CPU that an order costs: 300 a second at 1.8 ms are 54 % of a
    core.

    Run one pod more than it says, so that one may fail. Merchants that hang need no slots: their
    breakers are open.

    \b
    Examples:
      pos-gateway plan --orders-per-second 300 --peak 2 --latency 0.5
      pos-gateway plan --orders-per-second 300 --p50 0.3 --p99 2 --slow 0.05
      pos-gateway plan --orders-per-second 300 --latency 0.5 --busiest 0.1 --json
    """
    try:
        of_pod = {each.name: figures.pop(each.name) for each in fields(Pod)}
        demand = OfferedLoad(latency=_latency(latency, p50, p99), **figures)
        made = capacity.plan(demand, Pod(**of_pod))
    except ValueError as error:
        field, _, problem = str(error).partition(": ")
        raise click.UsageError(f"--{field.replace('_', '-')}: {problem}") from error
    if as_json:
        output.json_document(made.as_json())
        return
    output.table(("WHAT", "FIGURE", "WHY"), _figures(made))
    click.echo()
    output.table(
        ("GIVES WAY", "AT ORDERS/S", "USED", "THEN"),
        [
            (each.what, f"{each.orders_per_second:,.0f}", f"{each.used:.0%}", each.then)
            for each in made.bottlenecks
        ],
    )


def _latency(mean: float | None, p50: float | None, p99: float | None) -> float:
    if mean is not None and p50 is None and p99 is None:
        return mean
    if mean is None and p50 is not None and p99 is not None:
        return capacity.mean_of(p50, p99)
    raise click.UsageError("say how long merchants take: --latency, or both --p50 and --p99")


def _figures(made: Plan) -> list[tuple[str, str, str]]:
    demand, pod = made.demand, made.pod
    in_flight = demand.in_flight + demand.slow_in_flight
    cores = demand.at_peak * pod.cpu_ms / 1000
    return [
        ("orders/s at the peak", f"{demand.at_peak:,.0f}", ""),
        ("in flight then", f"{in_flight:,.0f}", f"Little; {_slow(demand)}"),
        (
            "pods",
            f"{made.pods}",
            f"{cores:.2f} cores at {pod.cpu_ms:g} ms an order, each used to {pod.busy:.0%}; have one more",
        ),
        ("POS_GATEWAY_SLOTS", f"{made.slots}", "in flight in a pod, 99 times in 100"),
        (
            "prefetch",
            f"{made.prefetch:,}",
            f"{capacity.WINDOW} for each slot, {capacity.MOST:,} at most; nothing to set",
        ),
        (
            "max_concurrency",
            f"{made.merchant_limit}",
            "of the busiest merchant, in all pods together if they share a Redis",
        ),
        ("MiB of a pod", f"{made.memory:,.0f}", "holding all it may, orders of a kilobyte"),
        ("transactions/s", f"{made.transactions:,.0f}", "of the database, at most"),
        ("messages/s", f"{made.messages:,.0f}", "into RabbitMQ, and as many out of it"),
    ]


def _slow(demand: OfferedLoad) -> str:
    if not demand.slow:
        return f"{demand.latency:.3g} s each"
    return f"{demand.slow_in_flight:,.0f} of slow merchants"
