"""Where an order's CPU goes: how samples are read, whose they are, and how they are drawn."""

import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtests.bench.worker import WorkerEndedError
from loadtests.profile import recording
from loadtests.profile.__main__ import main, report
from loadtests.profile.flame import flame_graph
from loadtests.profile.order_path import Function, OrderPath
from loadtests.profile.parts import (
    ADMISSION,
    AMQP,
    CELERY,
    EVENTS,
    EXCHANGE,
    LEDGER,
    LOOP,
    ORDER,
    OTHER,
    PARTS,
    TELEMETRY,
    Frame,
    Stack,
    part_of,
    read,
    shares,
)
from loadtests.profile.recording import Sampled
from pos_gateway.telemetry.writer import LogWriter

DELIVERY = "apply_target (celery/concurrency/gevent.py);deliver (pos_gateway/worker/tasks.py)"
SENDING = f"{DELIVERY};Transport.send (pos_gateway/transport/exchange.py)"


def stack(names: str, samples: int = 1) -> Stack:
    [read_] = read([f"{names} {samples}\n"])
    return read_


class TestReading:
    def test_a_line_is_a_stack_and_how_often_it_was_seen(self) -> None:
        assert stack("main (a.py:3);Some.<locals>.<lambda> (b/c.py) ".rstrip(), 7) == Stack(
            (Frame("main", "a.py"), Frame("Some.<locals>.<lambda>", "b/c.py")), 7
        )

    def test_samples_between_functions_have_no_frames(self) -> None:
        assert list(read([" 90\n"])) == [Stack((), 90)]

    def test_starting_is_no_load_and_waiting_is_no_work(self) -> None:
        importing = "main (a.py);_find_and_load (<frozen importlib._bootstrap>);<module> (b.py) 5\n"
        waiting = "run (gevent/threadpool.py);acquire_with_timeout (gevent/_threading.py) 9\n"
        rest = f"{LogWriter._rest.__qualname__} (pos_gateway/telemetry/writer.py)"
        resting = f"LogWriter._run (pos_gateway/telemetry/writer.py);{rest} 9\n"
        assert list(read([importing, waiting, resting])) == []


class TestWhoseWorkItIs:
    @pytest.mark.parametrize(
        ("names", "part"),
        [
            (DELIVERY, ORDER),
            (f"{DELIVERY};model_validate (pydantic/main.py)", ORDER),
            (f"{SENDING};send (gevent/_socketcommon.py)", EXCHANGE),
            (f"{DELIVERY};claim (pos_gateway/ledger/ledger.py);acquire (gevent/thread.py)", LEDGER),
            (f"{DELIVERY};told (pos_gateway/telemetry/metrics.py)", TELEMETRY),
            ("_run (pos_gateway/worker/dispatcher.py);tick (pos_gateway/admission/agenda.py)", ADMISSION),
            ("run (threading.py);_run (pos_gateway/ledger/commits.py);execute (psycopg/cursor.py)", LEDGER),
            ("run (threading.py);_for_ever (pos_gateway/events/relay.py);send (amqp/transport.py)", EVENTS),
            ("main (celery/bin/celery.py);green_loop (pos_gateway/worker/loop.py);recv (amqp/transport.py)", AMQP),
            ("main (celery/bin/celery.py);green_loop (pos_gateway/worker/loop.py);on_message (kombu/m.py);handle (pos_gateway/worker/intake.py)", CELERY),
            ("Hub.run (gevent/hub.py)", LOOP),
            ("main (somewhere.py)", OTHER),
        ],
    )  # fmt: skip
    def test_the_innermost_file_says_unless_a_thread_works_for_all(
        self, names: str, part: str
    ) -> None:
        assert part_of(stack(names).frames) == part

    def test_the_shares_are_of_all_samples(self) -> None:
        seen = shares([stack(SENDING, 3), stack(DELIVERY, 1)])
        assert seen.keys() == set(PARTS)
        assert (seen[EXCHANGE], seen[ORDER], sum(seen.values())) == (0.75, 0.25, 1.0)


