"""A POS that takes an order in steps (create, pay, print), in a process of its own, and its adapters.

- ``pos``: the truth: orders, payments and prints as facts, and how each merchant behaves
- ``server``, ``__main__``: the process; ``client``: starts the process, turns knobs, asks for the truth
- ``adapters``: ``paid`` with two steps, ``printed`` with three
"""
