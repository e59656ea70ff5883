"""The adapter keeps the gateway's promises."""

from pos_gateway.adapters.registry import adapters
from pos_gateway.adapters.skeleton.adapter import SkeletonAdapter
from pos_gateway.adapters.skeleton.simulator import KEY, SHOP, SkeletonPos, error
from pos_gateway.adapters.testing import Conformance, Pos
from pos_gateway.domain.order import Order


class TestSkeleton(Conformance):
    """The suite that every adapter of the gateway's passes."""

    adapter = SkeletonAdapter()
    record = {
        "auth": {"type": "api_key", "key": KEY},
        "pos": {"shop": SHOP},
        "request_timeout": 20,
        "max_concurrency": 4,
    }
    refusals = (
        (error(12, "burger is sold out"), "item_unavailable"),
        (error(20, "closed"), "store_closed"),
    )
    no_answers = {"busy": error(99, "try again"), "an unknown error": error(7, "?")}

    def pos(self, order: Order) -> Pos:
        return SkeletonPos()


def test_the_gateway_finds_the_adapter() -> None:
    install = "install this package: pip install --editable ."
    assert isinstance(adapters().get("skeleton"), SkeletonAdapter), install
