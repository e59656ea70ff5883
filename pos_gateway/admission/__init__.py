"""Decides which orders may start. Pure: no Celery, no HTTP, no clock; time is passed in."""
