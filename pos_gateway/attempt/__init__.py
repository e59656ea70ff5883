"""Delivers and cancels orders, and decides what follows. Read ``attempt/spine.py`` first."""
