"""The fleet's permits, in Redis: a script, with a single round trip per sync.

Redis Cluster is not supported: the script uses the keys of all pods.
"""

import platform
import uuid
from importlib import resources
from typing import Any

from pos_gateway.cache.redis_client import redis_client
from pos_gateway.domain.errors import FleetUnavailable
from pos_gateway.fleet.reply import encode, read_reply
from pos_gateway.fleet.sync import Answer, Report
from pos_gateway.fleet.timing import SyncTiming

#: Seconds for connecting and for each answer. Also the longest wait of a merchant's first orders
#: while Redis is away.
TIMEOUT = 0.5
PREFIX = "pos_gateway:fleet:"


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
            FleetUnavailable: Redis is not reached in time, refuses, or answers nonsense.
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
            arguments += encode(ask.merchant_id), ask.permits, ask.in_flight, ask.wanted, ask.limit
        for merchant_id, seconds in report.openings.items():
            arguments += encode(merchant_id), max(1, _milliseconds(seconds))
        arguments += map(encode, report.closings)
        return arguments


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
