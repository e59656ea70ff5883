"""A collector for each test."""

from collections.abc import Iterator

import pytest

from tests.telemetry.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector
