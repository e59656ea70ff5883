"""Compares the canary with the stable workers: the evidence, the statistics, the verdict."""
