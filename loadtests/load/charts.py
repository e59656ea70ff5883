"""The charts of a run over time."""

from collections.abc import Callable, Iterable
from functools import partial

from loadtests.bench.gauge import BROKER, DATABASE, PRODUCER, SIMULATOR, WORKER
from loadtests.load.chart import Chart, Line
from loadtests.load.figures import SLOTS, highest
from loadtests.load.run import Run
from loadtests.load.slices import Slices
from pos_gateway.demo.record import EVENT, POS, Times

#: Values of a line at most; of percentiles fewer, for each is of many orders.
_MOST, _FEWER = 150, 50
_PARTS = (WORKER, PRODUCER, SIMULATOR, BROKER, DATABASE)


def charts(run: Run) -> list[Chart]:
    """All of them; where merchants are out the background is shaded."""
    slices, scenario, times = Slices.of(run, _MOST), run.scenario, run.record.times
    outages = [each.outage for each in scenario.merchants.values() if each.outage is not None]
    draw = partial(
        Chart, step=slices.seconds, shaded=[(outage.begins, outage.ends) for outage in outages]
    )
    due = [_rate(run, start + slices.seconds / 2) for start in slices.starts]
    arrived, told = _ends(times[POS].values()), _ends(times[EVENT].values())
    scraped = slices.scraped
    return [
        draw(
            "Orders a second",
            "As the scenario has it, as they came, at the POS, and at their end.",
            [
                Line("due", due, 5, faint=True),
                Line("submitted", slices.rate(run.record.late.at), 3),
                Line("at the POS", slices.rate(arrived), 0),
                Line("ended", slices.rate(told), 4),
            ],
        ),
        *(_latency(run, name, draw) for name in scenario.merchants),
        draw(
            "Slots",
            "Orders in flight: of merchants that do not answer, of heavy ones, and of light ones.",
            [
                Line("silent merchants", scraped("slots.silent"), 2),
                Line("heavy merchants", scraped("slots.heavy"), 3),
                Line("light merchants", scraped("slots.light"), 0),
            ],
            stacked=True,
            reaches=highest(run, *SLOTS),
        ),
        draw(
            "Waiting and parked",
            "Orders that cannot start yet, in the worker or parked in the broker.",
            [
                Line("for a slot", scraped("waiting.slot"), 3),
                Line("for their merchant", scraped("waiting.merchant"), 1),
                Line("parked", scraped("parked_orders"), 2),
            ],
        ),
        draw(
            "Broker lag",
            "Messages that no worker has taken yet.",
            [
                Line("orders", scraped("queue_messages.orders"), 3),
                Line("events", scraped("queue_messages.order-events"), 4),
            ],
        ),
        draw(
            "Connections to POSes",
            "In use, kept for the next order, and waited for until they are made.",
            [
                Line("in use", scraped("connections.leased"), 0),
                Line("kept", scraped("connections.available"), 3),
                Line("waited for", scraped("connections.pending"), 2),
            ],
        ),
        draw(
            "CPU",
            "Shares of one core. The worker has one; at 100 % it can do no more.",
            [Line(part, slices.busy(part), n) for n, part in enumerate(_PARTS)],
            show="{:.0%}".format,
        ),
        draw(
            "Memory",
            "MiB. What PostgreSQL's processes share is counted for each of them.",
            [Line(part, slices.held(part), n) for n, part in enumerate(_PARTS)],
        ),
        draw(
            "The worker's event loop",
            "How late green threads have their turns: 99 of 100 of them at most so.",
            [Line("late by", slices.loop_lag(), 0)],
            show=_duration,
        ),
    ]


def _latency(run: Run, name: str, draw: Callable[..., Chart]) -> Chart:
    slices, times = Slices.of(run, _FEWER), run.record.times
    return draw(
        f"Latency: {name}",
        "From submission, by its moment. A line is ten times the one below it.",
        [
            Line(f"{until} p{share}", values, colour, faint=share == 50)
            for what, until, colour in ((POS, "to POS", 0), (EVENT, "to event", 4))
            for share in (99, 50)
            if (values := slices.percentile(times[what].get(name), share / 100))
        ],
        step=slices.seconds,
        show=_duration,
        logarithmic=True,
    )


def _ends(series: Iterable[Times]) -> list[float]:
    return [at + took for times in series for at, took in zip(times.at, times.seconds, strict=True)]


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _rate(run: Run, second: float) -> float:
    scenario = run.scenario
    if second >= scenario.seconds:
        return 0.0
    return scenario.arrivals.rate_at(second, scenario.seconds)
