"""Benchmarks and load tests, and the simulated world that they run against."""
