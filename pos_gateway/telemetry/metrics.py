"""Every Prometheus metric. ``docs/metrics.md`` is generated from this file.

Labels never carry an order's id, and a merchant's id only for the merchants in most trouble;
providers and reasons are named up to a limit (``Names``). A scrape of a worker with ten thousand
merchants stays under three thousand series.

Counting per order costs a dictionary look-up. Figures available on demand are set before each scrape.
"""

from functools import cache

from prometheus_client import Gauge

from pos_gateway.telemetry.prometheus_internals import Counter, Histogram

#: Maximum providers, and maximum dead-letter reasons, named in a label.
PROVIDERS, REASONS = 50, 50
#: Maximum merchants in trouble named in a label, of possibly ten thousand.
WORST = 50

#: Seconds from a fast reply on the same continent to the longest usual time limit.
_REPLY = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30)
#: Reply times in seconds, and longer waits for a merchant to recover.
_WAIT = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

#: The label of an empty value, and of values beyond the limit.
NONE, OTHER = "none", "other"


class Names(dict[str | None, str]):
    """Labels by value: the first ``most`` values, then ``other``. A label is never forgotten.

    Bounded, since each label is a series, and costs Prometheus memory. Safe from threads.

    Args:
        most: the limit.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, value: str | None) -> str:
        if not value:
            return NONE
        if len(self) >= self._most:
            return OTHER
        self[value] = value
        return value


provider_names, _reason_names = Names(PROVIDERS), Names(REASONS)


# Orders

_orders = Counter(
    "pos_gateway_orders_total",
    "Orders by the type of their recorded event. After pending and in_doubt comes"
    " another; the others are an order's end.",
    ("outcome", "provider"),
)
_attempts = Counter(
    "pos_gateway_attempts_total",
    "Attempts at POSes by outcome.",
    ("outcome", "provider"),
)
_attempt_seconds = Histogram(
    "pos_gateway_attempt_seconds",
    "Merchants' reply time: one attempt at a POS, from connecting to the last byte.",
    ("provider",),
    buckets=_REPLY,
)
queue_wait = Histogram(
    "pos_gateway_queue_wait_seconds",
    "From an order's placed_at, by the backend's clock, until its first attempt starts: in the"
    " queue, waiting in the worker, and parked.",
    buckets=_WAIT,
)
order_seconds = Histogram(
    "pos_gateway_order_seconds",
    "From an order's placed_at, by the backend's clock, until its end is durable.",
    buckets=_WAIT,
)
retries = Counter("pos_gateway_retries_total", "Orders put back to be tried again later.")
_dead_letters = Counter("pos_gateway_dead_letters_total", "Dead-lettered messages.", ("reason",))
parked = Counter("pos_gateway_parked_total", "Orders parked in the broker.")
cut_short = Counter(
    "pos_gateway_cut_short_total", "Attempts ended early, since others needed their slots."
)

# Of bounded label values (``Names``): ``labels`` costs as much as the rest of counting.
_order, _attempt = cache(_orders.labels), cache(_attempts.labels)
_reply, _dead_letter = cache(_attempt_seconds.labels), cache(_dead_letters.labels)


def outcome_recorded(outcome: str, provider: str | None) -> None:
    """An order's status event is durable."""
    _order(outcome, provider_names[provider]).inc()


def attempted(outcome: str, provider: str | None, seconds: float) -> None:
    """A POS was called."""
    name = provider_names[provider]
    _attempt(outcome, name).inc()
    _reply(name).observe(seconds)


def dead_lettered(reason: str) -> None:
    """A message was dead-lettered, or is about to be."""
    _dead_letter(_reason_names[reason]).inc()


# Slots, and orders waiting for a slot

