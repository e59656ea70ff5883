"""Now: what the gateway does this minute, what is wrong, and the last hour."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import FINAL, State
from pos_gateway.reports.counters import wait_within
from pos_gateway.reports.fleet_view import Fleet, FleetView, Minute, a_minute
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.charts import Series
from pos_gateway.server.page.view import Get, Looking, Nav, Page, Part, View
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import counted, duration

#: Seconds after which a late event is worth a sentence.
_LATE = 10.0
_ENDS = tuple(state.value for state in State if state in FINAL)
#: Slots' and waiting orders' states as operators read them, in this order.
_SLOTS = {"light": "light", "heavy": "heavy", "silent": "silent", "free": "free"}
_OUTCOMES = (Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED)


class Notice(NamedTuple):
    """What is wrong, and its remedy; ``bad`` if orders do not move."""

    says: str
    remedy: str
    bad: bool = False
    #: The page's views that show it, and can mend it: names and paths.
    links: Sequence[tuple[str, str]] = ()


class Now(View):
    """The first page."""

    nav = Nav("Now", "/")

    def __init__(
        self, fleet: FleetView, orders: OrderAdmin, split: Callable[[], Split], clock: Clock
    ) -> None:
        self._fleet = fleet
        self._orders = orders
        self._split = split
        self._clock = clock
        self.routes = (Get("/", self._page),)
        self.parts = (
            Part("now", "now_figures.html", self._figures),
            Part("hour", "now_hour.html", self._hour, every=5.0),
        )

    def _page(self, _visit: Visit) -> Page:
        return Page("now.html", "Now", parts=("now", "hour"))

    def _figures(self, _looking: Looking) -> Mapping[str, Any]:
        fleet, minute = self._fleet.now(), a_minute(self._fleet.history(2))
        in_doubt = self._orders.count(State.IN_DOUBT)
        queued = {
            name: fleet.queues[name] for name in ("orders", "orders.canary") if name in fleet.queues
        }
        dead = fleet.queues.get("orders.dead")
        return {
            "now": self._clock.now().timestamp(),
            "fleet": fleet,
            "kinds": [
                f"{count} {kind}{' canary' if canary else ''}"
                for (kind, canary), count in sorted(fleet.kinds.items())
            ],
            "slots": [(name, fleet.slots.get(state, 0)) for state, name in _SLOTS.items()],
            "taken": minute["taken"],
            "ended": sum(minute[each] for each in _ENDS),
            "failed": minute["failed"] + minute["expired"],
            "p50": wait_within(minute, 0.5),
            "p99": wait_within(minute, 0.99),
            "waiting": sum(fleet.waiting.values()),
            "queued": sum(queued.values()) if queued else None,
            "in_doubt": in_doubt,
            "dead": dead,
            "split": self._split(),
            "notices": _notices(fleet, in_doubt, dead),
        }

    def _hour(self, _looking: Looking) -> Mapping[str, Any]:
        history = self._fleet.history()
        # The present minute is not over: its columns would look like an outage.
        over = history[:-1]
        return {
            "at": [minute.at for minute in over],
            "ends": [_series(over, kind.value) for kind in _OUTCOMES],
            "taken": Series("came in", "c-taken", [minute.counts["taken"] for minute in over]),
            "waits": [
                Series(name, kind, [wait_within(minute.counts, part) for minute in over])
                for name, kind, part in (("p50", "c-p50", 0.5), ("p99", "c-p99", 0.99))
            ],
        }


def _series(minutes: list[Minute], kind: str) -> Series:
    return Series(kind, f"c-{kind}", [minute.counts[kind] for minute in minutes])


def _notices(fleet: Fleet, in_doubt: int, dead: int | None) -> list[Notice]:
    found = []
    if not fleet.workers:
        found.append(
            Notice(
                "No worker reports: no order is delivered, as far as this database says.",
                "Start one: celery -A pos_gateway.gcelery worker. If one runs, compare its "
                "POS_GATEWAY_DATABASE_URL with this server's: pos-gateway settings.",
                bad=True,
            )
        )
    if fleet.lost:
        last = duration(min(fleet.lost.values()))
        found.append(
            Notice(
                f"{counted(len(fleet.lost), 'worker')} stopped reporting without a goodbye, the last one {last} ago.",
                "Look whether it was killed, or is cut off from the database; its orders are taken over.",
            )
        )
    if fleet.events_age is not None and fleet.events_age > _LATE:
        found.append(
            Notice(
                f"Events are {duration(fleet.events_age)} late.",
                "See docs/runbook.md: the broker or the database is slow, or a consumer is not keeping up.",
            )
        )
    if fleet.in_trouble:
        are = "is" if fleet.in_trouble == 1 else "are"
        found.append(
            Notice(
                f"{counted(fleet.in_trouble, 'merchant')} {are} in trouble: {counted(fleet.parked, 'order')} parked.",
                "Pause the worst ones, or lower their limits. On the command line: pos-gateway merchants slow.",
                links=[("Which, and why", "/merchants")],
            )
        )
    if in_doubt:
        found.append(
            Notice(
                f"{counted(in_doubt, 'order')} in doubt: the POS may have {'it' if in_doubt == 1 else 'them'}.",
                "Most are looked up and resolved by themselves; for one that stays, ask its merchant, and resolve "
                "it. On the command line: pos-gateway orders resolve.",
                links=[("Work list", "/in-doubt"), ("Each order", "/orders?state=in_doubt")],
            )
        )
    if dead:
        found.append(
            Notice(
                f"{counted(dead, 'dead letter')}: invalid or undeliverable.",
                "Remove the cause, then replay or discard them. On the command line: pos-gateway dlq list.",
                links=[("Why, and what to do", "/dead-letters")],
            )
        )
    return found
