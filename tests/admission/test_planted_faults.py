"""Faults planted in admission one at a time: the state machine must find every one.

A test that cannot fail proves nothing. Each fault breaks one rule in a copy of the package; add
one when a rule is added.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.planting import chosen

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
#: Examples after which a fault counts as not found; most are found in the first twenty.
EXAMPLES = "1600"


@dataclass(frozen=True)
class Fault:
    rule: str
    file: str
    right: str
    wrong: str
    #: Those that show it are rare where this is more.
    examples: str = EXAMPLES


FAULTS = [
    Fault(
        "no more are under way than there are slots",
        "admission",
        "return self.in_flight < self.limits.slots",
        "return self.in_flight <= self.limits.slots",
    ),
    Fault(
        "a merchant keeps to its limit",
        "bulkhead",
        "return self.in_flight < self.limit",
        "return self.in_flight <= self.limit",
    ),
    Fault(
        "a limit is halved when the merchant does not answer in time",
        "admission",
        "lane.bulkhead.overloaded(call.started, now)",
        "lane.bulkhead.hesitated()",
    ),
    Fault(
        "a limit is halved once for all that were out together",
        "bulkhead",
        "if started >= self._halved and",
        "if",
    ),
    Fault("a limit never falls below one", "bulkhead", "max(1, self.here // 2)", "self.here // 2"),
    Fault(
        "a limit rises only after a full window of answers",
        "bulkhead",
        "self._answers >= self.here",
        "self._answers >= 1",
    ),
    Fault(
        "a limit rises only when it was reached",
        "bulkhead",
        "if self._reached and self",
        "if self",
    ),
    Fault(
        "no more start in a second than the POS takes",
        "rate",
        "len(self._starts) >= here",
        "len(self._starts) > here",
    ),
    Fault(
        "a start counts for a whole second",
        "rate",
        "self._starts[0] + self._span <= now",
        "self._starts[0] + self._span / 2 <= now",
    ),
    Fault(
        "a merchant goes on when its second is over",
        "admission",
        "self._agenda.add(rate.free_at, self._next_second, lane)",
        "pass",
    ),
    Fault(
        "in a fleet each worker starts its part of what the POS takes in a second",
        "rate",
        "int(self._most * part)",
        "int(self._most)",
    ),
    Fault(
        "a provider keeps to its share",
        "turns",
        "if lane.provider is not None and lane.provider.is_full:",
        "if False:",
    ),
    Fault(
        "a provider exceeds its share only while the others could not want the slots",
        "admission",
        "return self.limits.slots - self.in_flight > others",
        "return self.limits.slots - self.in_flight > 0",
    ),
    Fault(
        "idle slots are not kept from a provider at its share",
        "admission",
        "return self._start_above_share(now) if self._slot_is_free else None",
        "return None",
    ),
    Fault(
        "whoever comes back makes room for its provider's next",
        "admission",
        "            self._turns.wake(call.provider)\n",
        "            pass\n",
    ),
    Fault(
        "the slow keep to their share",
        "turns",
        "if lane.pace.slow and self.slow.is_full:",
        "if False:",
    ),
    Fault(
        "whoever comes back makes room for the next of the slow",
        "admission",
        "        self._turns.wake(self._turns.slow)\n\n    def tick",
        "\n    def tick",
    ),
    Fault(
        "a call is slow in its time, be it before it is suspect",
        "admission",
        "if call.slow_at < suspicious_at:",
        "if False:",
    ),
    Fault(
        "and after it is suspect",
        "admission",
        "        if not call.slow:\n            self._agenda.add(call.slow_at, self._slow_now, call)\n",
        "",
    ),
    Fault(
        "a merchant becomes slow while its call is out",
        "admission",
        "        self._set_slow(lane, now, slow=True)\n        for share",
        "        for share",
    ),
    Fault(
        "all that a slow merchant holds counts",
        "admission",
        "self._turns.slow.in_flight += in_flight if slow else -in_flight",
        "self._turns.slow.in_flight += 1 if slow else -1",
    ),
    Fault(
        "a merchant that relapses stays slow for longer",
        "pace",
        "self._relapses = self._relapses + 1 if relapsed else 0",
        "self._relapses = 0",
    ),
    Fault(
        "the merchants have their turns one after the other",
        "turns",
        "_, lane = heapq.heappop(self._line)",
        "_, lane = self._line.pop()",
    ),
    Fault(
        "who waits behind a lane for a share has its turn too",
        "turns",
        "            self.wake(woken_by, lane.place)",
        "            pass",
    ),
    Fault(
        "a turn that is of no use to a merchant any more is the next one's",
        "turns",
        "self.wake(woken_by, lane.place)",
        "self.wake(woken_by)",
        examples="6400",
    ),
    Fault(
        "the most urgent of a merchant's orders goes first",
        "lane",
        "heapq.heappush(self._queue, (deadline, self._number, waiting))",
        "heapq.heappush(self._queue, (0.0, self._number, waiting))",
    ),
    Fault(
        "an order that waits expires when its time is over",
        "admission",
        "self._agenda.add(deadline, self._expire, waiting)",
        "pass",
    ),
    Fault(
        "an order expires once",
        "lane",
        "        waiting.done = True\n",
        "",
    ),
    Fault(
        "an order that cannot start in time expires when that is certain",
        "admission",
        "while (first := lane.first()) is not None and first.deadline <= breaker.until:",
        "while (first := lane.first()) is not None and first.deadline <= now:",
    ),
    Fault(
        "an order that waits for a slot only is not parked",
        "admission",
        "                again.append(waiting)\n",
        "                pass\n",
    ),
    Fault(
        "those that wait for a merchant in trouble are counted",
        "room",
        "        self.blocked += number * (lane.is_troubled - was_troubled)\n",
        "",
    ),
    Fault(
        "a breaker opens on failures",
        "breaker",
        "self._failed.bit_count() >= FAILURE_RATE * calls or ",
        "",
    ),
    Fault(
        "a breaker opens on late calls",
        "breaker",
        " or late >= SLOW_RATE * calls",
        "",
    ),
    Fault(
        "a late call counts while it is out",
        "admission",
        '            self._open(lane, now, "late")\n\n    def _reckon',
        "            pass\n\n    def _reckon",
    ),
    Fault("few calls say nothing", "breaker", "if calls < MINIMUM:", "if calls < 1:"),
    Fault(
        "an open breaker lets nothing through",
        "breaker",
        "        return self.state is State.CLOSED\n\n    @property\n    def patience",
        "        return True\n\n    @property\n    def patience",
    ),
    Fault(
        "a half-open breaker lets one probe through at a time",
        "breaker",
        "return self.probes < PROBES",
        "return self.probes <= PROBES",
    ),
    Fault(
        "a breaker closes after answers in a row",
        "breaker",
        "return self._answered >= PROBES_TO_CLOSE",
        "return self._answered >= 1",
    ),
    Fault(
        "a probe of an earlier spell says nothing",
        "breaker",
        "if spell != self.spell or self.state is not State.HALF_OPEN:",
        "if False:",
    ),
    Fault(
        "a probe that fails opens the breaker again",
        "admission",
        "elif is_present and answered is False:",
        "elif False:",
    ),
    Fault(
        "a merchant is left alone when it asks for it",
        "admission",
        "        if retry_after is not None:\n",
        "        if False:\n",
    ),
    Fault(
        "a breaker half-opens when its time is over",
        "admission",
        "        self._agenda.add(breaker.until, self._half_open, lane)\n",
        "",
    ),
    Fault(
        "a lane whose breaker half-opens lines up",
        "admission",
        'State.HALF_OPEN, 0.0, "time"))\n            self._line_up(lane)',
        'State.HALF_OPEN, 0.0, "time"))',
    ),
    Fault(
        "no more are cut short than are too many",
        "admission",
        " - suspects.ending, self._now)",
        ", self._now)",
    ),
    Fault(
        "nothing is cut short while slots are free",
        "admission",
        "lacking = limits.reserve - (limits.slots - self.in_flight) + in_line",
        "lacking = limits.slots",
    ),
    Fault(
        "no more are cut short than are needed",
        "admission",
        "in_line = min(len(self._turns), self.waiting - self.blocked)",
        "in_line = limits.slots",
    ),
    Fault(
        "nothing is cut short for those that have become slow",
        "admission",
        "in_line = min(len(self._turns), self.waiting - self.blocked)",
        "in_line = len(self._turns)",
    ),
    Fault(
        "only calls of merchants that are silent are cut short",
        "suspects",
        "is_silent = call.lane.last_answer < call.suspected_at",
        "is_silent = True",
    ),
    Fault(
        "what hangs is cut short",
        "suspects",
        "self._calls.append(call)",
        "pass",
    ),
    Fault(
        "where nobody answers nothing is cut short before it is slow",
        "suspects",
        "others_answer = min(settled, self._answered_at) if",
        "others_answer = settled if",
    ),
    Fault(
        "where nobody answers what is slow is cut short",
        "suspects",
        "heapq.heappush(self._slow, (call.suspected_at, next(self._count), call))",
        "pass",
    ),
    Fault(
        "calls are not cut short where the order could not be sent again",
        "suspects",
        " and call.lane.may_be_cut_short:",
        ":",
    ),
    Fault(
        "half of what the slow may hold is not cut short",
        "admission",
        "too_many = suspects.number - max(1, self._turns.slow.cap_now // 2)",
        "too_many = suspects.number",
    ),
    Fault(
        "half of what they may hold now, that is",
        "admission",
        "self._turns.slow.cap_now // 2",
        "self._turns.slow.cap // 2",
    ),
    Fault(
        "the slow may hold a part of their share while none of them answers",
        "turns",
        "Share(slow, max(1, slow // SILENT))",
        "Share(slow, slow)",
    ),
    Fault(
        "a merchant that has never answered is taken to be like the others",
        "suspects",
        "return min(longest, self._usual.exceeded_after(longest))",
        "return longest",
    ),
    Fault(
        "what is usual for all is their mean at first",
        "suspects",
        "max(NEWEST_OF_ALL, 1 / self._answers)",
        "NEWEST_OF_ALL",
    ),
    Fault(
        "answers that have come already are read before anything is cut short",
        "suspects",
        "settled = now - GRACE",
        "settled = now",
    ),
    Fault(
        "answers that are late themselves say nothing against other calls",
        "suspects",
        "        if not call.is_suspect:\n",
        "        if True:\n",
    ),
    Fault(
        "where many answers are late nothing is cut short before it is slow",
        "suspects",
        " if self._late < LATE else -inf",
        "",
    ),
    Fault(
        "what has come back is no suspect",
        "suspects",
        "self.number -= call.is_suspect",
        "pass",
    ),
    Fault(
        "a merchant whose call was cut short is slow",
        "admission",
        "            self._out_too_long(call, now)\n        elif slow:",
        "            pass\n        elif slow:",
    ),
    Fault(
        "a provider whose calls are cut short is silent",
        "admission",
        "            self._out_too_long(call, now)\n        elif slow:",
        "            self._set_slow(lane, now, slow=True)\n        elif slow:",
    ),
    Fault(
        "a silent provider has no more than the slow",
        "share",
        "return self.cap_of_silent if self.silent else self.cap",
        "return self.cap",
    ),
    Fault(
        "a silent provider does not exceed its share",
        "turns",
        "if not share.silent]",
        "]",
    ),
    Fault(
        "a provider that answers is not silent",
        "share",
        "self._answered_at = now\n        self.silent = False",
        "self._answered_at = now",
    ),
    Fault(
        "a provider is silent only if nobody has answered since the call began",
        "share",
        "self.silent = self.silent or self._answered_at < started",
        "self.silent = True",
    ),
    Fault(
        "a merchant keeps to what the fleet leaves it",
        "bulkhead",
        "return limit if self.allotment is None else min(limit, self.allotment)",
        "return limit",
    ),
    Fault(
        "the fleet is asked when an order waits for an allotment only",
        "admission",
        "            self._on_short(lane.merchant_id)",
        "            pass",
    ),
    Fault(
        "what is dropped does not count for its provider any more",
        "turns",
        "            share.waiting = share.promised = 0\n",
        "            pass\n",
    ),
    Fault(
        "a merchant in trouble may have only so many orders waiting",
        "room",
        "return lane.waiting * lane.turn > limits.max_wait / 2",
        "return False",
    ),
    Fault(
        "all merchants in trouble together may have only so many waiting",
        "room",
        "if self.blocked >= limits.max_blocked:",
        "if False:",
    ),
    Fault(
        "those of a provider at its share may not fill the window",
        "room",
        "provider.is_full and provider.waiting >= most",
        "False",
    ),
]


def test_the_state_machine_finds_planted_faults(tmp_path: Path) -> None:
    others = "PYTEST_XDIST_WORKER" in os.environ  # which need a core too
    with ThreadPoolExecutor(1 if others else os.cpu_count()) as pool:
        found = dict(pool.map(lambda fault: (fault, _is_found(fault, tmp_path)), chosen(FAULTS)))
    missed = [fault.rule for fault, caught in found.items() if not caught]
    assert not missed, "\n".join(missed)


def test_without_a_fault_it_finds_none(tmp_path: Path) -> None:
    whole = Fault("nothing is wrong", "admission", "class Admission", "class Admission", "30")
    assert not _is_found(whole, tmp_path)


def test_every_fault_can_still_be_planted() -> None:
    """Also those that this run does not try."""
    folder = ROOT / "pos_gateway" / "admission"
    gone = [f.rule for f in FAULTS if f.right not in (folder / f"{f.file}.py").read_text()]
    assert not gone, "\n".join(gone)


def test_there_is_a_fault_for_every_rule() -> None:
    assert len(FAULTS) >= 15
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS)


def _is_found(fault: Fault, folder: Path) -> bool:
    """Whether the state machine fails in a copy of the package that has the fault."""
    copy = folder / str(abs(hash(fault)))
    for package in ("pos_gateway/admission", "tests/admission"):
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pos_gateway/__init__.py", "pos_gateway/outcome.py", "tests/__init__.py"):
        shutil.copy(ROOT / file, copy / file)
    source = copy / "pos_gateway" / "admission" / f"{fault.file}.py"
    text = source.read_text()
    if fault.right not in text:
        pytest.fail(f"{fault.rule}: {fault.file}.py has no {fault.right!r} any more")
    source.write_text(text.replace(fault.right, fault.wrong, 1))
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *("--timeout=600", "--rootdir", str(copy), "tests/admission/test_admission_machine.py"),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "EXAMPLES": fault.examples, "HUNT": "1"},
        capture_output=True,
        text=True,
    )
    if run.returncode not in (0, 1):
        pytest.fail(f"{fault.rule}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 1