slots = Gauge(
    "pos_gateway_slots",
    "Slots: free, or held by orders of merchants that use less than half of their fair part of"
    " slot-time (light), that use more or are not known yet (heavy, as is a call that is out for longer"
    " than usual), or that do not answer (silent).",
    ("state",),
)
cpu_is_scarce = Gauge(
    "pos_gateway_cpu_scarce",
    "1 while this worker has no CPU left: orders of merchants known to keep up go first, and the others' wait.",
)
waiting = Gauge(
    "pos_gateway_waiting",
    "Orders that wait in this worker: for their merchant, which is in trouble, for a slot, for their"
    " next attempt (retry), or in bundles that are back until their merchant has room (bundle).",
    ("reason",),
)
storing = Gauge(
    "pos_gateway_outcomes_uncommitted",
    "Orders whose slot is released and whose outcome ledger and broker have not stored yet.",
)
parked_now = Gauge("pos_gateway_parked_orders", "Orders that this worker has parked at present.")
connections = Gauge(
    "pos_gateway_connections",
    "Connections to POSes: kept open for the next order (available), in use (leased), or being made"
    " while an order waits for them (pending).",
    ("state",),
)

# Merchants in trouble

breakers = Gauge(
    "pos_gateway_breakers",
    "Merchants whose circuit breaker is not closed, as this worker sees it.",
    ("state", "provider"),
)
breaker_transitions = Counter(
    "pos_gateway_breaker_transitions_total", "Merchants' circuit breakers.", ("state",)
)
merchants_in_trouble = Gauge(
    "pos_gateway_merchants_in_trouble",
    "Merchants with parked orders, with orders waiting for the merchant itself, with an open or"
    " half-open breaker, or silent with orders in flight.",
)
merchant_parked = Gauge(
    "pos_gateway_merchant_parked_orders",
    f"Orders that this worker has parked, of the {WORST} merchants in most trouble.",
    ("merchant",),
)
merchant_waiting = Gauge(
    "pos_gateway_merchant_waiting", "The same merchants' orders that wait here.", ("merchant",)
)
merchant_in_flight = Gauge(
    "pos_gateway_merchant_in_flight", "The same merchants' orders in flight.", ("merchant",)
)
merchant_silent = Gauge(
    "pos_gateway_merchant_silent",
    "1: a call of the merchant's is out for too long or timed out and none was answered since, its"
    " breaker is half-open, or its provider is silent.",
    ("merchant",),
)
merchant_breaker = Gauge(
    "pos_gateway_merchant_breaker",
    "The same merchants' breakers: 0 closed, 1 half open, 2 open.",
    ("merchant",),
)

# The broker

queue_messages = Gauge(
    "pos_gateway_queue_messages",
    "Messages that are ready in a queue, as the broker said within the last seconds; nothing while"
    " it cannot be asked. Those in workers' hands are not among them.",
    ("queue",),
)
queue_age = Gauge(
    "pos_gateway_queue_age_seconds",
    "How old, since its placed_at, the youngest order is that this worker has taken from the queue:"
    " those that are still there are younger, or were put back. 0 while the queue is empty.",
    ("queue",),
)
publish_trouble = Counter(
    "pos_gateway_publish_trouble_total", "Publishes that the broker did not take at once."
)

# The ledger

