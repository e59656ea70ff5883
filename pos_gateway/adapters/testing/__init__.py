"""Tests of the protocol's promises, for the author of an adapter, in a few lines.

::

    from pos_gateway.adapters.testing import Conformance

    class TestAcme(Conformance):
        adapter = AcmeAdapter()
        record = {"pos": {"shop": "17"}}

        def pos(self, order):
            return AcmePos()

A POS is a function from a request to a reply, in memory. ``pos.py`` and ``stand.py`` have the further methods and
attributes, each for more tests. Needs no pytest to be imported; pytest runs the tests. Workers never import
this package.
"""

from pos_gateway.adapters.testing.broken import BrokenPromise
from pos_gateway.adapters.testing.conformance import Conformance
from pos_gateway.adapters.testing.pos import Made, Pos, json_of, json_reply, path_of, query_of

__all__ = [
    "BrokenPromise",
    "Conformance",
    "Made",
    "Pos",
    "json_of",
    "json_reply",
    "path_of",
    "query_of",
]
