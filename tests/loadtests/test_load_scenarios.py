"""Load scenarios: mistakes get a sentence, shapes the right number of orders, and chance no pattern."""

import inspect
import re
from collections import Counter
from itertools import islice, pairwise
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, pvariance
from typing import Any

import pytest
from pydantic import TypeAdapter

import loadtests.load.shapes
from loadtests.load.__main__ import main
from loadtests.load.scenario import LoadScenario, MerchantClass, names
from loadtests.load.shapes import AnyShape, Shape
from pos_gateway.simulated_merchants.behaviour import Stage, Treatment
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.profiles import parse_profile
from testkit.faults.adapters import QueryableAdapter

GOOD = """
description = "good"
seconds = 60
deliver_within = 20
[arrivals]
shape = "steady"
rate = 10
[merchants.healthy]
number = 5
weight = 90
latency = 0.1
[merchants.hang]
number = 1
weight = 10
behaviour = "hang"
"""


def scenario(tmp_path: Path, text: str, **options: Any) -> LoadScenario:
    path = tmp_path / "it.toml"
    path.write_text(text)
    return LoadScenario.read(str(path), **options)


def shape(**values: Any) -> Shape:
    return TypeAdapter(AnyShape).validate_python(values)


PEAK = shape(shape="lunch-peak", rate=20, peak=100)
SPIKE = shape(shape="spike", rate=20, peak=100, begins=30, lasts=10)
RECOVERY = shape(shape="thundering-recovery", rate=20, begins=30, lasts=20, within=5)
SOAK = shape(shape="soak", rate=20, peak=100, every=15)


