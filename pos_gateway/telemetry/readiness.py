"""Whether this process is ready, and why not."""

from collections.abc import Callable

from pos_gateway.telemetry import metrics


class Readiness:
    """Conditions, each reported by its component from memory, without a query.

    So probes may ask at any rate.
    """

    def __init__(self) -> None:
        self._problems: dict[str, Callable[[], str | None]] = {}

    def require(self, name: str, problem: Callable[[], str | None]) -> None:
        """Ready only while ``problem()`` is None; else it returns a sentence. It must not block."""
        self._problems[name] = problem

    def problems(self) -> dict[str, str]:
        """The problems that make the process not ready, by condition name."""
        found = {name: problem() for name, problem in self._problems.items()}
        return {name: problem for name, problem in found.items() if problem is not None}

    def show(self) -> None:
        """Set the metric."""
        problems = self.problems()
        for name in self._problems:
            metrics.not_ready.labels(name).set(name in problems)
