"""Attacks: what merchants in trouble do to the others, beside the same orders without trouble.

- ``attack``: who there is, who gets into trouble, how and when; data
- ``trial``: a worker, merchants and perhaps an attack; ``bystander``, ``producer``: processes beside it
- ``plays``: plays a trial, with a full queue or at a steady rate, and tells what was seen
- ``figures``: throughput, latency and cost from that
- ``bout``: what is compared, and whether it is good enough
- ``backlog``: a dead merchant's orders ahead of all others, which has figures of its own
- ``series``, ``picture``: slots over time
"""
