"""Which alerts begin, go on and end: decided from their rows and from what was found.

An alert is of one condition and one subject. It begins once the condition has lasted, is sent once, and
ends, with another message, when the condition has been clear for ``HOLD``: one that comes and goes
sends nothing meanwhile. Where a condition holds for more than ``MAX_SUBJECTS`` subjects, the further ones
share one alert with a count.

Times are the database's. A time that is ahead, since that clock was set back, counts from now on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import uuid4

from pos_gateway.alerts.condition import RULES, Condition, Finding, Findings

#: Seconds for which a condition must be clear until its alert ends.
HOLD = 300.0
#: Subjects of a condition with an alert of their own, beside the shared one.
MAX_SUBJECTS = 10
#: The subject of the shared alert.
ALL = "*"
#: Examples that the shared alert names.
_EXAMPLES = 5
#: Seconds until the first and until the last further attempt to send.
FIRST_AGAIN, LAST_AGAIN = 10.0, 900.0
#: Seconds after which the end of an alert is sent no more.
GIVE_UP = 86_400.0


class AlertState(StrEnum):
    """The state of an alert."""

    PENDING = "pending"  # the condition has not lasted yet
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert's row."""

    condition: Condition
    subject: str
    #: Unique: messages' ids are made of it.
    incident: str
    state: AlertState
    since: float
    says: str
    count: int
    #: Since when the condition is clear.
    clear_since: float | None = None
    #: The receiver has the message that it fires, or may have it.
    is_sent: bool = False
    #: Attempts to send the present message, and when the next one is due.
    attempts: int = 0
    next_at: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.condition.value, self.subject

    @property
    def is_active(self) -> bool:
        """Whether its condition holds, as far as its receiver is concerned."""
        return self.state is not AlertState.RESOLVED

    def is_due(self, now: float) -> bool:
        """Whether a message is to be sent now."""
        is_open = (self.state is AlertState.FIRING and not self.is_sent) or (
            self.state is AlertState.RESOLVED
        )
        return is_open and (self.next_at <= now or self.next_at > now + LAST_AGAIN)


def decide(alerts: Sequence[Alert], findings: Findings, now: float) -> list[Alert]:
    """The alerts from now on: those of conditions that were not looked at are as they were."""
    decided = [alert for alert in alerts if alert.condition not in findings]
    for condition, found in findings.items():
        ours = {each.subject: each for each in alerts if each.condition is condition}
        decided += _of_one(condition, ours, _shared(condition, ours, found), now)
    return decided


def again_in(attempts: int) -> float:
    """Seconds until the next attempt after this many."""
    return min(LAST_AGAIN, FIRST_AGAIN * 2.0 ** min(attempts - 1, 10))


def _shared(
    condition: Condition, ours: dict[str, Alert], found: Sequence[Finding]
) -> dict[str, Finding]:
    """The findings by their alert's subject: all beyond those that have one are in the shared alert."""
    by_subject = {each.subject: each for each in found}
    shared = ours.get(ALL)
    is_shared = shared is not None and shared.is_active
    # Half: a number that moves about the limit begins no alert after the other.
    if len(by_subject) <= (MAX_SUBJECTS // 2 if is_shared else MAX_SUBJECTS):
        return by_subject
    alone = {
        name: each for name, each in by_subject.items() if name in ours and ours[name].is_active
    }
    examples = ", ".join([each.subject for each in found[:_EXAMPLES]])
    says = f"{len(by_subject):,} {RULES[condition].plural}: {examples}, …"
    return alone | {ALL: Finding(ALL, says, len(by_subject))}


def _of_one(
    condition: Condition, ours: dict[str, Alert], wanted: dict[str, Finding], now: float
) -> Iterator[Alert]:
    for subject, finding in wanted.items():
        alert = ours.get(subject)
        # The receiver may have the end already: what comes now is another incident.
        if alert is None or (not alert.is_active and alert.attempts):
            alert = Alert(condition, subject, uuid4().hex, AlertState.PENDING, now, finding.says, 0)
        yield _goes_on(alert, finding, now)
    for subject, alert in ours.items():
        if subject not in wanted:
            yield from _is_clear(alert, now)


def _goes_on(alert: Alert, finding: Finding, now: float) -> Alert:
    state = alert.state
    if state is AlertState.RESOLVED:  # its end was not sent
        state = AlertState.FIRING
    if state is AlertState.PENDING and _elapsed(alert.since, now) >= RULES[alert.condition].lasts:
        state = AlertState.FIRING
    return replace(
        alert,
        state=state,
        says=finding.says,
        count=finding.count,
        clear_since=None,
        since=min(alert.since, now),
    )


def _is_clear(alert: Alert, now: float) -> Iterator[Alert]:
    if alert.state is AlertState.PENDING:
        return
    clear_since = now if alert.clear_since is None else min(alert.clear_since, now)
    if alert.state is AlertState.RESOLVED:
        if now - clear_since < GIVE_UP:
            yield replace(alert, clear_since=clear_since)
        return
    if now - clear_since < HOLD:
        yield replace(alert, clear_since=clear_since)
    elif alert.is_sent or alert.attempts:  # the receiver has it, or may have it
        yield replace(
            alert,
            state=AlertState.RESOLVED,
            clear_since=clear_since,
            is_sent=True,
            attempts=0,
            next_at=0.0,
        )


def _elapsed(since: float, now: float) -> float:
    return max(0.0, now - since)
