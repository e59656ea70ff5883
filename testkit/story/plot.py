"""The story's merchants, and what happened to each order in the last hour. Pure and deterministic."""

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import Any

from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason

#: Seconds of the story, until now.
LASTS = 3600.0
#: Fewest merchants and orders that have every part of it.
LEAST_MERCHANTS, LEAST_ORDERS = 10, 200
_MINUTE = 60.0

_KITCHENS = (
    "pizza",
    "sushi",
    "ramen",
    "burger",
    "curry",
    "bakery",
    "salad",
    "noodle",
    "taco",
    "deli",
)
_PLACES = ("north", "harbour", "station", "market", "old-town", "park", "bridge", "hill")
_PROVIDERS = ("tillworks", "orderline", "kassa", "mealport", None)
_MENU = (
    ("Margherita", 950),
    ("Miso soup", 480),
    ("Salmon roll", 720),
    ("Cheeseburger", 890),
    ("Green curry", 1150),
    ("Sourdough loaf", 560),
    ("Caesar salad", 980),
    ("Lemonade", 350),
)
_NAMES = ("A. Berg", "C. Okafor", "D. Lindqvist", "E. Moreau", "F. Haddad", "G. Tanaka")


class Part(StrEnum):
    """What a merchant does in the story."""

    HEALTHY = "answers within half a second"
    SLOW = "has taken 7 to 10 s for the last 25 minutes"
    DEAD = "has not been reached for 40 minutes"
    DOUBTFUL = "has broken off after each order for 15 minutes"
    LOCKED_OUT = "has forbidden our orders for 30 minutes"
    PAUSED = "was paused 10 minutes ago"


#: Of each hundred orders; the rest are the healthy merchants'.
_SHARE = {Part.SLOW: 5, Part.DEAD: 4, Part.DOUBTFUL: 3, Part.LOCKED_OUT: 2, Part.PAUSED: 1}
#: For how many minutes each has been as it is.
SINCE = {Part.SLOW: 25, Part.DEAD: 40, Part.DOUBTFUL: 15, Part.LOCKED_OUT: 30, Part.PAUSED: 10}


@dataclass(slots=True)
class Call:
    """One attempt that has ended."""

    #: When it ended (Unix time).
    at: float
    seconds: float
    outcome: Outcome
    came: int | str


@dataclass(slots=True)
class Told:
    """One order, and what happened to it."""

    order: Order
    placed_at: float
    part: Part
    calls: list[Call] = field(default_factory=list)
    #: An attempt is in flight.
    in_flight: bool = False
    #: The merchant has cancelled it, as it was asked to.
    cancelled: bool = False


@dataclass(frozen=True)
class Plot:
    """The whole story."""

    now: float
    merchants: Sequence[Merchant]
    #: The merchant with each part but the healthy one's.
    cast: dict[Part, Merchant]
    orders: Sequence[Told]


def plot(now: float, merchants: int, orders: int, seed: int = 30) -> Plot:
    """The story that ends now. Raises ValueError for one that is too small for all of its parts."""
    if merchants < LEAST_MERCHANTS or orders < LEAST_ORDERS:
        raise ValueError(
            f"a story has {LEAST_MERCHANTS} merchants and {LEAST_ORDERS} orders at least, "
            f"not {merchants} and {orders}"
        )
    chance = Random(seed)
    everyone = [_merchant(number) for number in range(1, merchants + 1)]
    cast = dict(zip(_SHARE, everyone, strict=False))
    cast[Part.PAUSED] = everyone[4] = cast[Part.PAUSED].model_copy(update={"paused": True})
    healthy = everyone[len(cast) :]
    # A few merchants have most of the orders, as everywhere.
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(healthy))))
    told = []
    for number, placed_at in enumerate(_times(chance, now, orders), 1):
        part = _part_of(number)
        if part is Part.HEALTHY:
            merchant = healthy[
                min(bisect(weights, chance.random() * weights[-1]), len(healthy) - 1)
            ]
        else:
            merchant = cast[part]
        told.append(_told(chance, now, number, placed_at, part, merchant))
    return Plot(now, everyone, cast, told)


def _part_of(number: int) -> Part:
    """Spread evenly: each part has its share in any hundred orders."""
    place = number * 37 % 100
    for part, share in _SHARE.items():
        if place < share:
            return part
        place -= share
    return Part.HEALTHY


def _times(chance: Random, now: float, orders: int) -> Iterator[float]:
    """When the orders were placed, ascending: twice as many at the end of the hour."""
    for number in range(orders):
        even = (number + chance.random()) / orders
        # The inverse of what a rate that doubles adds up to.
        yield now - LASTS + LASTS * ((1 + 3 * even) ** 0.5 - 1)


