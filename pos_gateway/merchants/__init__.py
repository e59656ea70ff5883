"""Merchants: the database's records and catalogs, and the directory for workers."""
