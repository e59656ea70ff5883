"""POS Gateway: sends every order to its merchant's point-of-sale API.

One order's way through is in ``attempt/spine.py``; read that file first.
"""

__version__ = "0.1.0"
