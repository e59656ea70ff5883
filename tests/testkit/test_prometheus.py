"""The Prometheus that tests start."""

from testkit.servers.prometheus import Prometheus


def test_it_evaluates_what_it_is_asked() -> None:
    with Prometheus("scrape_configs: []\n") as prometheus:
        (series,) = prometheus.query("vector(7)")

    assert series["value"][1] == "7"
