"""Merchants in trouble, as a worker reports them."""

import pytest

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, QuotaTerms, Terms
from pos_gateway.domain.outcome import CallResult
from pos_gateway.reports.report import LARGEST, MAX_TROUBLES, Trouble, WorkerReport, encoded
from pos_gateway.worker import trouble_watch as subject
from pos_gateway.worker.trouble_watch import SHARE, TroubleWatch


class Scene:
    """Merchants of a real admission, and CPU time that the test says."""

    def __init__(self, *quotas: QuotaTerms) -> None:
        self.now, self.cpu, self.each = 100.0, 0.0, 0.0
        self.admission: Admission[str] = Admission(
            AdmissionLimits(slots=1000), lambda _: Terms(2, quotas=quotas)
        )
        self.watch = TroubleWatch(self.admission, lambda: self.now, self._cpu)

    def calls(self, merchant_id: str, orders: int = 1) -> list[Call[str]]:
        """Offer orders; returns those that start."""
        found = [self.admission.offer(merchant_id, f"o{n}", self.now) for n in range(orders)]
        calls = [each for each in found if isinstance(each, Call)]
        for call in calls:
            self.admission.began(call, self.now)
        return calls

    def call(self, merchant_id: str, result: CallResult, seconds: float, error: str = "") -> None:
        [call] = self.calls(merchant_id)
        self.now += seconds
        if error:
            self.admission.note_error(call, error, self.now)
        self.admission.release(call, self.now, result)

    def trouble(self, merchant_id: str) -> Trouble:
        [found] = [each for each in self.watch.troubles() if each.merchant_id == merchant_id]
        return found

    def _cpu(self) -> float:
        self.cpu += self.each
        return self.cpu


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_merchant_whose_orders_are_not_sent_is_in_trouble_until_they_are(scene: Scene) -> None:
    """Its breaker stays closed, and between two tries none of its orders is here."""
    [call] = scene.calls("m")
    scene.admission.note_unsent(call, "secret_key", scene.now)
    scene.admission.release(call, scene.now, CallResult.NONE)
    scene.now += 59.0
    found = scene.trouble("m")
    assert (found.error, found.error_ago, found.breaker) == ("secret_key", 59.0, "closed")
    scene.now += 100.0
    scene.admission.tick(scene.now)
    assert scene.watch.troubles() == []


def test_the_quota_that_orders_wait_for() -> None:
    app = QuotaTerms("app pos 1", at_once=1)
    scene = Scene(app)
    scene.admission.allot(app.key, 1)
    [call] = scene.calls("m", orders=2)
    scene.admission.tick(scene.now)
    assert (scene.trouble("m").quota, scene.trouble("m").waiting) == (app.key, 1)
    scene.now += 1.0
    scene.admission.release(call, scene.now, CallResult.ANSWERED)
    assert scene.watch.troubles() == []


def test_why_a_breaker_is_open(scene: Scene) -> None:
    """Of the last five calls two timed out, one failed, and one was refused."""
    scene.call("m", CallResult.ANSWERED, 0.25)
    for result, error in (
        (CallResult.TIMED_OUT, "timeout"),
        (CallResult.FAILED, "connect"),
        (CallResult.OVERLOADED, "http_503"),
        (CallResult.TIMED_OUT, "timeout"),
    ):
        scene.call("m", result, 2.0, error)
    scene.now += 0.5
    scene.admission.offer("m", "waits", scene.now)
    found = scene.trouble("m")
    assert (found.breaker, found.breaker_for) == ("open", 0.5)
    assert 0.2 <= found.half_opens_in <= 0.5
    assert (found.calls, found.timed_out, found.failed, found.overloaded) == (5, 2, 1, 1)
    assert found.late == 0
    assert (found.latest, found.usual) == (2.0, 0.25)
    assert (found.error, found.error_ago) == ("timeout", 0.5)
    assert (found.waiting, found.in_flight, found.agreed) == (1, 0, 2)
    assert found.limit == 1  # halved


