"""The fleet's permits, in Redis: a script, with a single round trip per sync.

Redis Cluster is not supported: the script uses the keys of all pods.
"""

import platform
import uuid
from collections.abc import Sequence
from importlib import resources
from typing import Any, NoReturn, TypeGuard

from pos_gateway.cache.redis_client import redis_client
from pos_gateway.domain.errors import FleetUnavailable
from pos_gateway.fleet.sync import MAX_PERMITS, Answer, Ask, Grant, Report, SyncTiming

#: Seconds for connecting and for each answer. Also the longest wait of a merchant's first orders
#: while Redis is away.
TIMEOUT = 0.5
PREFIX = "pos_gateway:fleet:"
#: The longest valid duration: a year, in milliseconds.
_LONGEST = 366 * 24 * 3600 * 1000
#: Maximum milliseconds that a breaker is open, whatever Redis says: twice a worker's maximum. The
#: breaker stays open here for as long, even if Redis forgets.
_LONGEST_OPEN = 60_000


class RedisPermits:
    """A pod's side. The client is made once; after a failure the next sync connects again.

    For a single (green) thread, the coordinator's. The constructor does no I/O.

    Raises:
        InvalidSettings: the package ``redis`` is not installed, or the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        timing: SyncTiming | None = None,
        prefix: str = PREFIX,
        pod: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._client, self._failures = redis_client(url, timeout)
        #: Names this run of this pod: permits under another name have another holder.
        self.pod = pod or f"{platform.node()[:64]}:{uuid.uuid4().hex}"
        self._timing = timing or SyncTiming()
        self._prefix = prefix
        source = resources.files("pos_gateway.fleet").joinpath("share.lua").read_text("utf-8")
        self._share = self._client.register_script(source)
        own = (f"pod:{self.pod}", f"note:{self.pod}")
        self._keys = [
            prefix + name
            for name in ("pods", "settling", "known", *own, "breaker", "news", "leases")
        ]
        self._sequence = 0
        #: The last answered sync; 0: no answer since the last report with ``anew``.
        self._acknowledged = 0
        #: The sync at which Redis began its record of this pod.
        self._made_at = 0
        #: Number of the last news of breakers received.
        self._heard = "0"

    def sync(self, report: Report) -> Answer:
        """Send the report, with at most ``MAX_ASKS`` asks, and return the answer.

        Raises:
            FleetUnavailable: Redis is not reached in time, refuses, or answers nonsense; Redis may or may
                not have received the report.
        """
        if report.anew:
            self._acknowledged, self._heard = 0, "0"
        # Never used again, even after a failure: Redis may receive this sync after the next.
        self._sequence += 1
        try:
            reply = self._share(keys=self._keys, args=self._arguments(report))
        except self._failures as error:
            self.close()
            raise FleetUnavailable(f"{type(error).__name__}: {error}"[:200]) from error
        try:
            answer, self._made_at, self._heard = read_reply(reply, self._sequence, report.asks)
        except FleetUnavailable:
            self.close()  # the rest of the reply may still arrive
            raise
        self._acknowledged = self._sequence
        return answer

    def close(self) -> None:
        """Close the connection. Idempotent; ``sync`` makes a new one."""
        self._client.connection_pool.disconnect()

    def _arguments(self, report: Report) -> list[Any]:
        timing = self._timing
        arguments: list[Any] = [
            *(self._prefix, self.pod, self._sequence, self._acknowledged),
            *map(_milliseconds, (timing.lease, timing.turn, timing.settle)),
            *(self._heard, int(report.leaving)),
            *map(len, (report.asks, report.openings, report.closings)),
            self._made_at,
        ]
        for ask in report.asks:
            arguments += _encode(ask.merchant_id), ask.permits, ask.in_flight, ask.wanted, ask.limit
        for merchant_id, seconds in report.openings.items():
            arguments += _encode(merchant_id), max(1, _milliseconds(seconds))
        arguments += map(_encode, report.closings)
        return arguments


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def read_reply(reply: Any, sequence: int, asks: Sequence[Ask]) -> tuple[Answer, int, str]:
    """The answer to these asks, the sync that began the pod's record, and the last news' number.

    Raises:
        FleetUnavailable: the reply is invalid.
    """
    if not (isinstance(reply, list) and len(reply) == 10):
        _refuse("is no list of ten", reply)
    mark, number, made_at, settling, forgotten, pods, heard, grants, notes, news = reply
    if mark != b"fleet" or not _is_count(number) or number != sequence:
        _refuse("is no answer to this sync", reply[:2])
    if not _is_count(made_at, sequence):
        _refuse("has no beginning", made_at)
    if not (_is_count(settling, _LONGEST) and _is_count(forgotten, 1) and _is_count(pods)):
        _refuse("has no state", reply[3:6])
    if not (isinstance(heard, bytes) and heard.isdigit() and len(heard) <= 16):
        _refuse("has no number of its news", heard)
    opened, closed = _news(news)
    answer = Answer(
        grants=_grants(grants, asks),
        contended=_merchants(notes),
        opened=opened,
        closed=closed,
        settling=settling / 1000,
        forgotten=bool(forgotten),
        pods=pods,
    )
    return answer, made_at, heard.decode("ascii")


def _encode(merchant_id: str) -> bytes:
    """A merchant's id as bytes for Redis, for any text in a message."""
    return merchant_id.encode("utf-8", "surrogatepass")


def _grants(values: Any, asks: Sequence[Ask]) -> list[Grant]:
    if not (isinstance(values, list) and len(values) == 3 * len(asks)):
        _refuse("has not three values for each ask", values)
    return [_grant(ask, values[3 * i : 3 * i + 3]) for i, ask in enumerate(asks)]


def _grant(ask: Ask, values: list[Any]) -> Grant:
    permits, target, contended = values
    if not (_is_count(permits) and _is_count(target) and _is_count(contended, 1)):
        _refuse("has a grant that is none", values)
    # Above the wanted permits a grant could exceed the limit; below, Redis would take permits back.
    most = max(ask.permits, min(ask.wanted, ask.limit))
    if not ask.permits <= permits <= most or target > most:
        _refuse("grants what was not asked", values)
    return Grant(permits, target, bool(contended))


def _merchants(values: Any) -> list[str]:
    if not isinstance(values, list):
        _refuse("has no merchants", values)
    return [_merchant(value) for value in values]


def _merchant(value: Any) -> str:
    if not isinstance(value, bytes):
        _refuse("has a merchant that is none", value)
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        _refuse("has a merchant that is none", value)


def _news(values: Any) -> tuple[dict[str, float], list[str]]:
    if not isinstance(values, list) or len(values) % 2:
        _refuse("has no news", values)
    opened: dict[str, float] = {}
    closed: list[str] = []
    for merchant, milliseconds in zip(values[::2], values[1::2], strict=True):
        if not _is_count(milliseconds, _LONGEST):
            _refuse("has a breaker without a duration", milliseconds)
        if milliseconds:
            opened[_merchant(merchant)] = min(milliseconds, _LONGEST_OPEN) / 1000
        else:
            closed.append(_merchant(merchant))
    return opened, closed


def _is_count(value: Any, most: int = MAX_PERMITS) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _refuse(problem: str, value: Any) -> NoReturn:
    shown = repr(value)
    raise FleetUnavailable(f"Redis's reply {problem}: {shown[:80]}")
