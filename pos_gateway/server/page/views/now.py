"""Now: what the gateway does this minute, what is wrong, and the last hour."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pos_gateway.administration.doubts import MAX_COUNTED
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import FINAL, State
from pos_gateway.reports.counters import WAITS, Counters, wait_within
from pos_gateway.reports.fleet_view import Fleet, FleetView, Minute, a_minute
from pos_gateway.reports.words import (
    MORE_CPU,
    START_READING,
    not_delivered,
    outcomes,
    without_cpu,
)
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.charts import Series
from pos_gateway.server.page.view import Get, Nav, Page, Part, View, Viewer
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import at_most_counted, counted, duration, seconds

#: Seconds after which a late event is worth a sentence.
_LATE = 10.0
#: Unread events after which a sentence says so: more than a burst leaves for a moment.
_UNREAD = 10_000
#: Merchants that a sentence names.
_NAMED = 3
_DEAD = "orders.dead"
_ENDS = tuple(state.value for state in State if state in FINAL)
#: Slots by the kind of merchant that holds them, in this order: a name, and what is meant.
_SLOTS = {
    "light": ("light", "merchants that use less than their fair part"),
    "heavy": ("heavy", "merchants that use more"),
    "silent": ("silent", "merchants that do not answer"),
    "free": ("free", "for the next orders"),
}
_OUTCOMES = (Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.EXPIRED, Kind.FAILED)


class FleetNotice(NamedTuple):
    """What is wrong, and its remedy; ``bad`` if orders do not move."""

    says: str
    remedy: str
    bad: bool = False
    #: The page's views that show it, and can mend it: names and paths.
    links: Sequence[tuple[str, str]] = ()


class NowPage(View):
    """The first page."""

    nav = Nav("Now", "/")

    def __init__(
        self,
        fleet: FleetView,
        orders: OrderAdmin,
        overdue: Callable[[], int],
        split: Callable[[], Split],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._orders, self._overdue = orders, overdue
        self._split = split
        self._clock = clock
        self.routes = (Get("/", self._page),)
        self.parts = (
            Part("now", "now_figures.html", self._figures),
            Part("hour", "now_hour.html", self._hour, every=5.0),
        )

    def _page(self, _visit: Visit) -> Page:
        return Page("now.html", "Now", parts=("now", "hour"))

    def _figures(self, _viewer: Viewer) -> Mapping[str, Any]:
        fleet, minute = self._fleet.now(), a_minute(self._fleet.history(2))
        in_doubt, split = self._orders.count(State.IN_DOUBT, MAX_COUNTED + 1), self._split()
        queued = {
            name: fleet.queues[name] for name in ("orders", "orders.canary") if name in fleet.queues
        }
        dead = fleet.queues.get(_DEAD)
        return {
            "now": self._clock.now().timestamp(),
            "fleet": fleet,
            "kinds": [
                f"{count} {kind}{' canary' if canary else ''}"
                for (kind, canary), count in sorted(fleet.kinds.items())
            ],
            "slots": [
                (name, fleet.slots.get(state, 0) if fleet.watching else None, note)
                for state, (name, note) in _SLOTS.items()
            ],
            "taken": minute["taken"],
            "ended": sum(minute[each] for each in _ENDS),
            "failed": minute["failed"] + minute["expired"],
            "p50": _wait(minute, 0.5),
            "p99": _wait(minute, 0.99),
            "waiting": sum(fleet.waiting.values()) if fleet.watching else None,
            "parked": fleet.parked if fleet.watching else None,
            "queued": sum(queued.values()) if queued else None,
            "in_doubt": in_doubt,
            "most": MAX_COUNTED,
            "dead": dead,
            "split": split,
            "notices": [
                *_of_workers(fleet, minute, split),
                *_of_queues(fleet),
                *_of_events(fleet),
                *_of_orders(fleet, in_doubt, dead, self._overdue()),
            ],
        }

    def _hour(self, _viewer: Viewer) -> Mapping[str, Any]:
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


def _wait(counts: Counters, part: float) -> str:
    """A wait as text: longer waits than the last bound are all alike."""
    wait = wait_within(counts, part)
    return f"≥ {seconds(wait)}" if wait is not None and wait >= WAITS[-1] else seconds(wait)


def _series(minutes: list[Minute], kind: str) -> Series:
    return Series(kind, f"c-{kind}", [minute.counts[kind] for minute in minutes])


def _of_workers(fleet: Fleet, minute: Counters, split: Split) -> list[FleetNotice]:
    found = []
    if says := not_delivered(fleet):
        found.append(FleetNotice(f"{says}.", START_READING, bad=True))
    elif not fleet.watching:
        found.append(
            FleetNotice(
                "Synchronous workers alone report: which merchants are slow, and what waits for them, is not known.",
                "A green worker sees both: celery -A pos_gateway.gcelery worker.",
            )
        )
    if fleet.lost:
        last = duration(min(fleet.lost.values()))
        found.append(
            FleetNotice(
                f"{counted(len(fleet.lost), 'worker')} stopped reporting without a goodbye, the last one {last} ago.",
                "Look whether it was killed, or is cut off from the database, and start another one; its orders are "
                "taken over.",
            )
        )
    if short := without_cpu(fleet, minute):
        found.append(FleetNotice(f"{short}.", MORE_CPU))
    has_canary = any(canary for _, canary in fleet.kinds)
    if split.takes_any and fleet.delivering and not has_canary:
        found.append(
            FleetNotice(
                f"The canary has {split}, and no worker of its own reports.",
                "Move all merchants back, or start one: celery -A pos_gateway.gcelery worker -Q orders.canary.",
                links=[("The canary", "/canary")],
            )
        )
    return found


def _of_queues(fleet: Fleet) -> list[FleetNotice]:
    if not fleet.delivering or not fleet.unknown_queues:
        return []
    return [
        FleetNotice(
            "How many orders are queued and dead-lettered is not known: no worker has had an answer of the broker "
            f"about {' and '.join(fleet.unknown_queues)}.",
            "Look whether the workers' login may see the queues: pos-gateway doctor. Beside synchronous workers "
            "pos-gateway events run asks the broker. On the command line: pos-gateway dlq count.",
            links=[("Dead letters, asked now", "/dead-letters")],
        )
    ]


def _of_events(fleet: Fleet) -> list[FleetNotice]:
    found = []
    if fleet.delivering and fleet.events_age is None:
        found.append(
            FleetNotice(
                "No process says that it publishes events: the backend gets none.",
                "Have workers publish (POS_GATEWAY_PUBLISH_EVENTS), or start pos-gateway events run. Nothing is lost: "
                "recorded events are published then, in order.",
                bad=True,
            )
        )
    if fleet.events_age is not None and fleet.events_age > _LATE:
        found.append(
            FleetNotice(
                f"Events are {duration(fleet.events_age)} late.",
                "The broker or the database is away, slow or full: look at both, and at the log of the process that "
                "publishes (events.broker_unavailable, events.refused, events.mistake). Nothing is lost: recorded "
                "events are published when that is over, in order.",
            )
        )
    unread = fleet.queues.get("order-events", 0)
    if unread >= _UNREAD:
        found.append(
            FleetNotice(
                f"{counted(unread, 'event')} in the queue order-events: the backend does not consume them, or too slowly.",
                "Look at the backend's consumer. RabbitMQ keeps them all until it is back.",
            )
        )
    return found


def _of_orders(fleet: Fleet, in_doubt: int, dead: int | None, overdue: int) -> list[FleetNotice]:
    found = []
    if failing := fleet.unreported:
        named = [f"{name}: {outcomes(each)}" for name, each in [*failing.items()][:_NAMED]]
        worst = "; ".join([*named, "…"] if len(failing) > _NAMED else named)
        found.append(
            FleetNotice(
                f"Most orders of {counted(len(failing), 'merchant')} fail. {worst}.",
                "Orders that all fail alike fail for a reason of the merchant: its credentials, its address, its menu "
                "or its hours. Check its POS. On the command line: pos-gateway merchants check ID.",
                links=[("Which, and why", "/merchants")],
            )
        )
    if fleet.reported:
        are = "is" if fleet.reported == 1 else "are"
        found.append(
            FleetNotice(
                f"{counted(fleet.reported, 'merchant')} {are} in trouble: {counted(fleet.parked, 'order')} parked.",
                "Each has its remedy on its page; pause those that stay away. On the command line: pos-gateway merchants slow.",
                links=[("Which, and why", "/merchants")],
            )
        )
    if in_doubt:
        found.append(
            FleetNotice(
                f"{at_most_counted(in_doubt, 'order', MAX_COUNTED)} in doubt: the POS may have {'it' if in_doubt == 1 else 'them'}.",
                "Most are looked up and resolved by themselves; for one that stays, ask its merchant, and resolve "
                "it. On the command line: pos-gateway orders resolve.",
                links=[("Work list", "/in-doubt"), ("Each order", "/orders?state=in_doubt")],
            )
        )
    if overdue:
        are = "is" if overdue == 1 else "are"
        found.append(
            FleetNotice(
                f"{counted(overdue, 'order')} {are} past {'its' if overdue == 1 else 'their'} deliver_by and {'has' if overdue == 1 else 'have'} not ended: no worker gets "
                f"{'its message' if overdue == 1 else 'their messages'}.",
                "Look at each: replay it, if its message is in the dead letters; else have the backend submit it "
                "again, which is harmless.",
                links=[("Which", "/orders?state=overdue")],
            )
        )
    if dead:
        found.append(
            FleetNotice(
                f"{counted(dead, 'dead letter')}: invalid or undeliverable.",
                "Remove the cause, then replay or discard them. On the command line: pos-gateway dlq list.",
                links=[("Why, and what to do", "/dead-letters")],
            )
        )
    return found
