"""Merchants: their store in the database, and the directory that workers read."""