ledger_commit_seconds = Histogram(
    "pos_gateway_ledger_commit_seconds",
    "Time of one of the ledger's transactions, many orders' writes in each.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
ledger_commit_writes = Histogram(
    "pos_gateway_ledger_commit_writes",
    "Writes in one of the ledger's transactions; an order has two.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
event_ids_taken = Counter(
    "pos_gateway_event_ids_taken_total",
    "Events whose id another event had; each is published under another id. A mistake in the gateway.",
)
ledger_failures = Counter(
    "pos_gateway_ledger_failures_total",
    "Transactions of the ledger's that the database did not take; each is tried again.",
)
ledger_restored = Counter(
    "pos_gateway_ledger_restored_total",
    "Outcomes that the database had confirmed, and lost in a failover: written again.",
)

# Events

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
event_positions_lost = Counter(
    "pos_gateway_event_positions_lost_total",
    "Positions that events were published with, and that the database has lost in a failover.",
)
events_leading = Gauge(
    "pos_gateway_events_leading", "1: this process publishes events; 0: another one does, or none."
)
events_unpublished = Gauge(
    "pos_gateway_events_unpublished",
    "Events that have a position and are not confirmed yet. 0 where they are not published; at most"
    " a batch: how long a backlog is, its age tells.",
)
events_age = Gauge(
    "pos_gateway_events_age_seconds",
    "How old the oldest event is that is not published, as far as its leader knows; 0: there is"
    " none, or another process leads.",
)

# The fleet

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

# The HTTP server

_http_requests = Counter(
    "pos_gateway_http_requests_total",
    "Requests by route and status; 499: the client went away first.",
    ("route", "status"),
)
_http_seconds = Histogram(
    "pos_gateway_http_request_seconds",
    "Time of a request, from the end of its headers to its reply; a long poll's and a stream's are as"
    " long as their clients wish.",
    ("route",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30),
)
http_in_flight = Gauge("pos_gateway_http_in_flight", "Requests that are being taken.")
http_streams = Gauge("pos_gateway_http_streams", "Open streams of events.")
http_uncompared = Counter(
    "pos_gateway_http_uncompared_total",
    "Orders that were taken without a look at earlier ones with their id, since the database did not"
    " answer. Of two with one id the one that a worker had first counts.",
)
_callbacks = Counter(
    "pos_gateway_http_callbacks_total",
    "POSes' callbacks by what followed: applied, known, late, duplicate, unknown (no order of ours),"
    " waiting (for an order's id: it counts again later), unsent, moved, earlier (than a replay), busy (the"
    " POS sends it again), contradiction (the POS has an order that ended"
    " otherwise: call the merchant), unused (the gateway has no use for it), invalid, unreadable"
    " (this server lacks the key of the merchant's secrets), or unsigned (refused: no right signature).",
    ("adapter", "result"),
)
_polls = Counter(
    "pos_gateway_polls_total",
    "Polls of merchants' POSes that do not call back: listed (the POS has said what has changed), failed (it is"
    " asked again, later each time), or down (not asked: its breaker is not closed).",
    ("adapter", "result"),
)
polls_waiting = Gauge(
    "pos_gateway_polls_waiting",
    "Due polls that this worker postpones: orders need the POS's limits, or all of the worker's polls are in progress.",
)
http_requests, http_seconds = cache(_http_requests.labels), cache(_http_seconds.labels)
callbacks, polls = cache(_callbacks.labels), cache(_polls.labels)

# Caches

cache_reads = Counter(
    "pos_gateway_cache_reads_total",
    "Reads of merchants' records, catalogs and access tokens: from memory at once (hit), or after a load that"
    " had to be waited for (miss).",
    ("cache", "result"),
)
cache_loads = Counter(
    "pos_gateway_cache_loads_total",
    "Values that this process has loaded from the database or a token endpoint (loaded), taken over"
    " from another one by way of Redis (taken_over), or could not load (failed).",
    ("cache", "outcome"),
)
cache_stale = Counter(
    "pos_gateway_cache_stale_total",
    "Values that could not be loaded anew and are served for a while longer.",
    ("cache",),
)

# Logs

log_records_dropped = Counter(
    "pos_gateway_log_records_dropped_total",
    "Log lines that were not written: too many waited, or the stream refused them.",
    ("level",),
)

# The process

not_ready = Gauge(
    "pos_gateway_not_ready",
    "1: this process is not ready for this reason, as /readyz says in words.",
    ("reason",),
)
loop_lag = Histogram(
    "pos_gateway_event_loop_lag_seconds",
    "How much later than it was to be woken a green thread has its turn; looked at four times a"
    " second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
build_info = Gauge(
    "pos_gateway_build_info", "1, with the versions that run.", ("version", "python", "celery")
)


def declared() -> list[Counter | Gauge | Histogram]:
    """Every metric, in this file's order."""
    by_name: dict[str, Counter | Gauge | Histogram] = {}
    for each in globals().values():
        if isinstance(each, Counter | Gauge | Histogram):
            [family] = each.describe()
            by_name.setdefault(family.name, each)  # a child has the metric's name, and comes later
    return list(by_name.values())
