"""Bulk runs: one decision of an operator about many dead letters, or many orders in doubt.

A run has a life of its own in the database: previewed, confirmed, running, stopped, resumed, done.
"""
