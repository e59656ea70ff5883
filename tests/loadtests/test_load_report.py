"""The report of a load: terminal and page tell the same story, and the page needs nothing else."""

import re
from contextlib import nullcontext
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import WorkerEndedError
from loadtests.load import __main__
from loadtests.load.chart import Chart, Line
from loadtests.load.page import page
from loadtests.load.run import ProducerEndedError
from loadtests.load.slices import Slices
from loadtests.load.story import story, summary
from loadtests.load.verdict import judge
from pos_gateway.demo.record import Times
from testkit.servers.process import ServerFailedError, ServerMissingError
from tests.loadtests.load_runs import ORDERS, SCENARIO, a_record, a_run, samples

RUN = a_run(samples=samples({"parked_orders": 3, "queue_messages.orders": 12}))
VERDICT = judge(RUN)
STORY = story(RUN, VERDICT)
PAGE = page(STORY, VERDICT.word)


class _Elements(HTMLParser):
    """What is opened, closed, and pointed to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(html: str) -> _Elements:
    parser = _Elements()
    parser.feed(html)
    assert parser.open == []
    return parser


def numbers(table: str) -> list[str]:
    return re.findall(r"\d[\d,.]*", table)


class TestThePage:
    def test_it_needs_nothing_from_elsewhere_and_runs_no_script(self) -> None:
        found = elements(PAGE)
        assert not {"script", "link", "img", "iframe"} & set(found.seen)
        assert not [value for name, value in found.attributes if name in ("src", "href")]
        assert "http" not in PAGE
        assert "url(" not in PAGE

    def test_it_fits_a_light_and_a_dark_screen(self) -> None:
        assert "prefers-color-scheme: dark" in PAGE
        colours = set(re.findall(r"var\((--\w+)\)", PAGE))
        light, dark = (PAGE.partition("@media")[place] for place in (0, 2))
        defined_dark = set(re.findall(r"(--\w+):", dark.partition("</style>")[0]))
        assert colours <= set(re.findall(r"(--\w+):", light)) | {"--verdict"}
        assert colours <= defined_dark

    def test_it_tells_the_whole_story(self) -> None:
        for part in (
            "planted: <b>MET</b>",
            "Every objective was met.",
            "What limited it",
            "440 sent = 400 accepted + 30 expired + 10 in doubt. 0 missing, 0 made twice.",
            "healthy: order → POS, p99",
            "Connections to POSes: 10 in use at most",
            "In the queue: 12 orders at most",
            "make load SCENARIO=planted",
        ):
            assert part in PAGE

    def test_every_chart_is_an_svg_that_can_be_read(self) -> None:
        drawings = re.findall(r"<svg.*?</svg>", PAGE, re.DOTALL)
        assert len(drawings) == 8 + len(SCENARIO.merchants)
        for drawing in drawings:
            root = ElementTree.fromstring(drawing)
            assert [each for each in root if each.get("class", "").startswith(("line", "area"))]
        titles = re.findall(r"<figcaption>(.*?)<small>", PAGE)
        for title in ("Orders a second", "Latency: healthy", "Slots", "Waiting and parked"):
            assert title in titles
        for title in ("Broker lag", "Connections to POSes", "CPU", "Memory"):
            assert title in titles

    def test_outages_are_shaded(self) -> None:
        assert PAGE.count('class="shade"') == 8 + len(SCENARIO.merchants)

    def test_what_a_scenario_says_of_itself_is_no_markup(self) -> None:
        odd = replace(RUN, scenario=SCENARIO.model_copy(update={"description": "<script>&"}))
        shown = page(story(odd, VERDICT), VERDICT.word)
        assert "script" not in elements(shown).seen
        assert "&lt;script&gt;&amp;" in shown

    def test_no_result_is_called_none(self) -> None:
        spoilt = a_run(record=a_record(unseen=1))
        verdict = judge(spoilt)
        shown = page(story(spoilt, verdict), verdict.word)
        assert "planted: <b>NO RESULT</b>" in shown
        assert "--verdict: var(--none)" in shown


class TestTheTerminal:
    def test_it_says_the_same_in_the_same_order(self) -> None:
        said = summary(STORY)
        titles = [section.title for section in STORY]
        assert re.findall(r"^## (.*)$", said, re.MULTILINE) == titles
        assert re.findall(r"<h2>(.*?)</h2>", PAGE) == titles[1:]
        for section in STORY:
            for sentence in section.says:
                assert sentence in said

    def test_it_has_percentiles_a_histogram_and_the_run_over_time(self) -> None:
        said = summary(STORY)
        assert f"up to      20.0 ms [   {ORDERS}] |∎" in said
        [line] = [each for each in said.splitlines() if each.startswith("| healthy: order → POS  ")]
        assert numbers(line) == ["400", "20.0", "20.0", "20.0", "20.0", "20.0"]
        [line] = [each for each in said.splitlines() if each.startswith("| hang: order → POS  ")]
        assert line.count("never") == 4
        assert numbers(line) == ["40", "2.00", "30"]
        [first] = [each for each in said.splitlines() if each.startswith("| 0 s")]
        assert numbers(first) == ["0", "22", "20", "10", "0", "3", "12", "40"]

    def test_a_run_of_nothing_is_told_too(self) -> None:
        nothing = a_record(
            outcomes={}, times={"enqueue": {}, "pos": {}, "event": {}}, late=Times([], [])
        )
        run = a_run(record=nothing, samples=[])
        verdict = judge(run)
        elements(page(story(run, verdict), verdict.word))
        assert "0 sent" in summary(story(run, verdict))


class TestTheExitCode:
    @pytest.fixture(autouse=True)
    def _without_servers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for server in ("RabbitMQ", "PostgreSQL"):
            monkeypatch.setattr(__main__, server, nullcontext)
        monkeypatch.setattr(__main__, "keep_off_the_workers_core", lambda: None)

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({}, 0),
            ({"times": {**a_record().times, "pos": {}}}, 1),
            ({"missing": ["load-1"], "unseen": 1}, 1),
            ({"unseen": 1}, 3),
        ],
    )
    def test_it_is_the_verdict_s_and_the_page_is_written_whatever_that_is(
        self,
        changes: dict[str, Any],
        code: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        run = a_run(record=a_record(**changes))
        monkeypatch.setattr(__main__, "play", lambda servers, scenario: run)
        report = tmp_path / "new" / "report.html"

        assert __main__.main(["steady", "--report", str(report)]) == code

        verdict = judge(run)
        assert verdict.sentence in report.read_text().replace("&#x27;", "'")
        assert capsys.readouterr().out.endswith(f"steady: {verdict.sentence}\n")

    @pytest.mark.parametrize(
        ("reason", "code"),
        [
            (WorkerEndedError("the worker ended"), 1),
            (InvalidRunError("no worker took orders"), 3),
            (ProducerEndedError("locust ended"), 3),
            (ServerMissingError("RabbitMQ is not installed"), 3),
            (ServerFailedError("RabbitMQ did not answer"), 3),
            (KeyboardInterrupt("Stopped: nothing is judged."), 130),
        ],
    )
    def test_a_run_that_was_cut_short_ends_with_a_sentence_and_without_a_page(
        self,
        reason: BaseException,
        code: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def play(servers: object, scenario: object) -> None:
            raise reason

        monkeypatch.setattr(__main__, "play", play)
        report = tmp_path / "report.html"

        assert __main__.main(["steady", "--report", str(report)]) == code

        assert capsys.readouterr().err == f"{reason}\n"
        assert not report.exists()


class TestSlices:
    def test_each_second_has_its_own_and_a_long_run_no_more_than_asked(self) -> None:
        assert (Slices.of(RUN, 100).number, Slices.of(RUN, 100).seconds) == (25, 1.0)
        assert (Slices.of(RUN, 10).number, Slices.of(RUN, 10).seconds) == (10, 2.5)

    def test_rates_percentiles_and_shares_of_a_core(self) -> None:
        slices = Slices.of(RUN, 100)
        assert slices.rate([0.0, 0.5, 1.5, 99.0])[:3] == [2.0, 1.0, 0.0]
        values = slices.percentile(RUN.record.times["pos"]["healthy"], 0.99)
        assert values[:20] == [0.02] * 20
        assert values[20:] == [None] * 5
        assert slices.busy("worker")[3] == pytest.approx(0.4)
        assert slices.held("worker")[0] == 101.0
        assert slices.scraped("slots.light", "slots.silent")[7] == 10

    def test_between_two_samples_the_one_before_holds(self) -> None:
        sparse = replace(RUN, samples=samples({"slots.light": 5})[::4])
        assert Slices.of(sparse, 100).scraped("slots.light")[:6] == [5] * 6


class TestAChart:
    def test_a_gap_stays_one_and_a_single_value_is_seen(self) -> None:
        drawing = Chart("c", "", [Line("a", [1.0, 2.0, None, 3.0], 0)], step=1.0).svg()
        paths = [
            each.get("d", "")
            for each in ElementTree.fromstring(drawing)
            if each.get("class") == "line s0" and "h16" not in each.get("d", "")
        ]
        assert len(paths) == 2
        assert all(path.count("L") == 1 for path in paths)

    def test_layers_lie_on_each_other(self) -> None:
        lines = [Line("a", [1.0, 1.0], 0), Line("b", [3.0, 3.0], 1)]
        drawing = Chart("c", "", lines, step=1.0, stacked=True, reaches=4.0).svg()
        tops = {
            each.get("class"): float(each.get("d", "").split(" ")[1].split("L")[0])
            for each in ElementTree.fromstring(drawing)
            if each.get("class", "").startswith("area")
        }
        base = 174.0
        assert (base - tops["area s1"]) == pytest.approx(4 * (base - tops["area s0"]), abs=0.2)

    def test_powers_of_ten_are_evenly_apart(self) -> None:
        chart = Chart("c", "", [Line("a", [0.01, 0.1, 1.0], 0)], step=1.0, logarithmic=True)
        [path] = re.findall(r'd="M([^"H]*L[^"H]*)"', chart.svg())
        y = [float(point.split()[1]) for point in path.split("L")]
        assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.2)
