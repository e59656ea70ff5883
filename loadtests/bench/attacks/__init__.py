"""Attacks: what merchants in trouble do to the others, beside the same orders without trouble.

- ``population``, ``attack``: who there is, who gets into trouble, how and when; data
- ``trial``: a worker, a population and perhaps an attack; ``observation``: what a run of it showed
- ``full_queue``: a run for throughput; ``steady``: one for latency, with ``producer`` and
  ``schedule``: orders at a rate of their own
- ``throughput``, ``latency``, ``cost``: figures from an observation
- ``bout``, ``report``: what is compared, and whether it is good enough
- ``backlog``, ``backlog_report``: a dead merchant's orders ahead of everyone, which has figures of
  its own
- ``series``: slots over time, for pictures
"""
