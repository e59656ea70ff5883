"""Delivers and cancels orders, and decides what follows. Read ``processing/delivery.py`` first."""
