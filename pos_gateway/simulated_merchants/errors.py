"""What can be wrong with a behaviour that the simulated merchants are given."""


class ScenarioError(ValueError):
    """Raised when a profile or a scenario cannot be played; names the field and what would do."""
