"""Servers of our own for tests and load tests, started from Debian's packages.

Each is a context manager: it listens on loopback on a free port, keeps its data in a temporary
folder, and is gone at the end with all that it started, also when its parent was killed. One that
runs on the machine already is never touched.
"""
