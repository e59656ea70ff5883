"""Faults of every kind under load, and a verdict: ``python -m loadtests.soak``."""
