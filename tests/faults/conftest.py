"""A lab on PostgreSQL for each test; the simulated merchants are shared and reset."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from tests.faults.lab import FaultLab


@pytest.fixture
def lab(
    broker_url: str, postgres_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[FaultLab]:
    simulated_merchants.reset()
    lab = FaultLab(broker_url, postgres_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()
    simulated_merchants.reset()
