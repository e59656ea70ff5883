"""One merchant: its state, its hour, its orders, its record without a secret, and what operators did."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pos_gateway.administration.merchant_view import MerchantNow, MerchantViews
from pos_gateway.audit.log import AuditLine
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.domain.masking import MASK
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import FINAL, State
from pos_gateway.merchants.masked import Document
from pos_gateway.reports.merchant_hour import REPLIES, MerchantMinute
from pos_gateway.reports.words import paused
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.charts import Series
from pos_gateway.server.page.heat_map import Range
from pos_gateway.server.page.view import Get, Page, Part, View, Viewer
from pos_gateway.server.page.views.merchant_remedies import remedy
from pos_gateway.server.page.views.order_life import shown_reason
from pos_gateway.server.page.views.order_words import STATES
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.page.words import counted, seconds
from pos_gateway.settings import Settings
from pos_gateway.tokens.token import Capability, Role

#: Outcomes of attempts in the order in which they are stacked; a later release may have others.
_OUTCOMES = (
    *(Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED, Kind.PENDING, Kind.RETRY),
    *(Kind.IN_DOUBT, Kind.EXPIRED, Kind.FAILED),
)
#: Orders that have not ended come first, those in doubt before all.
_STATES = sorted(State, key=lambda each: (each is not State.IN_DOUBT, each in FINAL))


class MerchantPage(View):
    """``/merchants/{merchant_id}``."""

    def __init__(self, about: MerchantViews, settings: Settings, clock: Clock) -> None:
        self._about, self._settings, self._clock = about, settings, clock
        self.routes = (Get("/merchants/{merchant_id}", self._page),)
        self.parts = (
            Part("merchant", "merchant_now.html", self._now, takes=("merchant_id",)),
            Part("work", "merchant_work.html", self._work, takes=("merchant_id",), every=5.0),
        )

    def _page(self, visit: Visit) -> Page:
        merchant_id = visit.values["merchant_id"]
        try:
            file = self._about.file(merchant_id)
        except UnknownMerchant:
            now = self._about.now(merchant_id, reveal=visit.role.allows(Capability.REVEAL))
            says = now.trouble.words if now.trouble else "no merchant has this id"
            return Page(
                "merchant_unknown.html",
                merchant_id,
                status=404,
                merchant_id=merchant_id,
                says=says,
                is_known_id=identifier(merchant_id) is not None,
            )
        return Page(
            "merchant.html",
            merchant_id,
            parts=("merchant", "work"),
            merchant_id=merchant_id,
            file=file,
            audit=[_shown(each, visit.role) for each in reversed(file.audit)],
            fields=list(shown_fields(file.fields, self._settings)),
            now=self._clock.now().timestamp(),
        )

    def _now(self, viewer: Viewer) -> Mapping[str, Any]:
        merchant_id = viewer.values["merchant_id"]
        now = self._about.now(merchant_id, reveal=viewer.role.allows(Capability.REVEAL))
        return {
            "merchant_id": merchant_id,
            "says": self._in_words(now),
            "remedy": remedy(None if now.trouble is None else now.trouble.trouble, now.record),
            "is_well": now.trouble is None and now.workers and not now.record.paused,
            "merchant": now,
            "breakers": _breakers(now),
            "may_act": viewer.role.allows(Capability.ACT),
        }

    def _work(self, viewer: Viewer) -> Mapping[str, Any]:
        merchant_id = viewer.values["merchant_id"]
        work = self._about.work(merchant_id)
        counts = {each.state: each for each in work.counts}
        minutes = work.hour.minutes
        ranges = _ranges(minutes)
        return {
            "merchant_id": merchant_id,
            "orders": [(each, counts[each]) for each in _STATES if each in counts],
            "states": STATES,
            "last": [
                (each, shown_reason(viewer.role, each.state, each.reason_code, None))
                for each in work.last
            ],
            "at": [each.at for each in minutes],
            "outcomes": _outcomes(minutes),
            "breaker": _breaker(minutes),
            "limits": _limits(minutes),
            "ranges": ranges,
            "rows": [
                (each.at, sum(each.replies), each.replies)
                for each in reversed(minutes)
                if any(each.replies)
            ],
            "is_cut": work.hour.is_cut,
            "now": self._clock.now().timestamp(),
        }

    def _in_words(self, now: MerchantNow) -> str:
        if now.trouble is not None:
            return now.trouble.words
        pause = paused(now.record, self._clock.now()) if now.record.paused else ""
        if not now.workers:
            return (pause and f"{pause}; ") + "no green worker reports: how it does is not known"
        if pause:
            return f"{pause}: no worker has an order of it"
        reports = "reports" if now.workers == 1 else "report"
        return f"in no trouble that a worker sees: {counted(now.workers, 'worker')} {reports}"


def shown_fields(fields: Document, settings: Settings) -> Sequence[tuple[str, str]]:
    """Every field of the record and its value, in words where it has none."""
    default = {
        "max_concurrency": f"not set: {settings.merchant_concurrency}, as for every merchant",
        "request_timeout": f"not set: {settings.request_timeout:g} s, as for every merchant",
        "provider": "none: it stands alone",
    }
    names = ("provider", "adapter", "base_url", "max_concurrency", "request_timeout")
    shown = [(name, str(fields.get(name, default.get(name, "")))) for name in names]
    return [*shown, *_flat("pos", fields.get("pos", {})), *_flat("auth", fields["auth"])]


def _shown(line: AuditLine, role: Role) -> AuditLine:
    """An operator's words may name a customer: they are for those who may reveal one."""
    if role.allows(Capability.REVEAL):
        return line
    masked = replace(line, reason=line.reason and MASK)
    return replace(masked, details=MASK) if line.order_id else masked


