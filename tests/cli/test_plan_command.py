"""``pos-gateway plan`` says what a load takes, and names what it was told wrong."""

import json

import pytest

from tests.cli.conftest import Program

LOAD = ("plan", "--orders-per-second", "300", "--peak", "2")


def test_it_says_what_a_load_takes_and_what_gives_way_first(program: Program) -> None:
    shown = program.invoke(*LOAD, "--latency", "0.5").stdout
    lines = [line.split("\t") for line in shown.splitlines()]
    figures = {line[0]: line[1] for line in lines if len(line) == 3}
    assert figures["pods"] == "2"
    assert figures["under way then"] == "306"
    rates = [line[1] for line in lines if len(line) == 4][1:]
    gives_way = [int(rate.replace(",", "")) for rate in rates]
    assert gives_way == sorted(gives_way)
    assert len(gives_way) == 4


def test_a_program_gets_the_same_as_json(program: Program) -> None:
    told = json.loads(program.invoke(*LOAD, "--p50", "0.3", "--p99", "2", "--json").stdout)
    assert told["demand"]["latency"] == pytest.approx(0.419, abs=0.001)
    assert told["pods"] == 2
    assert {"slots", "prefetch", "merchant_limit", "memory_mib", "bottlenecks"} <= told.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--latency, or both --p50 and --p99"),
        (("--latency", "1", "--p50", "1"), "--latency, or both --p50 and --p99"),
        (("--latency", "0"), "--latency: must be a number from 0.000001"),
        (("--latency", "nan"), "--latency: must be a number from 0.000001"),
        (("--latency", "1", "--slow", "5"), "--slow: must be a share, 0 to 1 (got 5)"),
        (("--latency", "1", "--memory", "50"), "--memory: a worker takes"),
        (("--p50", "2", "--p99", "1"), "--p99: must be at least p50"),
    ],
)
def test_a_mistake_is_named_with_what_would_do(
    program: Program, arguments: tuple[str, ...], said: str
) -> None:
    done = program.invoke(*LOAD, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
