"""Whether this process is ready, and why not."""

from collections.abc import Callable

from pos_gateway.telemetry import metrics


class Readiness:
    """Conditions, each told by whoever knows it without asking anybody.

    So it may be asked as often as probes like: no query is made for an answer.
    """

    def __init__(self) -> None:
        self._problems: dict[str, Callable[[], str | None]] = {}

    def require(self, name: str, problem: Callable[[], str | None]) -> None:
        """Ready only while this is None; else it says in words what is wrong. It must not block."""
        self._problems[name] = problem

    def problems(self) -> dict[str, str]:
        """What keeps the process from being ready, by the condition's name."""
        found = {name: problem() for name, problem in self._problems.items()}
        return {name: problem for name, problem in found.items() if problem is not None}

    def show(self) -> None:
        """Set the metric."""
        problems = self.problems()
        for name in self._problems:
            metrics.not_ready.labels(name).set(name in problems)
