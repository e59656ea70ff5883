"""Ledger, broker, POSes of one step or more, and workers that crash, in virtual time; a seed replays a run.

The gateway's own code (``Spine.run`` and all below it, the ledger with its
group commit and leases) runs in green threads. A scheduler switches between them at every
failpoint, statement, publish and POS exchange. One random generator decides which thread runs, how
long everything takes and what fails; so a seed is a run, the same on every machine.

``python -m tests.simulation --seed 7`` replays one, ``--seeds 0-9999`` runs many, and ``--faults``
plants the faults of ``faults.py`` and prints which seed shows each.
"""
