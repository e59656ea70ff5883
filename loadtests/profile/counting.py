"""A green worker that counts the calls of the product's functions: ``python -m loadtests.profile.counting FILE -A …``.

On SIGUSR2 the counts since the last signal are written to FILE. A profile function counts on every Python:
``sys.monitoring`` begins with 3.12. A profile function is called in the native thread for which it is set, and
there in all greenlets; so each native thread sets it as it starts. Nothing else may start one before: this
module imports the standard library, and what imports no more.
"""

import _thread
import dis
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from runpy import run_module
from types import CodeType, FrameType
from typing import Any

from pos_gateway.admission import cpu

PRODUCT = Path(__file__).resolve().parents[2] / "pos_gateway"
SIGNAL = signal.SIGUSR2
#: Part of the functions around them from Python 3.12 on, where they have no code of their own.
_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}


class Calls:
    """Counts calls of the functions in a folder, in the order of the first call.

    A generator is called once, however often it is resumed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._counts: dict[CodeType, int] = {}
        #: Where the code of a function starts; None: it is not counted.
        self._starts: dict[CodeType, int | None] = {}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call, if it is one: a profile function for ``sys.setprofile``."""
        if event != "call":
            return
        code = frame.f_code
        try:
            start = self._starts[code]
        except KeyError:
            start = self._starts[code] = self._start(code)
        if frame.f_lasti == start:
            counts = self._counts  # `take` may replace it meanwhile
            counts[code] = counts.get(code, 0) + 1

    def take(self) -> Iterator[tuple[str, str, int]]:
        """File, qualified name and calls of each function since the last time."""
        counts, self._counts = self._counts, {}
        for code, calls in list(counts.items()):
            yield code.co_filename.removeprefix(self._folder), code.co_qualname, calls

    def _start(self, code: CodeType) -> int | None:
        if not code.co_filename.startswith(self._folder) or code.co_name in _INLINED:
            return None
        return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def main() -> None:
    """Become the worker."""
    into, calls = Path(sys.argv[1]), Calls(PRODUCT)
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})  # by all threads but the one that waits
    _thread.start_new_thread(_write_at_signals, (calls, into))
    _profile_threads(calls)
    _have_cpu()
    sys.argv[:2] = ["gevent.monkey", "--module", "pos_gateway.worker.slim_celery"]
    run_module("gevent.monkey", run_name="__main__", alter_sys=True)


def _have_cpu() -> None:
    """Take the way of a worker with CPU to spare, however slow the machine is: a worker without takes another."""
    cpu.PART = cpu.PART_OF_LESS = 1e9
    cpu.INTERVAL = 1e9


def _write_at_signals(calls: Calls, into: Path) -> None:
    written = into.with_suffix(".new")
    while signal.sigwait({SIGNAL}):
        written.write_text(json.dumps(list(calls.take())))
        written.replace(into)


def _profile_threads(calls: Calls) -> None:
    """Count in this native thread, and in each that it starts."""
    start = _thread.start_new_thread

    def start_profiled(run: Callable[..., object], *arguments: Any) -> int:
        def profiled(*arguments: Any, **named: Any) -> None:
            sys.setprofile(calls.profile)
            run(*arguments, **named)

        return start(profiled, *arguments)

    vars(_thread)["start_new_thread"] = start_profiled
    sys.setprofile(calls.profile)


if __name__ == "__main__":
    main()
