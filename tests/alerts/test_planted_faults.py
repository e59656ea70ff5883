"""Faults planted in alerts one at a time: the tests in this folder must find them.

A test that cannot fail proves nothing. Each fault breaks one rule; add one when a rule is added.
"""

from tests.alerts.faults import FAULTS
from tests.planting import require_found


def test_planted_faults_are_found() -> None:
    require_found("tests.alerts.faults", FAULTS)


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    assert not [fault.rule for fault in FAULTS if not fault.fits]


def test_there_is_a_fault_for_every_rule() -> None:
    assert len(FAULTS) >= 5
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS)
