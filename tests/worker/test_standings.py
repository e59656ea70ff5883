"""Merchants' status, as metrics and the status page show it."""

import json
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.domain.outcome import CallResult
from pos_gateway.runtime import green
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.worker.standings import LONGEST_PAGE, PAGE, YIELD_EVERY, Standings
from tests.telemetry.lab import Samples

NO_MERCHANT = ""


class Scene:
    """Merchants of a real admission."""

    def __init__(self, **limits: Any) -> None:
        limits = {"slots": 1000, **limits}
        self.admission: Admission[str] = Admission(AdmissionLimits(**limits), lambda _: Terms(2))
        self.providers: dict[str, str | None] = {}
        self.standings = Standings(self.admission, self.providers.get)
        self.calls: dict[str, list[Call[str]]] = {}
        self.now = 100.0

    def offer(self, merchant_id: str, orders: int = 1) -> None:
        for number in range(orders):
            found = self.admission.offer(merchant_id, f"o{number}", self.now)
            if isinstance(found, Call):
                self.admission.began(found, self.now)
                self.calls.setdefault(merchant_id, []).append(found)

    def open_breaker(self, merchant_id: str) -> None:
        self.admission.open_breaker(merchant_id, 60.0)

    def park(self, merchant_id: str, orders: int) -> None:
        self.admission.parked_count.add(merchant_id, orders, self.now + 30)

    def fall_silent(self, merchant_id: str) -> None:
        """Every merchant with orders in flight becomes silent."""
        self.now += 4
        self.admission.tick(self.now)
        assert self.admission.merchant(merchant_id).silent  # type: ignore[union-attr]

    def scraped(self) -> Samples:
        scrape = MetricsPort(0)
        scrape.before_scrape(self.standings.show)
        return Samples(scrape.text().decode())

    def page(self, **query: str) -> Any:
        answer = self.standings.page(query)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_worker_without_cpu_says_so() -> None:
    scene = Scene()
    assert scene.scraped().value("pos_gateway_cpu_scarce") == 0
    for _ in range(100):
        scene.offer("m")
        for call in scene.calls.pop("m", []):
            scene.admission.release(call, scene.now)
        scene.now += 1.0
    for _ in range(300):
        scene.offer("m")
        for call in scene.calls.pop("m", []):
            scene.admission.release(call, scene.now)
        scene.admission.turned(0.1, 0.1)
    assert scene.scraped().value("pos_gateway_cpu_scarce") == 1


def waiting(shown: Samples) -> dict[str, float]:
    """Waiting orders by what admission has them wait for; a dispatcher counts the others."""
    return {each: shown.value("pos_gateway_waiting", reason=each) for each in ("merchant", "slot")}


def test_slots_and_waiting_orders_are_counted_by_what_they_wait_for(scene: Scene) -> None:
    scene.offer("silent", 2)
    scene.fall_silent("silent")
    scene.offer("well", 1)
    scene.offer("full", 5)
    scene.park("away", 64)
    shown = scene.scraped()
    assert shown.of("pos_gateway_slots") == {
        ("free",): 995,
        ("light",): 0,
        ("heavy",): 3,
        ("silent",): 2,
    }
    assert waiting(shown) == {"merchant": 3, "slot": 0}
    assert shown.value("pos_gateway_parked_orders") == 64


def test_a_merchant_whose_order_waits_for_a_slot_is_not_in_trouble() -> None:
    scene = Scene(slots=1)
    scene.offer("first")
    scene.offer("second")
    shown = scene.scraped()
    assert waiting(shown) == {"merchant": 0, "slot": 1}
    assert shown.value("pos_gateway_merchants_in_trouble") == 0


def test_merchants_are_named_while_they_are_in_trouble(
    scene: Scene,
) -> None:
    scene.offer("silent", 1)
    scene.fall_silent("silent")
    scene.offer("well")
    scene.offer("full", 5)
    scene.open_breaker("down")
    scene.offer("parked")
    scene.park("parked", 7)
    shown = scene.scraped()
    assert shown.of("pos_gateway_merchant_waiting") == figures(full=3, silent=0, down=0, parked=0)
    assert shown.of("pos_gateway_merchant_in_flight") == figures(full=2, silent=1, down=0, parked=1)
    assert shown.of("pos_gateway_merchant_parked_orders") == figures(
        full=0, silent=0, down=0, parked=7
    )
    assert shown.of("pos_gateway_merchant_silent")[("silent",)] == 1
    assert shown.of("pos_gateway_merchant_breaker")[("down",)] == 2
    scene.admission.parked_count.pass_time(300.0)
    for call in scene.calls.pop("full"):
        scene.admission.release(call, scene.now, CallResult.ANSWERED)
    scene.admission.drop_waiting()
    assert set(scene.scraped().of("pos_gateway_merchant_waiting")) == {("down",), ("silent",)}