class TestTheFlameGraph:
    STACKS = (stack(SENDING, 30), stack(f"{DELIVERY};<weird & odd> (x.py)", 10), Stack((), 10))

    def boxes(self) -> dict[str, tuple[float, float]]:
        """Left edge and width of each box, in pixels, by what it tells."""
        drawn = flame_graph(self.STACKS, "a title", {EXCHANGE: "sending"})
        root = ElementTree.fromstring(drawn)
        space = "{http://www.w3.org/2000/svg}"
        found = {}
        for group in root.iter(f"{space}g"):
            title, box = group.find(f"{space}title"), group.find(f"{space}rect")
            assert title is not None and title.text is not None and box is not None
            found[title.text] = (float(box.attrib["x"]), float(box.attrib["width"]))
        return found

    def test_a_box_is_as_wide_as_its_share_and_stands_on_its_caller(self) -> None:
        boxes = self.boxes()
        left, width = boxes["deliver (pos_gateway/worker/tasks.py): 80.0%"]
        assert width == pytest.approx(0.8 * 1600, abs=1)
        inner, narrower = boxes["Transport.send (pos_gateway/transport/exchange.py): 60.0%"]
        assert narrower == pytest.approx(0.6 * 1600, abs=1)
        beside, rest = boxes["<weird & odd> (x.py): 20.0%"]
        assert sorted([(inner, narrower), (beside, rest)]) == [
            (pytest.approx(left, abs=1), pytest.approx(rest, abs=1)),
            (pytest.approx(left + rest, abs=1), pytest.approx(narrower, abs=1)),
        ]

    def test_names_are_no_markup(self) -> None:
        assert "<weird & odd> (x.py): 20.0%" in self.boxes()


PROFILE: dict[str, Any] = {
    "machine": "a machine",
    "load": "from a full queue",
    "rate": 1000.0,
    "cpu_ms": 0.8,
    "parts": {EXCHANGE: 0.6, ORDER: 0.2},
}


class TestTheTable:
    def test_it_shows_parts_and_the_heaviest_functions(self) -> None:
        shown = report(PROFILE, [stack(SENDING, 3), stack(DELIVERY, 1)])
        assert f"| {EXCHANGE}" in shown
        assert "75.0%" in shown
        assert "| Transport.send (pos_gateway/transport/exchange.py) |           0.600 |" in shown

    def test_before_and_after_stand_side_by_side(self) -> None:
        before = {**PROFILE, "cpu_ms": 0.9, "parts": {EXCHANGE: 0.7, ORDER: 0.2}}
        shown = report(PROFILE, [stack(SENDING)], before)
        assert "-0.100" in shown
        assert "+0.000" in shown


class TestRecording:
    PROFILER = """\
        #!{python}
        import signal, subprocess, sys
        into = sys.argv[sys.argv.index("--output") + 1]
        with subprocess.Popen(sys.argv[sys.argv.index("--") + 1 :]) as worker:
            try:
                worker.wait()
            except KeyboardInterrupt:
                open(into, "w").write("main (a.py) 1\\n")
                worker.kill()
        """

    @pytest.fixture
    def profiler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Does with a worker what py-spy does, but for looking into it."""
        script = tmp_path / "py-spy"
        script.write_text(dedent(self.PROFILER).format(python=sys.executable))
        script.chmod(0o700)
        monkeypatch.setattr(recording, "PROFILER", script)
        return script

    def test_what_was_sampled_is_written_when_the_worker_ends(
        self, profiler: Path, tmp_path: Path
    ) -> None:
        into = tmp_path / "stacks.txt"
        with Sampled(["-c", "import time; time.sleep(60)"], {}, tmp_path, into=into) as worker:
            command = Path(f"/proc/{worker.pid}/cmdline").read_text()
        assert "time.sleep" in command
        assert "record" not in command
        assert list(read(into.open())) == [stack("main (a.py)")]

    def test_a_profiler_that_ends_says_what_it_said(self, profiler: Path, tmp_path: Path) -> None:
        profiler.write_text(f"#!{sys.executable}\nraise SystemExit('not permitted')\n")
        worker = Sampled(["-c", ""], {}, tmp_path, into=tmp_path / "stacks.txt")
        with pytest.raises(WorkerEndedError, match="not permitted"), worker:
            pass

    def test_without_a_profiler_it_says_what_would_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("loadtests.profile.__main__.PROFILER", tmp_path / "py-spy")
        assert main(["--folder", str(tmp_path)]) == 1
        assert "`make profile` installs py-spy" in capsys.readouterr().err


def test_an_orders_path_is_listed_without_a_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, instead in {
        "PROFILER": tmp_path / "py-spy",
        "RabbitMQ": nullcontext,
        "PostgreSQL": nullcontext,
        "keep_off_the_workers_core": lambda: None,
        "trace": lambda _: OrderPath([Function("domain/order.py", "Order.parse", 1)], []),
    }.items():
        monkeypatch.setattr(f"loadtests.profile.__main__.{name}", instead)
    assert main(["--path", "--folder", str(tmp_path)]) == 0
    assert "order.py: Order.parse" in capsys.readouterr().out
