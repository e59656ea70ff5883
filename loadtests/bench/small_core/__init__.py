"""A worker with a part of a core: healthy merchants beside each of the adversaries that take its CPU.

- ``core``: the parts of a core, and the limits there
- ``adversary``: who else has work, as a value; ``adversaries``: all of them
- ``backlogs``, ``peak``, ``returning``, ``expiring``, ``behind``, ``replaying``, ``cancelling``, ``largest``: what
  they prepare and send; ``publishing``: orders at a rate
- ``share``: the part of the CPU that healthy orders leave, and who got how much of it
- ``trio``: one adversary on one core: undisturbed, beside it, and the adversary alone
- ``measure``, ``report``: all of them in rounds, and the tables
"""
