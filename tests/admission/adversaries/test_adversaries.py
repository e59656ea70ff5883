"""Each adversary in virtual time; ``ADVERSARY_SECONDS=300`` runs for longer.

That an adversary succeeds without a rule is tried for two rules; ``make faults`` tries all, and plays
each adversary for as long as the documents' tables have it.
"""

import os

import pytest

from tests.admission.adversaries.ablation import RULES, gets_through
from tests.admission.adversaries.table import ADVERSARIES, STRIKE, Adversary

ALL = os.environ.get("FAULTS") == "all"
#: Rules that a run switches off, unless it tries all.
FEW = 2
SECONDS = float(os.environ["ADVERSARY_SECONDS"]) if "ADVERSARY_SECONDS" in os.environ else None
#: Seconds of a run that has the usual time otherwise: four more than until merchants strike.
SHORT = STRIKE + 4.0


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda each: each.name)
def test_no_adversary_takes_the_healthy_merchants_slots(adversary: Adversary) -> None:
    is_usual = adversary.seconds == Adversary.seconds
    driver = adversary.play(SHORT if SECONDS is None and is_usual and not ALL else SECONDS)
    assert adversary.broken(driver, cut_short=SECONDS is None) == []


@pytest.mark.parametrize("rule", RULES if ALL else [*RULES][-FEW:])
def test_without_a_rule_an_adversary_succeeds(rule: str) -> None:
    assert next(gets_through(rule), None) is not None
