"""The rules, against what would have them send too much, or nothing. Pure: hours take milliseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from pos_gateway.alerts.condition import Condition, Finding, Findings
from pos_gateway.alerts.rules import (
    ALL,
    GIVE_UP,
    HOLD,
    LAST_AGAIN,
    MAX_SUBJECTS,
    Alert,
    AlertState,
    again_in,
    decide,
)

BREAKER, LATE = Condition.BREAKER_OPEN, Condition.EVENTS_LATE
EVERY = 10.0


class Play:
    """Rounds every ten seconds, and a receiver that takes what is due unless it is down."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.alerts: list[Alert] = []
        self.sent: list[tuple[str, str]] = []
        self.is_down = False
        self.attempts = 0

    def round(self, findings: Findings) -> None:
        self.now += EVERY
        self.alerts = decide(self.alerts, findings, self.now)
        for number, alert in enumerate(self.alerts):
            if not alert.is_due(self.now):
                continue
            self.attempts += 1
            begun = replace(
                alert,
                attempts=alert.attempts + 1,
                next_at=self.now + again_in(alert.attempts + 1),
            )
            if not self.is_down:
                self.sent.append((alert.state, alert.subject))
                begun = replace(begun, is_sent=True, attempts=0, next_at=0.0)
            self.alerts[number] = begun
        if not self.is_down:
            is_over = AlertState.RESOLVED
            self.alerts = [each for each in self.alerts if each.state is not is_over]

    def rounds(self, seconds: float, findings: Findings) -> None:
        for _ in range(int(seconds / EVERY)):
            self.round(findings)

    def states(self) -> list[tuple[str, str]]:
        return [(each.subject, each.state) for each in self.alerts]


def found(*subjects: str, of: Condition = BREAKER) -> Findings:
    return {of: [Finding(each, f"{each} is in trouble") for each in subjects]}


def many(number: int) -> Findings:
    return found(*(f"m{each}" for each in range(number)))


def test_an_alert_is_sent_once_and_its_end_once() -> None:
    play = Play()
    play.rounds(3600, found("m1"))
    assert play.sent == [("firing", "m1")]
    play.rounds(3600, found())
    assert play.sent == [("firing", "m1"), ("resolved", "m1")]
    assert play.alerts == []


def test_one_that_flaps_sends_nothing_meanwhile() -> None:
    play = Play()
    for number in range(360):
        play.round(found("m1") if number % 3 else found())
    assert play.sent == [("firing", "m1")]
    play.rounds(HOLD + EVERY, found())
    assert play.sent[1:] == [("resolved", "m1")]


def test_what_does_not_last_is_no_alert() -> None:
    play = Play()
    for _ in range(20):
        play.rounds(60, found("order-events", of=LATE))
        play.rounds(60, found(of=LATE))
    assert play.sent == [] and play.alerts == []
    play.rounds(180, found("order-events", of=LATE))
    assert play.sent == [("firing", "order-events")]


@pytest.mark.parametrize("at_once", [True, False])
def test_ten_thousand_merchants_are_one_alert_with_a_count(at_once: bool) -> None:
    play = Play()
    if not at_once:
        play.round(many(MAX_SUBJECTS))
    play.rounds(600, many(10_000))
    [shared] = [each for each in play.alerts if each.subject == ALL]
    assert shared.count == 10_000
    assert len(play.sent) == (1 if at_once else MAX_SUBJECTS + 1)
    assert len(shared.says) < 200
    play.rounds(2 * HOLD, found())
    assert len(play.sent) == 2 * (1 if at_once else MAX_SUBJECTS + 1)


def test_a_number_that_moves_about_the_limit_is_one_alert() -> None:
    play = Play()
    for number in range(200):
        play.round(many(MAX_SUBJECTS + 1 - number % 2))
    assert play.sent == [("firing", ALL)]
    play.rounds(2 * HOLD, many(MAX_SUBJECTS // 2))
    assert play.sent.count(("resolved", ALL)) == 1
    assert len(play.sent) == 2 + MAX_SUBJECTS // 2


def test_of_what_nothing_can_be_said_nothing_changes() -> None:
    """A database that is away, or no worker that reports, is no sign that a breaker is closed."""
    play = Play()
    play.round(found("m1"))
    play.rounds(10 * HOLD, {})
    assert play.sent == [("firing", "m1")]
    assert play.states() == [("m1", "firing")]


def test_a_receiver_that_is_down_is_tried_seldom_and_hears_of_it_later() -> None:
    play = Play()
    play.is_down = True
    play.rounds(6 * 3600, found("m1"))
    assert 20 < play.attempts < 40
    play.is_down = False
    play.rounds(LAST_AGAIN, found("m1"))
    assert play.sent == [("firing", "m1")]


def test_the_end_of_what_was_never_tried_is_not_sent() -> None:
    alert = replace(_fires(), is_sent=False)
    [waiting] = decide([alert], found(), alert.since + 1)
    assert decide([waiting], found(), waiting.since + HOLD + 2) == []


def test_the_end_of_what_may_have_come_is_sent_for_a_day() -> None:
    play = Play()
    play.is_down = True
    play.rounds(60, found("m1"))
    play.rounds(HOLD + 60, found())
    assert play.states() == [("m1", "resolved")]
    play.rounds(GIVE_UP, found())
    assert play.alerts == []


def test_what_comes_again_while_its_end_is_under_retry_is_another_incident() -> None:
    play = Play()
    play.round(found("m1"))
    [first] = play.alerts
    play.is_down = True
    play.rounds(HOLD + 60, found())
    play.is_down = False
    play.rounds(LAST_AGAIN, found("m1"))
    [second] = play.alerts
    assert play.sent == [("firing", "m1")] * 2
    assert second.incident != first.incident


@pytest.mark.parametrize("step", [-86_400.0, -600.0, 600.0, 86_400.0])
def test_a_step_of_the_clock_sends_at_most_one_pair_more(step: float) -> None:
    play = Play()
    sent_at: list[int] = []
    for seconds, findings in _hours():
        play.rounds(seconds, findings)
        play.now += step
        play.rounds(seconds, findings)
        play.now -= step
        sent_at.append(len(play.sent))
    assert play.alerts == []
    assert play.sent.count(("firing", "m1")) == play.sent.count(("resolved", "m1"))
    assert play.sent[-1] == ("resolved", "m1")
    assert len(play.sent) <= 4


def test_a_step_back_does_not_keep_a_message_for_longer_than_a_retry() -> None:
    play = Play()
    play.is_down = True
    play.rounds(600, found("m1"))
    play.now -= 86_400
    play.is_down = False
    play.rounds(EVERY, found("m1"))
    assert play.sent == [("firing", "m1")]


def _hours() -> Iterable[tuple[float, Findings]]:
    yield 300.0, found("m1")
    yield 900.0, found()


def _fires() -> Alert:
    return Alert(BREAKER, "m1", "i", AlertState.FIRING, 1000.0, "m1 is in trouble", 1)


def _conditions(alerts: Sequence[Alert]) -> set[Condition]:
    return {each.condition for each in alerts}


def test_a_condition_does_not_touch_another_one() -> None:
    play = Play()
    play.rounds(300, found("m1") | found("order-events", of=LATE))
    play.rounds(2 * HOLD, found() | found("order-events", of=LATE))
    assert _conditions(play.alerts) == {LATE}
