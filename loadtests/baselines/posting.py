"""An order to its merchant through a ``requests.Session``, as one writes it first."""

from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter

from loadtests.baselines import MERCHANTS_URL, SLOTS, TIMEOUT

_session = requests.Session()
# All simulated merchants share a port, and so a pool: requests keeps 10 connections by default
# and would make a new one for nearly every order.
_session.mount("http://", HTTPAdapter(pool_maxsize=SLOTS))


def post(order: dict[str, Any]) -> None:
    """Return once the merchant has taken it; raises otherwise."""
    response = _session.post(
        f"{MERCHANTS_URL}/{quote(order['merchant_id'], safe='')}/orders",
        json=order,
        headers={"Idempotency-Key": order["order_id"]},
        timeout=TIMEOUT,
    )
    response.raise_for_status()
