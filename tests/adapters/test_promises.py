"""Each adapter of the project's keeps the promises that the conformance suite tests."""

from collections.abc import Mapping
from typing import Any, ClassVar

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.registry import BUILT_IN
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.testing import Conformance, Pos
from pos_gateway.adapters.testing.losses import SurvivesLosses
from pos_gateway.adapters.testing.repeats import RepeatsItself
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.domain.order import Order
from pos_gateway.transport.exchange import Reply
from testkit.faults.adapters import QueryableAdapter
from testkit.steps.adapters import PaidAdapter, PrintedAdapter
from tests.adapters.poses import (
    PosOfSteps,
    RestPos,
    ToastFacts,
    clover_pos,
    hubrise_pos,
    square_pos,
)
from tests.adapters.scripted import reply
from tests.adapters.vendors import (
    CLOVER,
    EXAMPLES,
    HUBRISE,
    REST,
    SQUARE,
    TOAST,
    hubrise_error,
    sku_of,
)

Json = Mapping[str, Any]
BASE_URL = "https://pos.example.com"


class TestRest(Conformance):
    adapter = RestAdapter()
    refusals = tuple(REST.refusals)

    def pos(self, order: Order) -> Pos:
        return RestPos()


class TestQueryable(TestRest):
    adapter = QueryableAdapter()


class TestShop(TestRest):
    adapter = EXAMPLES["shop"].adapter


class TestSquare(Conformance):
    adapter = SquareAdapter()
    record: ClassVar[Json] = {**SQUARE.record, "base_url": BASE_URL}
    refusals = tuple(SQUARE.refusals)

    def pos(self, order: Order) -> Pos:
        return square_pos()


class TestClover(Conformance):
    adapter = CloverAdapter()
    record: ClassVar[Json] = {**CLOVER.record, "base_url": BASE_URL}
    refusals = tuple(CLOVER.refusals)

    def pos(self, order: Order) -> Pos:
        return clover_pos()


class TestToast(Conformance):
    adapter = ToastAdapter()
    record: ClassVar[Json] = {**TOAST.record, "base_url": BASE_URL}
    item: ClassVar[Json] = {"sku": sku_of("burger")}
    modifier: ClassVar[Json] = {"sku": sku_of("onions"), "name": "no onions"}

    def pos(self, order: Order) -> Pos:
        return ToastFacts(order)


class TestHubRise(Conformance):
    adapter = HubRiseAdapter()
    record: ClassVar[Json] = {**HUBRISE.record, "base_url": f"{BASE_URL}/v1"}
    refusals = ((hubrise_error("price"), "invalid_order"),)
    no_answers: ClassVar[Mapping[str, Reply]] = {
        "an internal error": reply(500, {"error_type": "internal_error"})
    }

    def pos(self, order: Order) -> Pos:
        return hubrise_pos()


class TestPaid(RepeatsItself, SurvivesLosses):
    """A POS that takes an order's total alone."""

    adapter = PaidAdapter()

    def pos(self, order: Order) -> Pos:
        return PosOfSteps()


class TestPrinted(TestPaid):
    adapter = PrintedAdapter()


def test_every_built_in_adapter_is_in_this_file() -> None:
    tested = {each.adapter.name for each in Conformance.__subclasses__()}
    assert {adapter.name for adapter in BUILT_IN} <= tested
