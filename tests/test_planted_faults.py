"""The faults of each package's ``faults.py``, planted one at a time: the package's tests must find them.

A test that cannot fail proves nothing. Each fault breaks one rule; add one when a rule is added.
"""

import pytest

from tests.planting import PACKAGES, faults_of, require_found

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("package", PACKAGES)
def test_planted_faults_are_found(package: str) -> None:
    require_found(f"tests.{package}.faults", faults_of(package))