def _flat(prefix: str, fields: Document) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, each in fields.items():
        path = f"{prefix}.{name}"
        found += _flat(path, each) if isinstance(each, dict) else [(path, str(each))]
    return found


def _breakers(now: MerchantNow) -> str:
    """``open on 3 workers, closed on 1 worker``."""
    if now.trouble is None:
        return ""
    seen = now.trouble.trouble.breakers
    return ", ".join(
        f"{state.replace('_', '-')} on {counted(count, 'worker')}" for state, count in seen.items()
    )


def _outcomes(minutes: Sequence[MerchantMinute]) -> Sequence[Series]:
    """Those that came, a class of the style sheet for each."""
    total: Counter[str] = Counter()
    for each in minutes:
        total.update(each.outcomes)
    series = [
        Series(kind.replace("_", " "), f"c-{kind}", [each.outcomes[kind] for each in minutes])
        for kind in (each.value for each in _OUTCOMES)
        if total[kind]
    ]
    others = [each for each in total if each not in {kind.value for kind in _OUTCOMES}]
    if others:
        sums = [float(sum(each.outcomes[kind] for kind in others)) for each in minutes]
        series.append(Series("other", "c-other", sums))
    return series


def _breaker(minutes: Sequence[MerchantMinute]) -> Sequence[Series]:
    """Seconds of each minute in which it was not closed; none: it was closed all the time."""
    opened = [each.trouble.open if each.trouble else 0.0 for each in minutes]
    half_open = [each.trouble.half_open if each.trouble else 0.0 for each in minutes]
    if not any(opened) and not any(half_open):
        return ()
    return Series("open", "c-open", opened), Series("half-open", "c-half-open", half_open)


def _limits(minutes: Sequence[MerchantMinute]) -> Sequence[Series]:
    """The limit where workers reported it, beside its own; none: nowhere."""
    if not any(each.trouble and each.trouble.limit for each in minutes):
        return ()
    forced = [(each.trouble and each.trouble.limit) or None for each in minutes]
    agreed = [(each.trouble and each.trouble.agreed) or None for each in minutes]
    return Series("lowest on a worker", "c-limit", forced), Series("its own", "c-agreed", agreed)


def _ranges(minutes: Sequence[MerchantMinute]) -> Sequence[Range]:
    names = [f"≤ {seconds(bound)}" for bound in REPLIES] + [f"> {seconds(REPLIES[-1])}"]
    return [
        Range(name, [each.replies[number] for each in minutes]) for number, name in enumerate(names)
    ]