def test_the_failures_are_those_of_the_window(scene: Scene) -> None:
    answered = [CallResult.ANSWERED] * 3
    for result in [*answered, CallResult.FAILED] * 5 + answered * 3:
        scene.call("m", result, 0.1)
    scene.calls("m", 5)
    found = scene.trouble("m")
    assert (found.calls, found.failed) == (20, 3)
    scene.admission.open_breaker("m", 60.0)
    scene.admission.close_breaker("m")
    found = scene.trouble("m")
    assert (found.breaker, found.breaker_for, found.calls, found.failed) == ("closed", 0.0, 0, 0)


def test_a_breaker_is_open_since_it_was_closed(scene: Scene) -> None:
    scene.admission.tick(scene.now)
    scene.admission.open_breaker("m", 5.0)
    scene.now += 3
    scene.admission.tick(scene.now)
    scene.admission.open_breaker("m", 10.0)
    scene.now += 3
    scene.admission.tick(scene.now)
    assert scene.trouble("m").breaker == "half_open"
    assert scene.trouble("m").breaker_for == 6.0
    scene.call("m", CallResult.FAILED, 1.0)
    found = scene.trouble("m")
    assert (found.breaker, found.breaker_for) == ("open", 7.0)


def test_trouble_lasts_until_it_is_over(scene: Scene) -> None:
    scene.call("m", CallResult.ANSWERED, 0.0)
    scene.admission.parked_count.add("m", 3, 1000.0)
    assert scene.trouble("m").since == 0.0
    scene.now += 30
    scene.admission.open_breaker("n", 60.0)
    assert (scene.trouble("m").since, scene.trouble("n").since) == (30.0, 0.0)
    assert scene.watch.in_trouble == 2
    scene.admission.close_breaker("n")
    assert [each.merchant_id for each in scene.watch.troubles()] == ["m"]
    scene.now += 5
    scene.admission.open_breaker("n", 60.0)
    assert scene.trouble("n").since == 0.0


def test_a_merchant_that_is_well_now_is_not_shown(scene: Scene) -> None:
    """Also between two looks at all merchants."""
    scene.each = 1.0  # the next look at all is far away
    scene.admission.open_breaker("m", 60.0)
    scene.admission.open_breaker("n", 60.0)
    assert len(scene.watch.troubles()) == 2
    scene.admission.close_breaker("m")
    assert [each.merchant_id for each in scene.watch.troubles()] == ["n"]


def test_busy_merchants_hide_none_that_does_not_answer(scene: Scene) -> None:
    """At a peak many are at their limit; the alert of one that is away must neither fail nor end."""
    scene.admission.tick(scene.now)
    scene.admission.open_breaker("away", 600.0)
    for number in range(2 * MAX_TROUBLES):
        scene.calls(f"busy-{number}", 4)
    names = [each.merchant_id for each in scene.watch.troubles()]
    assert len(names) == MAX_TROUBLES
    assert names[-1] == "away"


def test_ten_thousand_merchants(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in trouble: the report has the worst fifty, and looking takes half a thousandth of a core."""
    turns: list[int] = []
    monkeypatch.setattr(subject, "yield_control", lambda: turns.append(1))
    for number in range(10_000):
        scene.admission.offer(f"m{number}", "o", scene.now)
        scene.admission.parked_count.add(f"m{number}", number + 1, 10_000.0)
    scene.each = 0.001
    troubles = scene.watch.troubles()
    assert [each.parked for each in troubles] == list(range(10_000, 10_000 - MAX_TROUBLES, -1))
    assert scene.watch.in_trouble == 10_000
    assert len(turns) == 10_000 / subject.YIELD_EVERY
    spent = len(turns) * scene.each
    scene.admission.parked_count.add("m0", 20_000, 10_000.0)
    scene.now += spent / SHARE - 1
    assert scene.watch.troubles()[0].merchant_id == "m9999"
    assert len(turns) == 10_000 / subject.YIELD_EVERY
    scene.now += 1.5
    assert scene.watch.troubles()[0].merchant_id == "m0"
    assert len(encoded(WorkerReport(troubles=troubles))) < LARGEST
