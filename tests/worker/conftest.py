"""A lab for each test; the simulated merchants are shared and reset."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.merchants.client import SimulatedMerchants
from tests.worker.lab import Lab


@pytest.fixture
def lab(
    broker_url: str, database_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[Lab]:
    simulated_merchants.reset()
    lab = Lab(broker_url, database_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()
    simulated_merchants.reset()
