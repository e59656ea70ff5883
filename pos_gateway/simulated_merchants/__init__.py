"""Simulated merchants: thousands of POS APIs on one port that behave as configured and keep the truth.

A benchmark or a test that asks the gateway what happened learns what the gateway believes. This
server is the other side: what it was really sent, how often and when.

- ``latency``, ``behaviour``, ``mix``, ``profiles``, ``scenario``: how merchants behave, and which
  one how; ``weighted``: chance
- ``records``, ``orders``, ``levels``, ``lateness``: the truth; ``feed``: the newest of it
- ``connection``, ``replies``: HTTP, as cheap as Python allows
- ``pos``: the POS API of every merchant; ``control``: the questions and orders under ``/_/``
- ``server``, ``__main__``: the process; ``client``: what the demo, tests and benchmarks use
- ``measure``: what a request costs

Of this distribution it imports nothing else: the image of simulated merchants has it alone.
"""
