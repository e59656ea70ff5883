"""An order's life as a line in time: what happened when, as a list and as a picture.

What may quote a customer is masked here, by the viewer's role, before a template sees it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from markupsafe import Markup

from pos_gateway.domain.masking import is_in_pos_words, masked_reason
from pos_gateway.domain.outcome import Lifecycle
from pos_gateway.ledger.attempts import ABANDONED, LOOK_UP, SEND, WORKER_LOST, RecordedAttempt
from pos_gateway.ledger.states import Action
from pos_gateway.server.page.words import counted, duration, seconds
from pos_gateway.tokens.token import Capability, Role

#: Width of the pictures' coordinates, and of the narrowest mark.
_WIDTH, _MARK = 1000.0, 5.0
#: Seconds between two entries that are worth a word.
_GAP = 5.0
#: Classes of the style sheet by outcome and by event.
_KINDS = frozenset(
    {"accepted", "rejected", "cancelled", "expired", "failed", "pending", "in_doubt", "retry"}
)
#: An attempt's stages, in order, with their classes.
STAGES = ("waited", "claim", "connect", "first byte", "rest")
_LOST = {
    WORKER_LOST: "its worker was lost",
    ABANDONED: "its green thread was killed",
}
_CALLBACKS = frozenset(f"order.{each.value}" for each in Lifecycle)

_LINE = Markup(
    '<svg class="life" viewBox="0 0 {width:.0f} 40" preserveAspectRatio="none" role="img" '
    'aria-labelledby="life-t life-d"><title id="life-t">The order in time</title>'
    '<desc id="life-d">{says}</desc><path class="grid" d="M0 30H{width:.0f}" '
    'vector-effect="non-scaling-stroke"/>{marks}</svg>'
)
_RECT = Markup(
    '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
)
_BAR = Markup(
    '<svg class="stages" viewBox="0 0 {:.0f} 8" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
)
_STAGE = Markup('<rect class="s-{}" x="{:.1f}" y="0" width="{:.1f}" height="8"/>')


class OrderLifeEntry(NamedTuple):
    """What happened at a moment (Unix time)."""

    at: float
    title: str
    #: A class of the style sheet: an outcome, or ``other``.
    kind: str = "other"
    #: Seconds that it took.
    took: float | None = None
    reason: "ShownReason | None" = None
    #: Pairs of a name and a text.
    details: Sequence[tuple[str, str]] = ()
    #: Its stages, as a picture.
    stages: Markup | None = None
    #: An event's position.
    position: int | None = None


class ShownReason(NamedTuple):
    """A reason, as far as the viewer may see it."""

    code: str
    message: str


def shown_reason(
    role: Role | None, state: str, code: str | None, message: str | None
) -> ShownReason | None:
    """The reason, masked where it may quote a customer.

    A POS's own words are masked for all, and every message for a role that may not reveal. With no
    role it is revealed.
    """
    if not code:
        return None
    if role is None:
        return ShownReason(code, message or "")
    if is_in_pos_words(state, code) or not role.allows(Capability.REVEAL):
        return ShownReason(*masked_reason(state, code))
    return ShownReason(code, message or "")


def attempt_entries(
    attempts: Sequence[RecordedAttempt], action: Action, role: Role | None, longest: float
) -> Iterable[OrderLifeEntry]:
    """The attempts of an order, or of its cancel request."""
    for each in attempts:
        state = each.reason_kind(action)
        lost = _LOST.get(each.reason_code or "")
        yield OrderLifeEntry(
            each.at,
            f"{_did(each, action)}: {lost or each.outcome.replace('_', ' ')}",
            each.outcome if each.outcome in _KINDS else "other",
            each.seconds,
            None if lost else shown_reason(role, state, each.reason_code, each.reason_message),
            _details(each),
            _stages(each, longest),
        )


def total(attempt: RecordedAttempt) -> float:
    """Seconds of all its stages."""
    return (attempt.waited or 0.0) + (attempt.claim or 0.0) + (attempt.seconds or 0.0)


def event_entries(events: Iterable[dict[str, Any]], role: Role | None) -> Iterable[OrderLifeEntry]:
    """The published events."""
    for event in events:
        kind = str(event["type"]).removeprefix("order.")
        reason = event.get("reason") or {}
        said = "The POS says by a callback" if event["type"] in _CALLBACKS else "Event"
        yield OrderLifeEntry(
            event["at"],
            f"{said}: {event['type']}",
            kind if kind in _KINDS else "other",
            reason=shown_reason(role, kind, reason.get("code"), reason.get("message")),
            position=event["position"],
        )


def audit_entries(rows: Iterable[dict[str, Any]], role: Role | None) -> Iterable[OrderLifeEntry]:
    """What operators did; their words are for those who may reveal."""
    may_see = role is None or role.allows(Capability.REVEAL)
    for row in rows:
        said = [(name, row[name]) for name in ("reason", "details") if row.get(name)]
        details = said if may_see else []
        yield OrderLifeEntry(row["at"], f"{row['operator']}: {row['what']}", details=details)


def gaps(entries: Sequence[OrderLifeEntry]) -> list[str | None]:
    """Before each entry: how long nothing had happened, if that is worth a word."""
    found: list[str | None] = [None]
    for before, entry in pairwise(entries):
        gap = entry.at - before.at - (before.took or 0.0)
        found.append(duration(gap) if gap >= _GAP else None)
    return found[: len(entries)]


def picture(entries: Sequence[OrderLifeEntry], deliver_by: float | None, end: float) -> Markup:
    """The entries on a line from the first one to ``end`` (Unix time)."""
    first = entries[0].at
    last = max(end, *(each.at + (each.took or 0.0) for each in entries))
    if deliver_by is not None and first < deliver_by < last + (last - first):
        last = max(last, deliver_by)
    scale = (_WIDTH - 2 * _MARK) / max(last - first, 0.001)

    def x(at: float) -> float:
        return (at - first) * scale

    marks = [
        _RECT.format(
            f"c-{each.kind}",
            x(each.at),
            8 if each.took is not None else 18,
            max(_MARK, (each.took or 0.0) * scale),
            22 if each.took is not None else 12,
            f"+{duration(each.at - first)} {each.title}",
        )
        for each in entries
    ]
    if deliver_by is not None and first <= deliver_by <= last:
        marks.append(_RECT.format("c-deadline", x(deliver_by), 2, _MARK, 36, "deliver_by"))
    says = f"{counted(len(entries), 'entry', 'entries')} in {duration(last - first)}; the list has them."
    return _LINE.format(width=_WIDTH, says=says, marks=Markup("").join(marks))


def _did(attempt: RecordedAttempt, action: Action) -> str:
    of_cancel = action is Action.CANCEL
    if attempt.did == SEND:
        return "Asked the POS to cancel it" if of_cancel else "Sent to the POS"
    if attempt.did == LOOK_UP:
        return "Looked up at the POS"
    return "Cancel request, without a call" if of_cancel else "Without a call to the POS"


def _details(attempt: RecordedAttempt) -> list[tuple[str, str]]:
    stages = [
        (name, seconds(value))
        for name, value in (
            ("waited in the worker", attempt.waited),
            ("claim", attempt.claim),
            ("connect", attempt.connect),
            ("first byte", attempt.first_byte),
            ("whole call", attempt.seconds),
        )
        if value is not None
    ]
    came = [] if attempt.came is None else [("came", str(attempt.came))]
    return [*stages, *came, ("worker", attempt.worker)]


def _stages(attempt: RecordedAttempt, longest: float) -> Markup | None:
    if attempt.seconds is None or longest <= 0:
        return None
    connect = attempt.connect or 0.0
    first_byte = attempt.seconds if attempt.first_byte is None else attempt.first_byte
    lengths = (
        attempt.waited or 0.0,
        attempt.claim or 0.0,
        connect,
        max(0.0, first_byte - connect),
        max(0.0, attempt.seconds - first_byte),
    )
    rects, x = [], 0.0
    for number, length in enumerate(lengths):
        width = length / longest * _WIDTH
        if width > 0:
            rects.append(_STAGE.format(number, x, width))
        x += width
    return _BAR.format(_WIDTH, Markup("").join(rects))
