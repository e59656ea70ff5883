"""What can be wrong with what the simulated merchants are told."""


class ScenarioError(ValueError):
    """Raised when a profile or a scenario cannot be played; names the field and what would do."""
