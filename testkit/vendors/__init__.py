"""Strict simulators of the vendors' APIs, written from the vendors' public documents.

A simulator refuses requests as its document says, computes totals, and keeps facts for tests.
"""
