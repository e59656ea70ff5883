"""The demo's gateway in this process: its settings, its merchants, and the real green worker."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
from gevent.event import Event

from pos_gateway.attempt import gateway
from pos_gateway.database.engine import upgrade
from pos_gateway.demo.cast import PARTS, PROFILES, REQUEST_TIMEOUT
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.settings import forget_environment
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.worker.celery_internals import request_stop

#: Seconds that the worker may take to start.
LONGEST_START = 30.0

#: Admission's lanes: each merchant with orders here, how many are in flight, and how many waiting.
Lanes = Callable[[], list[tuple[str, int, int]]]


def configure(folder: Path, **others: str) -> None:
    """Set the environment of this process and its children: an in-memory broker, a database in ``folder``.

    Nothing of the user's environment is kept: the worker would take real orders from a real broker.
    """
    forget_environment()
    os.environ.update(
        POS_GATEWAY_BROKER_URL="memory://",
        POS_GATEWAY_DATABASE_URL=f"sqlite:///{folder / 'demo.db'}",
        POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES="true",
        POS_GATEWAY_METRICS_PORT="0",
        POS_GATEWAY_REQUEST_TIMEOUT=str(REQUEST_TIMEOUT),
        **others,
    )


def open_merchants(merchants: SimulatedMerchants, *, alone: Collection[str] = ()) -> None:
    """Make the database, with a record for each simulated merchant.

    A class is a provider; those that are ``alone`` have one of their own.
    """
    for pattern, profile in PROFILES.items():
        merchants.profile(pattern, profile)
    database = gateway.current().database
    upgrade(database)
    MerchantStore(database).put(
        Merchant.parse(
            {
                "id": each,
                "base_url": merchants.base_url(each),
                "provider": each if each in alone else part.name,
            }
        )
        for part in PARTS
        for each in part.ids
    )


@contextmanager
def green_worker() -> Iterator[Lanes]:
    """The real green worker in this process, once it consumes; yields what returns admission's lanes.

    Customers order from a gateway that runs: what they see is not how long a worker takes to start.
    """
    from pos_gateway.gcelery import app

    is_ready = Event()
    controller = app.WorkController(
        app=app,
        hostname="demo@localhost",
        pool_cls=app.conf.worker_pool,
        concurrency=app.conf.worker_concurrency,
        loglevel="ERROR",
        # The signal worker_ready is sent by Celery's command only.
        ready_callback=lambda _: is_ready.set(),
    )
    running = gevent.spawn(controller.start)
    gevent.wait([is_ready, running], timeout=LONGEST_START, count=1)
    if not is_ready.is_set():
        raise RuntimeError("the worker did not start")

    def lanes() -> list[tuple[str, int, int]]:
        dispatcher = getattr(getattr(controller, "consumer", None), "dispatcher", None)
        merchants = dispatcher.admission.merchants() if dispatcher else ()
        return [(each.merchant_id, each.in_flight, each.waiting) for each in merchants]

    try:
        yield lanes
    finally:
        request_stop(0)
        running.join(REQUEST_TIMEOUT + 10)
