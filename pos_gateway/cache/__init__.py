"""Caches with values refreshed before expiry, by a single worker of the fleet."""
