"""Delivers and cancels orders, and decides the consequences. Read ``attempt/spine.py`` first."""
