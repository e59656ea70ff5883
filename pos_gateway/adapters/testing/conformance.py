"""The whole suite: what every adapter is held to."""

from pos_gateway.adapters.testing.contents import KeepsContents
from pos_gateway.adapters.testing.losses import SurvivesLosses
from pos_gateway.adapters.testing.records import ChecksRecords
from pos_gateway.adapters.testing.repeats import RepeatsItself
from pos_gateway.adapters.testing.replies import ReadsReplies


class Conformance(ChecksRecords, RepeatsItself, ReadsReplies, SurvivesLosses, KeepsContents):
    """The promises of an adapter, as tests. Run by pytest in a subclass named ``Test…``."""
