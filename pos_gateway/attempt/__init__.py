"""Delivers and cancels orders, and decides what follows. Read ``attempt/delivery.py`` first."""
