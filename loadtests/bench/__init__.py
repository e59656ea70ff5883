"""The benchmark: the gateway beside what a user would pick instead, on the same machine.

``python -m loadtests.bench``; ``docs/benchmarks.md`` says how to read what it prints. A figure
of one machine says little, so everything is a ratio of runs that took turns within minutes, and
throughput is what the merchants saw, not what the gateway believes.

- ``candidate``: a worker to run; ``scenario``: which ones run against which merchants, and what
  is wanted of them
- ``world``, ``orders``, ``filling``: a broker, merchants, a database, and a queue full of orders
- ``worker``, ``gauge``, ``run``: one run and what it cost
- ``window``, ``accounting``: when orders arrived, and whether each did, once
- ``one_hangs``, ``slow_merchants``, ``bursts``, ``overhead``, ``holding``: what else the whole gateway is held to
- ``report``, ``verdict``, ``charts``: medians, ratios, tables and pictures
- ``attacks``: merchants in trouble, for throughput and for latency
- ``bench``: all of it in turn
"""
