"""A real worker's metrics port: what it reports, also while the worker is blocked."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from testkit.servers.process import free_port
from testkit.servers.proxy import Proxy
from tests.telemetry.lab import Samples, get, get_json
from tests.worker.lab import PATIENCE, Lab, WorkerProcess


def wait_until(what: Callable[[], bool]) -> None:
    """Poll until the predicate holds."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, "it has not come to it"
        time.sleep(0.02)


def said(port: int) -> dict[str, str]:
    """The reasons why the worker is not ready; ``unreachable`` while its port is closed."""
    try:
        status, answer = get_json(port, "/readyz")
    except OSError:
        return {"unreachable": ""}
    assert (status == 200) is (answer["ready"] is True) is (answer["reasons"] == {})
    reasons: dict[str, str] = answer["reasons"]
    return reasons


def reasons(port: int) -> set[str]:
    """The names of the reasons."""
    return set(said(port))


def test_a_worker_is_ready_while_it_consumes_and_always_healthy(lab: Lab) -> None:
    port = free_port()
    lab.client.connect()
    with Proxy(lab.broker_url) as proxy, lab.worker(broker_url=proxy.url, metrics_port=port):
        wait_until(lambda: not reasons(port))
        proxy.down()
        wait_until(lambda: reasons(port) == {"broker"})
        assert get_json(port, "/healthz") == (200, {"healthy": True})
        assert (
            Samples(get(port, "/metrics")[1]).value("pos_gateway_not_ready", reason="broker") == 1
        )
        proxy.heal()
        wait_until(lambda: not reasons(port))


def test_a_worker_that_starts_without_its_broker_names_it_as_the_reason(lab: Lab) -> None:
    port = free_port()
    with Proxy(lab.broker_url) as proxy:
        proxy.down()
        with lab.worker(broker_url=proxy.url, metrics_port=port):
            wait_until(lambda: "unreachable" not in reasons(port))
            assert get_json(port, "/healthz") == (200, {"healthy": True})
            assert "broker" in reasons(port)
            proxy.heal()
            wait_until(lambda: not reasons(port))


def test_a_worker_whose_database_is_away_is_not_ready(
    lab: Lab, postgres_url: str, tmp_path: object
) -> None:
    from pos_gateway.database.engine import open_database
    from tests.schema import make_tables

    port = free_port()
    engine = open_database(postgres_url)
    make_tables(engine)
    engine.dispose()
    with (
        Proxy(postgres_url) as proxy,
        lab.worker(database_url=proxy.url, metrics_port=port),
    ):
        wait_until(lambda: not reasons(port))
        proxy.down()
        wait_until(lambda: reasons(port) == {"database"})
        wait_until(lambda: failures(port) > 0)  # the next lease, a moment after the schema's check
        proxy.heal()
        wait_until(lambda: not reasons(port))


def failures(port: int) -> float:
    """Transactions of the ledger's that the database did not take."""
    return Samples(get(port, "/metrics")[1]).value("pos_gateway_ledger_failures_total")


@contextmanager
def ending(lab: Lab) -> Iterator[tuple[WorkerProcess, int]]:
    """A worker with an order in flight at a merchant that hangs, and its metrics' port."""
    port = free_port()
    lab.open_merchants("hang-1")
    with lab.worker(metrics_port=port, request_timeout=60) as worker:
        wait_until(lambda: not reasons(port))
        lab.submit("hang-1", "o1")
        lab.merchants.wait_until(merchant_id="hang-1", in_flight=1)
        yield worker, port


def test_a_worker_that_is_told_to_stop_is_not_ready_and_finishes(lab: Lab) -> None:
    with ending(lab) as (worker, port):
        worker.send(signal.SIGTERM)
        wait_until(lambda: "draining" in reasons(port))
        assert get_json(port, "/healthz") == (200, {"healthy": True})
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)
        assert worker.wait() == 0


def test_a_worker_that_sighup_starts_again_is_not_ready_meanwhile(lab: Lab) -> None:
    with ending(lab) as (worker, port):
        worker.send(signal.SIGHUP)
        wait_until(lambda: "draining" in reasons(port))
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)
        assert len(lab.events(1)) == 1


def test_a_hanging_merchants_status_is_shown(lab: Lab) -> None:
    port = free_port()
    lab.open_merchants("hang-1", max_concurrency=2, provider="acme")
    with lab.worker(metrics_port=port, request_timeout=60, slow_after=0.2):
        lab.submit("hang-1", *[f"o{n}" for n in range(5)])
        lab.merchants.wait_until(merchant_id="hang-1", in_flight=2)
        wait_until(lambda: merchant(port).get("silent") is True)
        standing = merchant(port)
        assert standing["in_flight"] == 2
        assert standing["waiting"] + standing["parked"] == 3
        assert (standing["agreed"], standing["provider"]) == (2, "acme")
        samples = Samples(get(port, "/metrics")[1])
        assert samples.of("pos_gateway_slots") == {
            ("free",): 198,
            ("light",): 0,
            ("heavy",): 0,
            ("silent",): 2,
        }
        assert samples.of("pos_gateway_connections")[("leased",)] == 2
        assert samples.value("pos_gateway_merchant_in_flight", merchant="hang-1") == 2
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)
        lab.events_until_all_ended(f"o{n}" for n in range(5))


def merchant(port: int) -> dict[str, object]:
    _, page = get_json(port, "/debug/merchants?troubled=1")
    return page["merchants"][0] if page["merchants"] else {}


def test_orders_are_delivered_although_the_port_is_taken(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    with closing(socket.create_server(("", 0))) as taken:
        port = taken.getsockname()[1]
        with lab.worker(metrics_port=port) as worker:
            lab.submit("fast-1", "o1")
            lab.events_until_all_ended(["o1"])
            assert "metrics.port_taken" in worker.log


def test_an_order_is_delivered_while_clients_of_the_port_do_not_read(lab: Lab) -> None:
    port = free_port()
    lab.open_merchants("fast-1")
    with lab.worker(metrics_port=port), ExitStack() as asking:
        wait_until(lambda: not reasons(port))
        for path in ("/metrics", "/debug/merchants"):
            client = asking.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        lab.submit("fast-1", "o1")
        lab.events_until_all_ended(["o1"])
