"""The benchmark: the gateway beside what a user would pick instead, on the same machine.

``python -m loadtests.bench``; ``docs/benchmarks.md`` says how to read what it prints. A figure
of one machine says little, so everything is a ratio of runs that took turns within minutes, and
throughput is what the merchants saw, not what the gateway believes.

- ``candidate``: a worker to run; ``cases``: which ones run against which merchants, and what is
  wanted of them
- ``world``, ``orders``, ``filling``: a broker, merchants, a database, and a queue full of orders
- ``worker``, ``waiting``, ``gauge``, ``observing``: a run, and what it cost
- ``accounting``: whether each order arrived, once
- ``one_hangs``, ``slow_merchants``, ``bursts``, ``overhead``, ``holding``: what else is wanted of the
  whole gateway
- ``attacks``: merchants in trouble, for throughput and for latency
- ``small_core``, ``limited``, ``stages``: a worker with less than a core beside adversaries, and where orders
  wait in it
- ``micro``, ``admission``, ``cache``, ``events``: what one part costs
- ``report``, ``charts``: medians, ratios, tables and pictures
- ``bench``: all of it in turn
"""
