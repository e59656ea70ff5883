"""One worker's report: what an operator wants to know of it now, as JSON of 16 KiB at most.

It has durations and no times of day: a reader counts back from when the database stored it. A
reader understands reports of earlier and later releases: fields are only added, each with a
default, at the end of ``Trouble``; what is unknown or of another type is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

#: The version of the fields below: raised when one is added.
VERSION = 2
#: Merchants in a report, and bytes of it.
MAX_TROUBLES, LARGEST = 50, 16 * 1024
#: What reports: a green worker, a process of a synchronous one, or one that only publishes events.
GREEN, SYNCHRONOUS, EVENTS = "green", "synchronous", "events"


class Trouble(NamedTuple):
    """A merchant in trouble, as one worker sees it. Times are seconds before the report."""

    merchant_id: str
    #: For how long it has been in trouble.
    since: float = 0.0
    #: ``closed``, ``open`` or ``half_open``; for how long not closed; until it half-opens.
    breaker: str = "closed"
    breaker_for: float = 0.0
    half_opens_in: float = 0.0
    #: A call of its hangs or timed out, or its provider is silent.
    silent: bool = False
    #: Of the last ``calls``, how many timed out, failed otherwise, were refused as too many, or were
    #: late.
    calls: int = 0
    timed_out: int = 0
    failed: int = 0
    overloaded: int = 0
    late: int = 0
    #: The last call's time, and its usual time; None: not known.
    latest: float | None = None
    usual: float | None = None
    #: Its orders in flight, the limit in force in this worker, and those that wait or are parked.
    in_flight: int = 0
    limit: int = 0
    waiting: int = 0
    parked: int = 0
    #: The last failed call's error code, and how long ago it ended.
    error: str | None = None
    error_ago: float = 0.0
    #: The merchant's own limit; 0: it is paused, or not known yet.
    agreed: int = 0
    #: The quota that its next order waits for, as ``QuotaTerms.key`` names it.
    quota: str | None = None

    @property
    def held_up(self) -> int:
        """Its orders that do not move in this worker."""
        return self.waiting + self.parked


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker at one moment."""

    kind: str = GREEN
    #: It takes the canary's orders alone.
    canary: bool = False
    release: str = ""
    #: Seconds since it started.
    uptime: float = 0.0
    #: Slots, and waiting orders, as ``pos_gateway_slots`` and ``pos_gateway_waiting`` have them.
    slots: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    parked: int = 0
    uncommitted: int = 0
    #: How old the oldest unpublished event is; None: this process publishes none.
    events_age: float | None = None
    #: Ready messages by queue, where this worker has asked the broker.
    queues: Mapping[str, int] = field(default_factory=dict)
    #: Consumers of the queue ``orders``, all workers' together; None: this worker has no answer of the broker.
    consumers: int | None = None
    #: Merchants in trouble, of which ``troubles`` has the worst.
    in_trouble: int = 0
    #: It has no CPU left, so that orders of merchants not known to keep up wait for that; and its cores.
    lacks_cpu: bool = False
    cores: float = 1.0
    troubles: Sequence[Trouble] = ()


def encoded(report: WorkerReport) -> str:
    """The report as JSON: with ``MAX_TROUBLES`` merchants at most, and fewer where it would be too large."""
    while True:
        troubles = report.troubles[:MAX_TROUBLES]
        text = to_json({**_plain(report), "troubles": troubles, "version": VERSION})
        if len(text) <= LARGEST or not troubles:
            return text.decode()
        report = replace(report, troubles=troubles[: len(troubles) * LARGEST // len(text)])


def decoded(text: str) -> WorkerReport | None:
    """The report in this JSON, as far as this release understands it; None: it is none."""
    try:
        said = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    known = {name: said[name] for name, kind in _KINDS.items() if isinstance(said.get(name), kind)}
    for name in ("slots", "waiting", "queues"):
        known[name] = {k: v for k, v in known.get(name, {}).items() if isinstance(v, int)}
    rows = known.get("troubles", ())
    is_ours = said.get("version") == VERSION
    known["troubles"] = list(map(Trouble._make, rows)) if is_ours else _understood(rows)
    return WorkerReport(**known)


def _plain(report: WorkerReport) -> dict[str, Any]:
    return {each: getattr(report, each) for each in _KINDS}


_KINDS: dict[str, Any] = {
    "kind": str,
    "canary": bool,
    "release": str,
    "uptime": int | float,
    "slots": dict,
    "waiting": dict,
    "parked": int,
    "uncommitted": int,
    "events_age": int | float,
    "queues": dict,
    "consumers": int,
    "in_trouble": int,
    "lacks_cpu": bool,
    "cores": int | float,
    "troubles": list,
}

_DEFAULTS = Trouble("")
_OPTIONAL = {"latest": int | float, "usual": int | float, "error": str, "quota": str}
_TYPES = [
    _OPTIONAL.get(name, int | float if type(default) is float else type(default))
    for name, default in zip(Trouble._fields, _DEFAULTS, strict=True)
]


def _understood(rows: Sequence[Any]) -> list[Trouble]:
    """Another release's merchants: what this one knows of each, and defaults for the rest."""
    understood = []
    for row in rows:
        if isinstance(row, list) and row and isinstance(row[0], str):
            fields = zip(row, _TYPES, _DEFAULTS, strict=False)
            known: Any = [each if isinstance(each, kind) else usual for each, kind, usual in fields]
            understood.append(Trouble(*known))
    return understood
