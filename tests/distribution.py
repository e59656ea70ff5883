"""In which order the tests of a run go, and which of its processes takes which."""

import json
from collections import Counter
from itertools import accumulate, groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

#: Seconds that each file takes in a whole run on two cores; ``make durations`` writes them.
_RECORD = Path(__file__).parent / "durations.json"
_DURATIONS: dict[str, float] = json.loads(_RECORD.read_text())
#: Of a file that takes less than a second.
_SHORT = 0.4
#: A longer file is not in ``make test-fast``, nor is a test with a server.
_QUICK = 4.0
_SERVERS = {"rabbitmq", "postgresql", "mariadb", "redis", "simulated_merchants", "chromium"}

#: Files with long and independent tests: each test runs wherever there is time for it.
_APART = (
    "admission/test_admission_machine.py",
    "broker/test_publisher.py",
    "compatibility/test_wire.py",
    "faults/test_database_failover.py",
    "faults/test_events.py",
    "faults/test_half_open.py",
    "faults/test_long_outages.py",
    "faults/test_orders_in_doubt.py",
    "faults/test_stopping.py",
    "loadtests/test_load_run.py",
    "simulation/test_simulation.py",
    "test_planted_faults.py",
    "worker/test_broker_away.py",
    "worker/test_fleet_limits.py",
    "worker/test_green_worker.py",
    "worker/test_logs.py",
    "worker/test_nothing_lost.py",
    "worker/test_parking.py",
    "worker/test_reporting.py",
    "worker/test_tracing.py",
    "worker/test_trouble.py",
    "worker/test_watching.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write durations.json")
    parser.addoption("--fast", action="store_true", help="no servers, and no file that takes long")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadFileScheduling | None":
    """A file's tests stay together, so that what is set up once for a file is; but for those apart.

    Nothing is written into the tests' ids, as for xdist's groups: pytest 9.2 ignores it.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _file_of(nodeid) in _APART else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)  # what `-k` leaves out has no part of the time
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that none starts last."""
    items.sort(key=lambda item: -_seconds(item))
    if config.getoption("--fast"):
        items[:] = [item for item in items if _is_fast(item)]
    if hasattr(config, "workerinput"):  # one of xdist's processes
        items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """The same files, those with servers and those without in turn, each kind by its part of the time.

    Tests with servers wait for most of their time: four of them at once leave a core idle.
    """
    files = [list(each) for _, each in groupby(items, lambda item: item.path)]
    starts = []
    for has_server in (True, False):
        same = [each for each in files if any(map(_has_server, each)) is has_server]
        seconds = [_seconds(each[0]) for each in same]
        starts += zip(accumulate(seconds, initial=0.0), repeat(sum(seconds)), same)
    starts.sort(key=lambda start: start[0] / start[1])
    return [item for _, _, file in starts for item in file]


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def _seconds(item: pytest.Item) -> float:
    return _DURATIONS.get(_file_of(item.nodeid), _SHORT)


def _is_fast(item: pytest.Item) -> bool:
    return _seconds(item) <= _QUICK and not _has_server(item)


def _has_server(item: pytest.Item) -> bool:
    return not _SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


class _Recorder:
    """Adds up each file's seconds, setup and teardown included."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        long = {file: round(each, 1) for file, each in self._seconds.items() if each >= 1}
        _RECORD.write_text(json.dumps(dict(sorted(long.items())), indent=1) + "\n")
