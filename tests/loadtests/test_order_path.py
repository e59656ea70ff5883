"""The path of an accepted order stays as short as it is: its files, classes with state and calls."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from greenlet import greenlet

from loadtests.bench.servers import Servers
from loadtests.profile.counting import Calls
from loadtests.profile.order_path import Function, OrderPath, trace

#: Figures that may only fall. A commit that shortens the path lowers them.
BUDGET = {"files": 61, "classes with state": 48, "calls": 245}
#: Parts of a budget by which a figure may be above and below it: a machine of a quarter of the speed has more turns of
#: the loop for the same orders. A figure that is lower by more lowers the budget.
ABOVE, BELOW = 0.06, 0.03


def strayed(budget: Mapping[str, int], figures: Mapping[str, int]) -> Iterator[str]:
    """Each figure that is above its budget, or far below it, with what to do."""
    for what, allowed in budget.items():
        if figures[what] > (1 + ABOVE) * allowed:
            yield f"{what}: {figures[what]}, of {allowed} allowed: shorten the path"
        elif figures[what] < (1 - BELOW) * allowed:
            yield f"{what}: {figures[what]}: lower the budget of {allowed} to that"


def test_an_accepted_orders_path_is_within_its_budget(servers: Servers) -> None:
    """``make profile ARGS=--path`` lists the functions."""
    path = trace(servers)
    print(path)
    assert not [*strayed(BUDGET, path.figures)]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (424, []),
        (400, []),
        (388, []),
        (425, ["calls: 425, of 400 allowed: shorten the path"]),
        (387, ["calls: 387: lower the budget of 400 to that"]),
    ],
)
def test_a_budget_allows_what_machines_differ_by(calls: int, said: list[str]) -> None:
    assert [*strayed({"calls": 400}, {"calls": calls})] == said


def plain() -> None: ...


def generator() -> Iterator[int]:
    plain()
    yield from (1, 2)


def comprehension() -> list[None]:
    return [plain() for _ in range(3)]


class TestCounting:
    @pytest.fixture
    def counted(self) -> Iterator[Callable[[], dict[str, int]]]:
        """Counts the calls of this file's functions; returns them since the last time."""
        calls, before = Calls(Path(__file__).parent), sys.getprofile()
        sys.setprofile(calls.profile)
        yield lambda: {name: number for _, name, number in calls.take()}
        sys.setprofile(before)

    def test_a_call_is_counted_once_and_in_sequence(
        self, counted: Callable[[], dict[str, int]]
    ) -> None:
        counted()
        comprehension()
        plain()
        list(generator())
        found = counted()
        assert [*found][:3] == ["comprehension", "plain", "generator"]
        assert (found["comprehension"], found["plain"], found["generator"]) == (1, 5, 1)
        assert not any("listcomp" in each for each in found)
        assert "plain" not in counted()

    def test_others_functions_are_not_counted(self, counted: Callable[[], dict[str, int]]) -> None:
        counted()
        Path("a").with_name("b")
        assert not any("Path" in each for each in counted())

    def test_greenlets_of_the_thread_are_counted(
        self, counted: Callable[[], dict[str, int]]
    ) -> None:
        def twice() -> None:
            plain()
            main.switch()
            plain()

        main = greenlet.getcurrent()
        profile, _ = sys.getprofile(), sys.setprofile(None)
        earlier = greenlet(twice)
        earlier.switch()
        sys.setprofile(profile)
        counted()
        earlier.switch()
        greenlet(twice).switch()
        assert counted()["plain"] == 2


#: Calls for an order that came alone.
ALONE = {("a/one.py", "read"): 1, ("a/two.py", "C.write"): 3, ("b/three.py", "commit"): 2}


class TestPath:
    def test_calls_of_each_order_count_and_shared_calls_do_not(self) -> None:
        first = {("b/three.py", "commit"): 5, ("a/two.py", "C.write"): 22, ("a/one.py", "read"): 9}
        second = {**first, ("a/two.py", "C.write"): 29, ("b/tick.py", "tick"): 10}
        path = OrderPath.of([first, second], 10, ALONE)
        assert path.functions == [
            Function("a/one.py", "read", 1),
            Function("a/two.py", "C.write", 2),
        ]
        assert path.shared == ["b/three.py"]

    def test_a_function_that_one_burst_lacks_is_not_on_the_path(self) -> None:
        first = dict.fromkeys(ALONE, 10)
        second = {key: 10 for key in ALONE if key[0] != "b/three.py"}
        path = OrderPath.of([first, second], 10, ALONE)
        assert [each.file for each in path.functions] == ["a/one.py", "a/two.py"]

    def test_the_list_has_packages_and_files_in_sequence(self) -> None:
        functions = [
            Function("domain/order.py", "Order.parse", 1),
            Function("admission/cpu.py", "Cpu.turned", 2),
            Function("domain/order.py", "Order.read", 1),
        ]
        assert str(OrderPath(functions, ["ledger/writer.py"])).splitlines() == [
            "Each accepted order's path: files 2, classes with state 1, calls 4",
            "",
            "domain: 2 calls",
            "  order.py: Order.parse, Order.read",
            "",
            "admission: 2 calls",
            "  cpu.py: Cpu.turned (2)",
            "",
            "Orders that come together share calls of ledger/writer.py",
        ]

    @pytest.mark.parametrize(
        ("file", "name", "owner"),
        [
            ("admission/admission.py", "Admission.offer", "admission/admission.py Admission"),
            ("events/outbox.py", "Outbox._do.<locals>.<lambda>", "events/outbox.py Outbox"),
            ("domain/order.py", "Order.parse", None),
            ("domain/outcome.py", "Outcome.after", None),
            ("telemetry/line.py", "Line.rendered", None),
            ("ledger/states.py", "State.__str__", None),
            ("worker/dead_lettering.py", "body_of", None),
            ("worker/intake.py", "known_headers", None),
        ],
    )
    def test_a_class_has_state_unless_its_objects_stay_as_they_are(
        self, file: str, name: str, owner: str | None
    ) -> None:
        assert Function(file, name, 1).stateful_class == owner