class TestTheFile:
    @pytest.mark.parametrize("name", names())
    def test_the_ones_that_there_are_can_be_played(self, name: str) -> None:
        found = LoadScenario.read(name)
        assert found.name == name
        assert found.description.endswith((".", "'."))
        assert len(set(found.merchant_ids)) == len(found.merchant_ids)

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("seconds = 60", "seconds = -1", "seconds: input should be greater than 0 (got -1)"),
            ("seconds = 60", "", "seconds: is required"),
            ("seed", "sed", "sed: is not a field"),
            ('"steady"', '"stedy"', "expected tags: 'steady', 'lunch-peak'"),
            ('shape = "steady"', 'shape = "spike"', "arrivals.spike.peak: is required"),
            (
                "rate = 10",
                "rate = 0",
                "arrivals.steady.rate: input should be greater than 0 (got 0",
            ),
            ("merchants.hang]", "merchants.to-hang]", "a word of small letters and digits"),
            ("number = 1", "number = 0", "merchants.hang.number: input should be greater"),
            ("weight = 10", "weight = 0", "merchants.hang.weight: input should be greater than 0"),
            ('behaviour = "hang"', "", "give either latency or behaviour"),
            ('"hang"', '"hang"\nlatency = 1', "give either latency or behaviour"),
            ('"hang"', '"hung"', "kind 'hung': one of accept"),
            ("latency = 0.1", "latency = 'a'", "latency 'a': give seconds, "),
            ('"hang"', '"hang"\noutage = { begins = 9, ends = 8 }', "0 <= begins < ends"),
            (
                '"hang"',
                '"hang"\noutage = { begins = 60, ends = 80 }',
                "merchants.hang.outage.begins: must be before the end, 60 s (got 60)",
            ),
            ('"hang"', '"hang"\nobjectives = { pos_p98 = 1 }', "pos_p98 is no objective: give"),
            ("[arrivals]", "[arrivals", "at line"),
        ],
    )
    def test_a_mistake_is_named_with_what_would_do(
        self, tmp_path: Path, old: str, new: str, complaint: str
    ) -> None:
        text = f"seed = 3{GOOD}"
        assert scenario(tmp_path, text).seed == 3
        assert old in text
        with pytest.raises(ScenarioError) as refused:
            scenario(tmp_path, text.replace(old, new))
        assert str(refused.value).startswith("scenario it.toml: ")
        assert complaint in str(refused.value)

    def test_every_mistake_has_a_line(self, tmp_path: Path) -> None:
        wrong = GOOD.replace("rate = 10", "rate = 0").replace("number = 1", "number = 0")
        with pytest.raises(ScenarioError) as refused:
            scenario(tmp_path, wrong)
        assert len(str(refused.value).splitlines()) == 2

    def test_another_length_is_held_against_what_is_to_happen(self, tmp_path: Path) -> None:
        outage = '"hang"\noutage = { begins = 30, ends = 50 }'
        text = GOOD.replace('"hang"', outage)
        assert scenario(tmp_path, text, seconds=31.0).seconds == 31
        with pytest.raises(ScenarioError, match="must be before the end, 20 s"):
            scenario(tmp_path, text, seconds=20.0)

    def test_without_a_scenario_they_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        listed = capsys.readouterr().out
        for name in names():
            assert f"  {name} " in listed

    def test_an_unknown_one_gets_a_sentence(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dinner"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("scenario 'dinner': one of lunch-peak, ")
        assert said.count("\n") == 1

    def test_its_merchants_can_be_imported_into_a_gateway(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["thundering-recovery", "--merchants-at", "http://pos.example:8080/"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == (
            '{"id": "vendor-29", "base_url": "http://pos.example:8080/m/vendor-29", '
            '"provider": "vendor"}'
        )


class TestTheDocumentation:
    PAGE = (Path(__file__).parents[2] / "docs" / "load-testing.md").read_text()

    def test_its_example_can_be_played(self, tmp_path: Path) -> None:
        [example] = re.findall(r"```toml\n(.*?)```", self.PAGE, re.DOTALL)
        assert scenario(tmp_path, example).merchants["vendor"].outage is not None

    def test_it_names_every_scenario_shape_kind_and_field(self) -> None:
        shapes = re.findall(
            r"shape: Literal\[\"(.*?)\"\]", inspect.getsource(loadtests.load.shapes)
        )
        fields = [*LoadScenario.model_fields, *MerchantClass.model_fields]
        for word in {*names(), *shapes, *Treatment, *Stage, *fields} - {"file"}:
            assert re.search(rf"\b{word}\b", self.PAGE), word


class TestBehaviour:
    @pytest.mark.parametrize("name", names())
    def test_each_has_orders_that_are_made_twice_if_they_are_sent_again_unasked(
        self, name: str
    ) -> None:
        found = LoadScenario.read(name)
        keyless = [each for each, of_it in found.merchants.items() if not of_it.keyed]
        assert keyless
        for each in keyless:
            assert not parse_profile(each, found.profiles(began=0.0)[each]).keyed
            assert found.terms[each]["adapter"] == QueryableAdapter.name
            lost = [b for b in found.merchants[each].behaviour["create"] if b.get("makes_order")]
            assert lost

    def test_an_outage_is_of_orders_and_of_lookups(self, tmp_path: Path) -> None:
        late = "behaviour = { create = { latency = 6 }, lookups = { latency = 0.1 } }"
        outage = 'outage = { begins = 10, ends = 20, behaviour = "fail" }'
        found = scenario(tmp_path, GOOD.replace('behaviour = "hang"', f"{late}\n{outage}"))

        told = found.profiles(began=1000.0)["hang"]

        profile = parse_profile("told", told)
        assert told["create"]["usual"] == {"latency": 6}
        assert told["lookups"] == {
            "usual": {"latency": 0.1},
            "outage": {"kind": "fail"},
            "begins": 10.0,
            "ends": 20.0,
            "since": 1000.0,
        }
        assert profile.lookups.at(1015.0) is not profile.lookups.at(1020.0)

    def test_without_lookups_of_their_own_they_meet_what_orders_meet(self) -> None:
        told = LoadScenario.read("thundering-recovery").profiles(began=1000.0)["vendor"]
        assert told["lookups"] == told["create"]
        assert told["lookups"]["usual"] == {"latency": {"lognormal": [0.2, 0.4]}}

    def test_every_behaviour_of_the_soak_can_be_told_to_simulated_merchants(self) -> None:
        soak = LoadScenario.read("soak")
        with SimulatedMerchants() as merchants:
            for name, profile in soak.profiles(began=0.0).items():
                merchants.profile(f"{name}-*", profile)
                assert merchants.merchant(f"{name}-0")["profile"] == "custom"


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "number"),
        [
            (shape(shape="steady", rate=20), 1200),
            (PEAK, 60 * 60),  # half of the time on either side of the mean
            (SPIKE, 20 * 60 + 80 * 10),
            (RECOVERY, 20 * 60),  # what was held back comes, and nothing else
            (SOAK, 60 * 60),
        ],
    )
    def test_a_run_has_the_orders_of_its_curve(self, shape: Shape, number: float) -> None:
        assert shape.expected(60) == pytest.approx(number, rel=0.001)

        drawn = list(shape.arrivals(60, Random(1)))
        assert abs(len(drawn) - number) < 4 * sqrt(number)
        assert drawn == sorted(drawn)
        assert 0 <= drawn[0] < drawn[-1] < 60

    @pytest.mark.parametrize("shape", [PEAK, SPIKE, RECOVERY, SOAK])
    def test_the_orders_come_when_the_curve_says(self, shape: Shape) -> None:
        counts = Counter(int(second // 5) for second in shape.arrivals(60, Random(2)))
        for stretch in range(12):
            wanted = sum(shape.rate_at(stretch * 5 + 0.05 * n, 60) for n in range(100)) / 20
            assert abs(counts[stretch] - wanted) <= 4.5 * sqrt(wanted)
            assert wanted <= 5 * shape.highest + 1e-9

    def test_a_wave_is_highest_in_the_middle_and_a_soak_has_one_after_the_other(self) -> None:
        assert [PEAK.rate_at(second, 60) for second in (0, 30, 15)] == pytest.approx([20, 100, 60])
        assert [SOAK.rate_at(second, 60) for second in (7.5, 15, 22.5)] == pytest.approx(
            [100, 20, 100]
        )

    def test_no_backend_submits_during_an_outage_and_all_come_back_at_once(self) -> None:
        seconds = list(RECOVERY.arrivals(60, Random(3)))
        assert not [second for second in seconds if 30 <= second < 50]
        back = sum(50 <= second < 55 for second in seconds)
        assert abs(back - 500) < 4 * sqrt(500)


class TestChance:
    def test_what_comes_says_nothing_about_when_the_next_one_does(self) -> None:
        seconds = list(shape(shape="steady", rate=100).arrivals(200, Random(1)))
        gaps = [b - a for a, b in pairwise(seconds)]
        mean = fmean(gaps)
        assert mean == pytest.approx(0.01, rel=0.03)
        assert sqrt(pvariance(gaps)) == pytest.approx(mean, rel=0.05)  # as exponential ones are
        products = [(a - mean) * (b - mean) for a, b in pairwise(gaps)]
        assert abs(fmean(products) / pvariance(gaps)) < 4 / sqrt(len(gaps))

    def test_backends_share_the_orders_and_each_has_a_chance_of_its_own(self) -> None:
        steady = shape(shape="steady", rate=100)
        backends = [list(steady.arrivals(60, Random(n), share=0.1)) for n in range(10)]
        number = sum(map(len, backends))
        assert abs(number - 6000) < 4 * sqrt(6000)
        assert len({second for each in backends for second in each}) == number

    def test_a_seed_repeats_itself_and_no_backend_another(self, tmp_path: Path) -> None:
        found, other = scenario(tmp_path, GOOD), scenario(tmp_path, f"seed = 2{GOOD}")
        first = list(found.orders("0"))
        assert first == list(found.orders("0"))
        assert first != list(found.orders("1"))
        assert first != list(other.orders("0"))

    def test_merchants_are_picked_by_weight_and_in_no_pattern(self, tmp_path: Path) -> None:
        found = scenario(tmp_path, GOOD)
        picked = list(islice(found.picks(Random(1)), 20_000))

        counts = Counter(picked)
        assert counts["hang-0"] == pytest.approx(2000, abs=4 * sqrt(1800))
        for number in range(5):
            assert counts[f"healthy-{number}"] == pytest.approx(3600, abs=4 * sqrt(3600))
        # Wald and Wolfowitz, as in test_latency.
        hangs = [merchant == "hang-0" for merchant in picked]
        ones, zeros = counts["hang-0"], 20_000 - counts["hang-0"]
        expected = 1 + 2 * ones * zeros / 20_000
        runs = 1 + sum(a != b for a, b in pairwise(hangs))
        assert abs(runs - expected) < 4 * sqrt((expected - 1) * (expected - 2) / 19_999)
