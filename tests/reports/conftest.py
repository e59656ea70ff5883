"""A database of each kind, with the schema."""

import pytest
from sqlalchemy import Engine

from tests.reports.lab import Reports


@pytest.fixture
def reports(engine: Engine) -> Reports:
    return Reports(engine)
