"""What needs an operator, beside the navigation's entries: on every page, and live where a page is."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pos_gateway.administration.doubts import MAX_COUNTED
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import State
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.server.page.view import Part, View, Viewer

#: Seconds for which counts are shared: one read for all pages that are open.
_FRESH = 1.0
#: By an entry's path: how many (None: not known), and of what.
Counts = Mapping[str, tuple[int | None, str]]


class NavCounts(View):
    """The live part ``nav``, which every page has: ``here`` is the entry that it belongs to."""

    def __init__(self, fleet: FleetView, orders: OrderAdmin, overdue: Callable[[], int]) -> None:
        self._fleet, self._orders, self._overdue = fleet, orders, overdue
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._counts: Counts = {}
        self.parts = (
            Part(
                "nav",
                "nav.html",
                self._read,
                takes=("here",),
                # Without the database the navigation is there, and shows no counts.
                otherwise=lambda viewer: {
                    "nav_here": viewer.values.get("here", ""),
                    "nav_counts": {},
                },
            ),
        )

    def _read(self, viewer: Viewer) -> Mapping[str, Any]:
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH:
                self._counts = self._now()
                self._read_at = time.monotonic()
            counts = self._counts
        return {"nav_here": viewer.values.get("here", ""), "nav_counts": counts}

    def _now(self) -> Counts:
        fleet = self._fleet.now()
        counts: Counts = {
            "/merchants": (fleet.in_trouble, "in trouble"),
            "/orders": (self._overdue(), "past their time"),
            "/in-doubt": (self._orders.count(State.IN_DOUBT, MAX_COUNTED), "in doubt"),
            "/dead-letters": (fleet.queues.get("orders.dead"), "dead-lettered"),
        }
        return {path: count for path, count in counts.items() if count[0] != 0}
