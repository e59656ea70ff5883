"""A run on a terminal: how far it is, while it is at work."""

from pathlib import Path

from pos_gateway.administration.bulk.run import RunState
from tests.bulk.lab import Desk, an_order, dead_letter, publish
from tests.cli.conftest import Program, on_terminal


def test_a_run_shows_its_progress(
    kim: Desk, broker_url: str, database_url: str, tmp_path: Path
) -> None:
    publish(broker_url, (dead_letter(an_order(f"o-{n}"), code="url") for n in range(40)))
    settings = {
        "POS_GATEWAY_BROKER_URL": broker_url,
        "POS_GATEWAY_DATABASE_URL": database_url,
        "POS_GATEWAY_METRICS_PORT": "0",
        "USER": "kim",
    }
    program = Program(tmp_path, settings)
    shown = on_terminal(program, "dlq", "replay", "--all", "--rate", "40", COLUMNS="120")
    assert "replayed, 0 refused," in shown
    assert "/s" in shown
    assert "40 replayed, 0 refused" in shown
    assert kim.store.runs(1)[0].state is RunState.DONE
