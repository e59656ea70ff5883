"""Each adversary in virtual time; ``ADVERSARY_SECONDS=300`` runs for longer.

That an adversary succeeds without a rule is tried for a few rules; ``make faults`` tries all.
"""

import os

import pytest

from tests.admission.adversaries.ablation import RULES, gets_through
from tests.admission.adversaries.table import ADVERSARIES, Adversary

#: Rules that a run switches off, unless it tries all.
FEW = 4
SECONDS = float(os.environ["ADVERSARY_SECONDS"]) if "ADVERSARY_SECONDS" in os.environ else None


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda each: each.name)
def test_no_adversary_takes_the_healthy_merchants_slots(adversary: Adversary) -> None:
    driver = adversary.play(SECONDS)
    assert adversary.broken(driver, cut_short=SECONDS is None) == []


@pytest.mark.parametrize("rule", RULES if os.environ.get("FAULTS") == "all" else [*RULES][-FEW:])
def test_without_a_rule_an_adversary_succeeds(rule: str) -> None:
    assert next(gets_through(rule), None) is not None
