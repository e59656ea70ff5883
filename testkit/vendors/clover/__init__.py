"""Clover, strict: the REST API v3 with atomic orders, payments and print events, and OAuth v2.

Sources, on docs.clover.com: "Create an atomic order", "Manage orders data", "Calculate order totals",
"Print orders with the REST API", "Create a payment record on an order", "Apply filters", "Expand
fields", "Paginate elements", "API usage and rate limits", "New server-side limits for line items", "Use
webhooks", "Use refresh token to generate new expiring token", "401 Unauthorized", the change logs of May
2023 and April 2026; the models of Clover's Android SDK; and what integrators report in public. Each module
says which rules a document has, which are reported, and which are judgement.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from testkit.vendors.clover.api import Clover
from testkit.vendors.clover.shop import Knobs, Shop

__all__ = ["Clover", "Knobs", "Shop", "simulator"]


def simulator(clock: Callable[[], datetime], **shop: Any) -> Clover:
    """A Clover merchant; ``shop`` has the arguments of ``Shop``."""
    return Clover(clock, Shop(**shop))
