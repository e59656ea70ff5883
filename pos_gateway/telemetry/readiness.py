"""Readiness of this process, with the reasons against."""

from collections.abc import Callable

from pos_gateway.telemetry import metrics


class Readiness:
    """Conditions for readiness, each reported by a component from memory.

    Without a query, probes may ask at any rate.
    """

    def __init__(self) -> None:
        self._problems: dict[str, Callable[[], str | None]] = {}

    def require(self, name: str, problem: Callable[[], str | None]) -> None:
        """Add a condition: ``problem()`` returns a sentence, or None if met. Must not block."""
        self._problems[name] = problem

    def problems(self) -> dict[str, str]:
        """The sentences of unmet conditions, by condition name. Empty: the process is ready."""
        found = {name: problem() for name, problem in self._problems.items()}
        return {name: problem for name, problem in found.items() if problem is not None}

    def show(self) -> None:
        """Set the metric ``pos_gateway_not_ready``."""
        problems = self.problems()
        for name in self._problems:
            metrics.not_ready.labels(name).set(name in problems)
