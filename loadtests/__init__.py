"""Benchmarks, load tests and the demo; the world that they run against is `testkit`."""
