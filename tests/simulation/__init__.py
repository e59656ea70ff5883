"""Ledger, broker, POSes and workers that crash, in virtual time, replayable by a seed.

The gateway's own code (``tasks.deliver`` and all below it, ``Gateway.settle``, the ledger with its
group commit and leases) runs in green threads that a scheduler switches between at every failpoint,
statement, publish and POS exchange. One random generator decides who goes on, how long everything
takes and what breaks; so a seed is a run, the same on every machine.

``python -m tests.simulation --seed 7`` replays one, ``--seeds 0-9999`` runs many, and ``--faults``
plants the faults of ``faults.py`` and says which seed shows each.
"""
