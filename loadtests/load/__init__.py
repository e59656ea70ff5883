"""Load on a whole gateway, and its outcome: ``python -m loadtests.load lunch-peak``.

- ``scenario``, ``shapes``, ``arrivals``: who the merchants are, and when orders come for them
- ``../locustfile.py``: the order backends, for locust; ``outcomes``: what they know of their orders;
  ``record``: what they saw, written down
- ``run``, ``scraper``: one run, with what the worker says of itself meanwhile
- ``figures``, ``limits``, ``verdict``: what limited it, and whether it was as wanted
- ``story``: what is told, in which order; ``terminal`` and ``page`` tell it
- ``slices``, ``histogram``, ``chart``, ``charts``: figures over time, and pictures of them

``docs/load-testing.md`` says how to use it and how to read what it says.
"""
