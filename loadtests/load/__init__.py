"""Load tests of a whole gateway: ``python -m loadtests.load steady``.

- ``scenario``: how many orders for which merchants
- ``outcomes``: what became of each order, as its backend sees it
- ``histogram``: how long it took
- ``../locustfile.py``: the order backends, for locust
"""
