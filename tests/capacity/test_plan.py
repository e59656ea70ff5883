"""A plan suffices for its demand, and a fifth less does not: real admission in virtual time."""

from dataclasses import replace
from math import ceil, floor
from typing import Any

import pytest

from pos_gateway.admission.limits import RESERVE
from pos_gateway.ledger.commits import GATHER
from pos_gateway.worker import capacity, consumer
from pos_gateway.worker.capacity import (
    CHANCE,
    IDLE_MIB,
    WINDOW,
    OfferedLoad,
    Plan,
    Pod,
    mean_of,
    memory,
    plan,
    staffed,
)
from tests.capacity.fleet import END, WARM_UP, Fleet

#: Shares of orders that waited for more than a second: next to none, and most.
FEW, MOST = 0.01, 0.5
#: Seconds of a run with enough orders to see it soon.
SHORT = WARM_UP + 8.0
#: A pod with an ample core, where slots are the limit.
IDLE = Pod(cpu_ms=0.5, memory=4096)


def fleet(
    made: Plan,
    *,
    pods: float = 1,
    slots: float = 1,
    merchant_limit: float = 1,
    end: float = END,
) -> Fleet:
    """The planned fleet, or a fraction of it."""
    return Fleet(
        made,
        pods=floor(made.pods * pods),
        slots=floor(made.slots * slots),
        merchant_limit=floor(made.merchant_limit * merchant_limit),
        end=end,
    ).run()


class TestInVirtualTime:
    def test_the_pods_that_the_cpu_takes(self) -> None:
        made = plan(OfferedLoad(900, latency=0.2), Pod(cpu_ms=5, busy=0.9))
        assert (made.pods, made.bottlenecks[0].what) == (5, "CPU")
        assert fleet(made, end=SHORT).late() < FEW
        assert fleet(made, pods=0.8, end=SHORT).late() > MOST

    def test_the_slots_that_little_asks_for(self) -> None:
        made = plan(OfferedLoad(200, latency=2.0), IDLE)
        assert (made.pods, made.bottlenecks[0].what) == (1, "slots")
        assert fleet(made).late() < FEW
        assert fleet(made, slots=0.8).late() > MOST

    def test_the_slots_of_slow_merchants(self) -> None:
        made = plan(OfferedLoad(500, latency=0.2, slow=0.16, slow_latency=5.0), IDLE)
        assert made.bottlenecks[0].what == "slots"
        assert fleet(made).late("slow") < FEW
        less = fleet(made, slots=0.8)
        assert less.late("slow") > MOST
        assert less.late("healthy") < FEW  # as the plan says: the heaviest merchants wait

    def test_the_limit_of_the_busiest_merchant(self) -> None:
        made = plan(OfferedLoad(500, latency=2.0, busiest=0.4), IDLE)
        assert fleet(made, end=SHORT).late("busiest") < FEW
        less = fleet(made, merchant_limit=0.8, end=SHORT)
        assert less.late("busiest") > MOST
        assert less.late("healthy") < FEW


class TestTheArithmetic:
    def test_under_way_is_the_rate_times_the_time(self) -> None:
        demand = OfferedLoad(100, latency=0.49, peak=3, slow=0.1, slow_latency=7.99)
        assert demand.at_peak == 300
        assert demand.in_flight == pytest.approx(270 * 0.5)  # a slot is held for 10 ms longer
        assert demand.slow_in_flight == pytest.approx(30 * 8)

    def test_by_the_cpu_there_are_as_many_pods_as_cores_that_are_not_full(self) -> None:
        pod = Pod(cpu_ms=2.0, busy=0.5)
        assert plan(OfferedLoad(1000, latency=0.1), pod).pods == 4
        assert plan(OfferedLoad(1001, latency=0.1), pod).pods == 5
        assert plan(OfferedLoad(1000, latency=0.1), replace(pod, cores=0.5)).pods == 8
        assert plan(OfferedLoad(1000, latency=0.1), replace(pod, cores=4)).pods == 4  # it uses one

    def test_where_memory_is_short_more_pods_have_fewer_slots(self) -> None:
        demand = OfferedLoad(300, latency=2.0)
        roomy, tight = plan(demand, Pod(memory=4096)), plan(demand, Pod(memory=160))
        assert roomy.pods == 1
        assert tight.pods > roomy.pods
        assert tight.memory <= 160
        fewer = replace(tight, pods=tight.pods - 1)
        assert memory(ceil(staffed(demand.in_flight / fewer.pods)), 1000) > 160

    def test_there_are_slots_that_heavy_merchants_leave_free(self) -> None:
        demand = OfferedLoad(500, latency=0.2, slow=0.1, slow_latency=5.0)
        needed = staffed(demand.in_flight) + staffed(demand.slow_in_flight)
        assert plan(demand, IDLE).slots == ceil(needed / (1 - RESERVE - CHANCE))

    def test_what_gives_way_first_is_first(self) -> None:
        made = plan(OfferedLoad(300, latency=1.0, busiest=0.2), Pod())
        first = made.bottlenecks[0]
        assert first.what == "the busiest merchant's limit of 10"
        assert first.orders_per_second == pytest.approx(10 / (0.2 * 1.01))
        assert first.used > 1  # it does already: the plan names a sufficient limit
        assert made.merchant_limit == ceil(staffed(300 * 0.2 * 1.01))

    def test_writes_share_transactions_once_there_are_many(self) -> None:
        few, many = (
            plan(OfferedLoad(20, latency=1.0), Pod()),
            plan(OfferedLoad(1000, latency=1.0), Pod()),
        )
        assert few.transactions == 20 + 20 + 20
        assert many.transactions == pytest.approx(many.pods / GATHER + 50)
        assert (few.messages, few.prefetch) == (40, 10 * few.slots)

    def test_a_mean_is_above_a_median(self) -> None:
        assert mean_of(0.3, 0.3) == pytest.approx(0.3)
        assert mean_of(0.3, 2.0) == pytest.approx(0.419, abs=0.001)

    def test_the_window_is_the_workers(self) -> None:
        assert (WINDOW, capacity.MOST) == (consumer.WINDOW, consumer.MOST)
        assert Plan(OfferedLoad(1, latency=1.0), Pod(), pods=1, slots=200).prefetch == 2000
        assert Plan(OfferedLoad(1, latency=1.0), Pod(), pods=1, slots=10_000).prefetch == 65_535

    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            (
                lambda: OfferedLoad(0, latency=1.0),
                "orders_per_second: must be a number from 0.000001",
            ),
            (
                lambda: OfferedLoad(1, latency=float("nan")),
                "latency: must be a number from 0.000001",
            ),
            (lambda: OfferedLoad(1, latency=float("inf")), "latency"),
            (lambda: OfferedLoad(1, latency=1.0, slow=1.5), "slow: must be a share, 0 to 1"),
            (lambda: Pod(busy=0), "busy: must be a number from 0.000001"),
            (
                lambda: plan(OfferedLoad(1, latency=1.0), Pod(memory=IDLE_MIB)),
                "memory: a worker takes",
            ),
            (lambda: mean_of(2.0, 1.0), "p99: must be at least p50"),
        ],
    )
    def test_a_mistake_is_named_with_what_would_do(self, wrong: Any, named: str) -> None:
        with pytest.raises(ValueError, match=named):
            wrong()

    def test_the_largest_plan_there_is_takes_no_time(self) -> None:
        most = plan(OfferedLoad(1e6, latency=1e6, peak=1e6), Pod(cpu_ms=1e6, cores=1e-6, busy=1e-6))
        assert most.pods == pytest.approx(1e27)
