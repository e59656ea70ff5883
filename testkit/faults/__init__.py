"""A whole installation that faults are injected into, and the verdict: nothing lost, nothing doubled."""
