"""Prometheus metrics. Labels never carry an order id, and a merchant's only of the few worst."""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

#: From a fast reply on the same continent to the longest time limit that is allowed.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30)

attempts = Histogram(
    "pos_gateway_attempt_seconds",
    "Time of one attempt at a POS, from connecting to the last byte.",
    ("outcome", "provider"),
    buckets=_SECONDS,
)
orders = Counter("pos_gateway_orders_total", "Orders that came to an end.", ("outcome",))
retries = Counter("pos_gateway_retries_total", "Orders put back to be tried again later.")
dead_letters = Counter("pos_gateway_dead_letters_total", "Messages set aside.", ("reason",))
parked = Counter("pos_gateway_parked_total", "Orders handed back to the broker to wait there.")
in_flight = Gauge("pos_gateway_in_flight", "Orders under way: slots in use.")
waiting = Gauge("pos_gateway_waiting", "Orders waiting in this worker.")
cut_short = Counter(
    "pos_gateway_cut_short_total", "Attempts ended early, since others needed their slots."
)
breakers = Counter(
    "pos_gateway_breaker_transitions_total", "Merchants' circuit breakers.", ("state",)
)
parked_now = Gauge("pos_gateway_parked_orders", "Orders that this worker has parked at present.")
parked_of_merchant = Gauge(
    "pos_gateway_merchant_parked_orders",
    "The same for the merchants that have most of them.",
    ("merchant",),
)
publish_trouble = Counter(
    "pos_gateway_publish_trouble_total", "Publishes that the broker did not take at once."
)

_events = Histogram(
    "pos_gateway_event_seconds",
    "Time from an event's outcome until the leader has it (each event); then a batch's until it is"
    " hydrated, until it is sent, and until the broker has confirmed it (each batch).",
    ("segment",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
event_picked_up = _events.labels("picked_up")
event_hydrated = _events.labels("hydrated")
event_published = _events.labels("published")
event_confirmed = _events.labels("confirmed")

fleet_connected = Gauge(
    "pos_gateway_fleet_connected",
    "1: merchants' limits hold for all pods together; 0: for this worker by itself.",
)
fleet_syncs = Counter(
    "pos_gateway_fleet_syncs_total", "Exchanges with Redis about permits.", ("outcome",)
)
fleet_sync_seconds = Histogram(
    "pos_gateway_fleet_sync_seconds",
    "Time of one exchange with Redis about permits.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
fleet_permits = Gauge(
    "pos_gateway_fleet_permits", "Permits that this worker holds, all merchants'."
)
fleet_pods = Gauge("pos_gateway_fleet_pods", "Workers that share limits with this one, and it.")
#: Merchants in trouble that are named in a label: ten thousand would be more than it tells.
WORST = 10


def show_parked(total: int, worst: Iterable[tuple[str, int]]) -> None:
    """So many orders are parked, and these merchants have most of them."""
    parked_now.set(total)
    parked_of_merchant.clear()
    for merchant_id, orders in worst:
        parked_of_merchant.labels(merchant_id).set(orders)
