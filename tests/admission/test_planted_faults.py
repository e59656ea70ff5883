"""Faults planted in admission one at a time: the state machine must find every one.

A test that cannot fail proves nothing. Each fault breaks one rule; add one when a rule is added.
"""

import pytest

from tests.admission.faults import FAULTS
from tests.planting import require_found

pytestmark = pytest.mark.timeout(1200)


def test_planted_faults_are_found() -> None:
    require_found("tests.admission.faults", FAULTS)


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    assert not [fault.rule for fault in FAULTS if not fault.fits]


def test_there_is_a_fault_for_every_rule() -> None:
    assert len(FAULTS) >= 15
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS)
