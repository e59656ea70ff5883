"""Load on a whole gateway, and its outcome: ``python -m loadtests.load lunch-peak``.

- ``scenario``, ``shapes``: who the merchants are, and when orders come for them
- ``../locustfile.py``: the order backends, for locust; ``outcomes``: what they know of their orders;
  ``record``: what they saw, written down
- ``run``, ``scraper``: one run, and the worker's metrics meanwhile
- ``figures``, ``verdict``: what limited it, and whether it was as wanted
- ``story``, ``page``: the report, for a terminal and as HTML
- ``slices``, ``histogram``, ``chart``, ``charts``: figures over time, and pictures of them

``docs/load-testing.md`` says how to use it and how to read what it says.
"""
