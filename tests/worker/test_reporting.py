"""What real workers report, as the view of the fleet shows it."""

import time
from collections.abc import Callable

from sqlalchemy import Engine

from pos_gateway.alerts.condition import Condition
from pos_gateway.alerts.looking import look
from pos_gateway.database.engine import open_database
from pos_gateway.reports.fleet_view import Fleet, FleetView
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.worker.lab import PATIENCE, Lab


def wait_until(view: FleetView, holds: Callable[[Fleet], object]) -> Fleet:
    until = time.monotonic() + PATIENCE
    while not holds(fleet := view.now()):
        assert time.monotonic() < until, fleet
        time.sleep(0.05)
    return fleet


def breaker(fleet: Fleet, merchant_id: str) -> str | None:
    trouble = fleet.trouble(merchant_id)
    return None if trouble is None else trouble.breaker


def counted(view: FleetView, name: str) -> int:
    return sum(minute.counts[name] for minute in view.history())


def test_a_green_worker_reports_itself_and_a_merchant_in_trouble(lab: Lab) -> None:
    engine = open_database(lab.database_url)
    view = FleetView(engine)
    lab.open_merchants("good", max_concurrency=5)
    lab.open_merchants("bad", max_concurrency=1)
    lab.merchants.profile("bad", {"kind": "reset"})
    with lab.worker() as worker:
        for number in range(3):
            lab.submit("good", f"g{number}")
            lab.events(1)
        lab.submit("bad", *(f"b{number}" for number in range(12)))
        worker.wait_for_log("breaker.opened")
        # A merchant whose orders wait is in trouble before its breaker opens.
        fleet = wait_until(view, lambda fleet: breaker(fleet, "bad") not in (None, "closed"))
        bad = fleet.trouble("bad")
        assert bad is not None
        assert (bad.workers, bad.agreed) == (1, 1)
        assert bad.breaker in ("open", "half_open")
        assert bad.failed == bad.calls >= 5
        assert bad.error
        assert fleet.trouble("good") is None
        assert sum(fleet.slots.values()) == 200
        assert fleet.kinds == {("green", False): 1}
        assert fleet.events_age is not None
        wait_until(view, lambda _: counted(view, "accepted") == 3)
    assert 3 + 5 <= counted(view, "taken") <= 15  # the others were never claimed
    fleet = view.now()
    assert (list(fleet.workers), dict(fleet.lost)) == ([], {})  # it has said that it stops
    assert sum(counted(view, f"waited_{number}") for number in range(11)) >= 1
    engine.dispose()


def test_a_killed_worker_is_lost(lab: Lab) -> None:
    engine = open_database(lab.database_url)
    view = FleetView(engine)
    with lab.worker("-Q", "orders.canary") as worker:
        fleet = wait_until(view, lambda fleet: fleet.workers)
        assert fleet.kinds == {("green", True): 1}
        worker.process.kill()
        worker.wait()
    wait_until(view, lambda fleet: fleet.lost)
    engine.dispose()


def test_a_synchronous_worker_reports_what_it_can(lab: Lab) -> None:
    engine = open_database(lab.database_url)
    view = FleetView(engine)
    lab.open_merchants("m")
    with lab.worker("-P", "prefork", "-c", "1", app="pos_gateway"):
        lab.submit("m", "o1", "o2")
        lab.events_until_all_ended(["o1", "o2"])
        fleet = wait_until(view, lambda fleet: fleet.workers and fleet.workers[0].report.queues)
        assert fleet.consumers is not None
        assert fleet.kinds == {("synchronous", False): 1}
        assert fleet.events_age is not None
    assert counted(view, "accepted") == counted(view, "taken") == 2
    assert not view.now().workers
    engine.dispose()


def test_a_login_that_may_no_longer_read_orders_is_found_until_it_may(
    lab: Lab, rabbitmq: RabbitMQ
) -> None:
    """The worker reconnects for ever meanwhile, and reports, and measures the queues."""
    engine = open_database(lab.database_url)
    view = FleetView(engine)
    url = rabbitmq.add_user("worker", lab.broker_url)
    lab.open_merchants("m")
    with Proxy(url) as proxy, lab.worker(broker_url=proxy.url):
        wait_until(view, lambda fleet: fleet.consumers)
        assert look(engine, view)[Condition.NO_WORKER] == []
        rabbitmq.add_user("worker", lab.broker_url, read="^(?!orders$)")
        proxy.cut()
        lab.submit("m", "o1")
        wait_until(view, lambda fleet: fleet.consumers == 0)
        [found] = look(engine, view)[Condition.NO_WORKER]
        assert "their login may not read the queue orders" in found.says
        rabbitmq.add_user("worker", lab.broker_url)
        lab.events_until_all_ended(["o1"])
        wait_until(view, lambda fleet: fleet.consumers)
        assert look(engine, view)[Condition.NO_WORKER] == []
    engine.dispose()


def test_orders_are_delivered_without_the_reports_tables(lab: Lab) -> None:
    """A report that fails slows no order, and stops no worker."""
    engine: Engine = open_database(lab.database_url)
    lab.open_merchants("m")
    with lab.worker() as worker:
        lab.wait_for_worker()
        with engine.begin() as connection:
            connection.exec_driver_sql("alter table worker_reports rename to elsewhere")
        worker.wait_for_log("database.schema_unusable")
        lab.submit("m", *(f"o{number}" for number in range(5)))
        lab.events_until_all_ended([f"o{number}" for number in range(5)])
    engine.dispose()
