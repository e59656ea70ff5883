"""Faults planted in exchanges with POSes one at a time: the tests in this folder must find them."""

from tests.planting import require_found
from tests.transport.faults import FAULTS


def test_planted_faults_are_found() -> None:
    require_found("tests.transport.faults", FAULTS)


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    assert not [fault.rule for fault in FAULTS if not fault.fits]
