"""Strict simulators of the vendors' APIs, written from the vendors' public documents.

A simulator refuses what its document refuses, computes totals itself, and keeps facts that tests ask.
"""
