"""Requests that wait until something has happened, so that no client needs to poll or sleep."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pos_gateway.simulated_merchants.connection import Exchange
from pos_gateway.simulated_merchants.records import Counts, Records
from pos_gateway.simulated_merchants.replies import json_reply

_COUNTED = frozenset({"requests", "creates", "lookups", "cancels", "in_flight"})
_DEFAULT_TIMEOUT = 10.0


@dataclass(slots=True)
class Watch:
    """What one client waits for."""

    exchange: Exchange
    merchant: str | None
    at_least: dict[str, int]
    idle: bool
    timer: asyncio.TimerHandle | None = None

    def counts(self, records: Records) -> Counts:
        """The counts that are watched."""
        if self.merchant is None:
            return records.totals
        merchant = records.merchants.get(self.merchant)
        return merchant.counts if merchant else Counts()

    def is_met(self, records: Records) -> bool:
        """Whether all that is waited for has come true."""
        counts = self.counts(records)
        if self.idle and counts.in_flight:
            return False
        return all(getattr(counts, name) >= number for name, number in self.at_least.items())


class Watches:
    """Those who wait. They are looked at when something changes, and cost nothing before."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._open: list[Watch] = []

    def wait(self, exchange: Exchange, query: Mapping[str, str]) -> dict[str, Any] | None:
        """The answer if it can be given at once; else None, and it is given in time."""
        if unknown := query.keys() - _COUNTED - {"merchant", "timeout", "idle"}:
            raise ValueError(f"wait: unknown {', '.join(unknown)}; known: {', '.join(_COUNTED)}")
        at_least = {name: int(query[name]) for name in _COUNTED & query.keys()}
        timeout = float(query.get("timeout", _DEFAULT_TIMEOUT))
        watch = Watch(exchange, query.get("merchant"), at_least, query.get("idle") == "1")
        if watch.is_met(self._records):
            return self._answer(watch, reached=True)
        watch.timer = asyncio.get_running_loop().call_later(timeout, self._give_up, watch)
        exchange.on_gone = lambda: self._remove(watch)
        self._open.append(watch)
        self._records.on_change = self._look
        return None

    def end(self) -> None:
        """Tell every waiting caller that its condition will not come true."""
        for watch in list(self._open):
            self._give_up(watch)

    def _look(self) -> None:
        for watch in [each for each in self._open if each.is_met(self._records)]:
            self._remove(watch)
            watch.exchange.answer(json_reply(200, self._answer(watch, reached=True)))

    def _give_up(self, watch: Watch) -> None:
        self._remove(watch)
        watch.exchange.answer(json_reply(200, self._answer(watch, reached=False)))

    def _remove(self, watch: Watch) -> None:
        if watch.timer is not None:
            watch.timer.cancel()
        self._open.remove(watch)
        if not self._open:
            self._records.on_change = None

    def _answer(self, watch: Watch, *, reached: bool) -> dict[str, Any]:
        return {"reached": reached, **watch.counts(self._records).as_json()}