def figures(**values: int) -> dict[tuple[str, ...], float]:
    return {(merchant_id,): value for merchant_id, value in values.items()}


def test_breakers_are_counted_by_provider(scene: Scene) -> None:
    for number in range(5):
        scene.providers[f"m{number}"] = "acme" if number < 3 else None
        scene.open_breaker(f"m{number}")
    scene.admission.tick(61.0)
    scene.open_breaker("m0")
    assert scene.scraped().of("pos_gateway_breakers") == {
        ("acme", "open"): 1,
        ("acme", "half_open"): 2,
        ("none", "half_open"): 2,
    }


def test_the_worst_of_many_merchants_in_trouble_are_named(scene: Scene) -> None:
    for number in range(1, 3 * metrics.WORST + 1):
        scene.offer(f"m{number}")
        scene.park(f"m{number}", number)
    shown = scene.scraped()
    assert shown.value("pos_gateway_merchants_in_trouble") == 3 * metrics.WORST
    named = shown.of("pos_gateway_merchant_parked_orders")
    assert sorted(named.values()) == list(range(2 * metrics.WORST + 1, 3 * metrics.WORST + 1))


def test_a_scrape_yields_to_orders(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    merchants, turns = 3000, []
    for number in range(merchants):
        scene.offer(f"m{number}")

    def others_turn(_seconds: float) -> None:
        turns.append(0)
        scene.offer(f"new{len(turns)}")  # the iteration must bear that the merchants change

    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=others_turn))
    scene.standings.show()
    assert len(turns) >= ceil(merchants / YIELD_EVERY) - 1


def test_the_page_lists_merchants_with_orders_or_in_trouble(scene: Scene) -> None:
    scene.providers["full"] = "acme"
    scene.offer("full", 5)
    scene.offer("well", 1)
    scene.offer("gone", 1)
    scene.admission.release(scene.calls["gone"][0], 101.0, CallResult.ANSWERED)
    scene.offer(NO_MERCHANT)
    status, page = scene.page()
    assert (status, page["page"], page["pages"], page["total"]) == (200, 1, 1, 2)
    assert page["merchants"] == [
        {
            "merchant_id": "full",
            "provider": "acme",
            "in_flight": 2,
            "waiting": 3,
            "parked": 0,
            "agreed": 2,
            "limit": 2,
            "light": False,
            "silent": False,
            "unsent": False,
            "breaker": "closed",
            "in_trouble": True,
        },
        {
            "merchant_id": "well",
            "provider": None,
            "in_flight": 1,
            "waiting": 0,
            "parked": 0,
            "agreed": 2,
            "limit": 2,
            "light": False,
            "silent": False,
            "unsent": False,
            "breaker": "closed",
            "in_trouble": False,
        },
    ]
    assert ids(scene.page(troubled="1")) == ["full"]
    assert ids(scene.page(troubled="0")) == ["full", "well"]


def ids(answer: tuple[int, Any]) -> list[str]:
    return [each["merchant_id"] for each in answer[1]["merchants"]]


def test_pages_are_bounded_and_complete(scene: Scene) -> None:
    everybody = [f"m{number:04}" for number in range(750)]
    for merchant_id in everybody:
        scene.offer(merchant_id)
    assert ids(scene.page()) == everybody[:PAGE]
    assert ids(scene.page(page="2")) == everybody[PAGE : 2 * PAGE]
    assert ids(scene.page(per_page="100000")) == everybody[:LONGEST_PAGE]
    assert ids(scene.page(per_page="100000", page="2")) == everybody[LONGEST_PAGE:]
    status, beyond = scene.page(page="9")
    assert (status, beyond["merchants"], beyond["pages"], beyond["total"]) == (200, [], 8, 750)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "²", "1" * 400])
def test_an_invalid_page_number_is_refused(scene: Scene, text: str) -> None:
    status, said = scene.page(page=text)
    assert status == 400
    assert said["error"].startswith("page: a whole number from 1")
