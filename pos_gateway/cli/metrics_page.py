"""``docs/metrics.md``: every metric, generated from the code."""

_INTRODUCTION = """\
# Metrics

A worker serves them for Prometheus at `http://…:9808/metrics` (`POS_GATEWAY_METRICS_PORT`; 0 turns
the port off; `POS_GATEWAY_METRICS_HOST` says where it is: at this machine alone by default), and so does `pos-gateway events run`, as far as they are about events and the process.
This page is generated from the code by `pos-gateway schema`. [The runbook](runbook.md) says what to
do when an alert goes by one of them.

However many merchants there are, a worker has fewer than 3,000 series: a merchant has a name only
among the {worst} in most trouble, a provider among the first {providers} that came up (the others
are `other`, and a merchant without one is `none`), and no label carries an order's id.

| metric | type | labels | meaning |
|---|---|---|---|
"""

_PAGES = """
Of a histogram there are `…_bucket`, `…_sum` and `…_count`. What is no `counter` and no `histogram` is
as it was at the moment of the scrape.

## What else is at that port

| path | |
|---|---|
| `/healthz` | 200 while the event loop turns, for it is the loop that answers: a probe of whether to restart. `pos_gateway_event_loop_lag_seconds` says how late it is |
| `/readyz` | 200, or 503 with the reasons in JSON: `broker` (nothing is taken from the queue), `database` (it has not answered for seconds, its schema is none to work on, or a table is missing: looked at every 2 s), `draining` (the worker was told to stop). No answer of it asks anybody, so it may be called at any rate |
| `/debug/merchants` | how things stand with the merchants that have orders in this worker, or parked by it, or are in trouble, as JSON: `limit` (of `agreed`), `in_flight`, `waiting`, `parked`, `light`, `silent`, `breaker`, `provider`, `in_trouble`. `?troubled=1` leaves out those that are well, `?page=2` goes on, `?per_page=500` is the longest page (100) |

The port has no authentication. It shows merchants' ids, how much traffic each has, and no
secrets. So it is at `127.0.0.1` unless `POS_GATEWAY_METRICS_HOST` opens it, as the image, the compose file
and the manifests do, where network policies say who may reach it. The port opens before the
worker connects to the broker, so `/readyz` also says what a worker waits for when it starts. A
synchronous worker (`-P prefork`) does not serve them: it forks, and a thread of its own could hold a
lock at that moment, which the child would wait for. What is at the port then is the process beside it
that publishes events.

However many ask, orders are not held up for it: `/metrics` and `/debug/merchants` are made for one client
after the other (a ninth that waits gets 503), a request has 5 s and 16 KiB, and of 64 open connections the
oldest is closed for the next.
"""


def metrics_page() -> str:
    """The page."""
    from pos_gateway.telemetry import metrics

    page = _INTRODUCTION.format(worst=metrics.WORST, providers=metrics.PROVIDERS)
    for each in metrics.declared():
        [described] = each.describe()
        name = f"{described.name}_total" if described.type == "counter" else described.name
        labels = ", ".join(f"`{label}`" for label in each._labelnames)
        page += f"| `{name}` | {described.type} | {labels} | {described.documentation} |\n"
    return page + _PAGES