def _merchant(number: int) -> Merchant:
    kitchen = _KITCHENS[number % len(_KITCHENS)]
    place = _PLACES[number // len(_KITCHENS) % len(_PLACES)]
    merchant_id = f"{kitchen}-{place}-{number:03}"
    fields: dict[str, Any] = {
        "id": merchant_id,
        "base_url": f"https://{merchant_id}.pos.example.com/api",
        "max_concurrency": 10 if number % 7 else 4,
        "paused": False,
    }
    if provider := _PROVIDERS[number % len(_PROVIDERS)]:
        fields |= {
            "provider": provider,
            "base_url": f"https://{provider}.example.com/{merchant_id}",
        }
    return Merchant.parse(fields)


def _told(
    chance: Random, now: float, number: int, placed_at: float, part: Part, merchant: Merchant
) -> Told:
    # An order that is open now has twenty minutes left: none is past its time while a test looks.
    is_over = part is Part.DEAD and placed_at < now - 20 * _MINUTE
    order = _order(chance, number, placed_at, merchant.id, 20 if is_over else 45)
    told = Told(order, placed_at, part)
    is_so_by_now = part is not Part.HEALTHY and placed_at >= now - SINCE[part] * _MINUTE
    tell = _TELLING[part] if is_so_by_now else _healthy
    tell(told, chance, now, number)
    # An attempt that would end in the future is in flight.
    while told.calls and told.calls[-1].at > now:
        last = told.calls.pop()
        told.in_flight = last.at - last.seconds <= now
    told.cancelled = told.cancelled and not told.in_flight and bool(told.calls)
    return told


def _healthy(told: Told, chance: Random, now: float, number: int) -> None:
    seconds = min(4.0, chance.lognormvariate(-1.6, 0.5))
    begins = told.placed_at + chance.uniform(0.004, 0.08)
    kind = number % 50
    if kind == 7:
        code, words = (
            ("item_unavailable", "Miso soup is sold out until tomorrow"),
            ("store_closed", "The kitchen closes at 14:30"),
        )[number % 100 // 50]
        _call(told, begins, seconds, Kind.REJECTED, 422, Reason(code, words))
        return
    if kind == 19:
        too_many = Reason("http_429", "the POS answered 429")
        _call(told, begins, 0.05, Kind.RETRY, 429, too_many, contact=CallResult.OVERLOADED)
        begins += 3.0
    if kind == 31:
        _call(told, begins, seconds, Kind.PENDING, 202, external_id=f"P-{number}")
        begins += 25.0
    _call(told, begins, seconds, Kind.ACCEPTED, 201, external_id=f"P-{number}")
    told.cancelled = number % 200 == 43


def _slow(told: Told, chance: Random, now: float, number: int) -> None:
    is_recent = now - told.placed_at < 5 * _MINUTE
    if is_recent and number % 3:
        return  # it waits in a worker, which has not claimed it
    begins = told.placed_at + chance.uniform(5.0, 40.0)
    if is_recent or number % 4 == 0:
        _timed_out(told, begins)
        begins += 300.0 if is_recent else 20.0
    _call(told, begins, chance.uniform(7.0, 9.9), Kind.ACCEPTED, 201, external_id=f"P-{number}")


def _dead(told: Told, chance: Random, now: float, number: int) -> None:
    unreached = Reason("connect", "connecting timed out after 5 s")
    begins, until = told.placed_at + 0.1, told.order.deliver_by.timestamp()
    for pause in (4.0, 15.0, 60.0, 300.0):
        _call(told, begins, 5.0, Kind.RETRY, "timeout", unreached, contact=CallResult.TIMED_OUT)
        begins += 5.0 + pause
    if until < now:
        late = Reason("expired", "connecting timed out until deliver_by")
        told.calls.append(Call(until, 0.0, Outcome(Kind.EXPIRED, late), "timeout"))


def _doubtful(told: Told, chance: Random, now: float, number: int) -> None:
    seconds = chance.uniform(0.2, 1.5)
    cut = Reason("broken_off", "the connection broke off after the order was sent")
    _call(
        told,
        told.placed_at + 0.1,
        seconds,
        Kind.IN_DOUBT,
        "broken_off",
        cut,
        contact=CallResult.FAILED,
        for_operator=True,
    )


def _locked_out(told: Told, chance: Random, now: float, number: int) -> None:
    refused = Reason("http_403", "the POS answered 403")
    _call(told, told.placed_at + 0.1, chance.uniform(0.05, 0.2), Kind.FAILED, 403, refused)


def _paused(told: Told, chance: Random, now: float, number: int) -> None:
    """It is parked, and no worker calls its merchant."""


_TELLING = {
    Part.SLOW: _slow,
    Part.DEAD: _dead,
    Part.DOUBTFUL: _doubtful,
    Part.LOCKED_OUT: _locked_out,
    Part.PAUSED: _paused,
}


def _timed_out(told: Told, begins: float) -> None:
    reason = Reason("timeout", "no reply within 10 s")
    _call(told, begins, 10.0, Kind.IN_DOUBT, "timeout", reason, contact=CallResult.TIMED_OUT)


def _call(
    told: Told,
    begins: float,
    seconds: float,
    kind: Kind,
    came: int | str,
    reason: Reason | None = None,
    **fields: Any,
) -> None:
    fields.setdefault("contact", CallResult.ANSWERED)
    told.calls.append(Call(begins + seconds, seconds, Outcome(kind, reason, **fields), came))


def _order(chance: Random, number: int, placed_at: float, merchant_id: str, minutes: int) -> Order:
    placed = datetime.fromtimestamp(round(placed_at, 3), UTC)
    items, total = [], 0
    for place in range(1 + number % 3):
        name, price = _MENU[(number * 5 + place * 3) % len(_MENU)]
        quantity = 1 + (number + place) % 2
        items.append({"sku": f"s{place}", "name": name, "quantity": quantity, "unit_price": price})
        total += quantity * price
    record: dict[str, Any] = {
        "order_id": f"o-{number:06}",
        "merchant_id": merchant_id,
        "placed_at": placed.isoformat(),
        "deliver_by": (placed + timedelta(minutes=minutes)).isoformat(),
        "currency": "EUR",
        "items": items,
        "total": total,
        "fulfillment": "pickup" if number % 2 else "delivery",
        "customer": {
            "name": _NAMES[number % len(_NAMES)],
            "phone": f"+49 30 555 {chance.randrange(10_000):04}",
        },
    }
    if number % 5 == 0:
        record["notes"] = "no onions, and ring twice"
    return Order.parse(record)
