"""Faults planted in the verification of callbacks one at a time: the tests in this folder must find them."""

from tests.adapters.faults import FAULTS
from tests.planting import require_found


def test_planted_faults_are_found() -> None:
    require_found("tests.adapters.faults", FAULTS)


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    assert not [fault.rule for fault in FAULTS if not fault.fits]
