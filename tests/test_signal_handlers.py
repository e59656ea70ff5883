"""Signal handlers, which run between any two bytecodes: they wait for nothing, and log nothing."""

import ast
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pos_gateway.runtime import wakeup
from pos_gateway.runtime.wakeup import Wakeup

ROOT = Path(__file__).parents[1]

#: Methods that take a lock, or that wait, of events, threads, queues, loggers and streams.
FORBIDDEN = {
    *("acquire", "clear", "flush", "get", "join", "print", "publish", "put", "release", "set"),
    *("submit", "wait", "write"),
    *("critical", "debug", "error", "exception", "info", "log", "warning"),
}
#: gevent's events have no lock that one thread may wait for.
GEVENTS = {
    "pos_gateway/worker/drain.py: self._hurry.set",
    "pos_gateway/demo/serve.py: is_stopped.set",
}
#: Called in handlers, and documented for them.
ALSO = {("pos_gateway/client/outbox/relay.py", "stop"), ("pos_gateway/runtime/wakeup.py", "notify")}
#: What these call where no handler gets to, or what is documented as reentrant.
HARMLESS = {
    "pos_gateway/client/outbox/relay.py: self._thread.join",  # not with a timeout of 0
    "pos_gateway/runtime/wakeup.py: self._wakes.put",
}


def handlers() -> list[tuple[str, ast.AST]]:
    """Every function that is passed to ``signal.signal``, with its file."""
    found = []
    for folder in ("pos_gateway", "testkit", "loadtests"):
        for file in (ROOT / folder).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            source = file.read_text()
            if "signal.signal(" not in source and name not in dict(ALSO):
                continue
            tree = ast.parse(source)
            wanted = {function for path, function in ALSO if path == name}
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "signal.signal":
                    handler = call.args[1]
                    wanted.add(ast.unparse(handler).removeprefix("self."))
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            found += [
                (name, each)
                for each in ast.walk(tree)
                if isinstance(each, functions) and each.name in wanted
            ]
    return found


def test_no_signal_handler_takes_a_lock_or_logs() -> None:
    wrong = set()
    for file, handler in handlers():
        for call in ast.walk(handler):
            if isinstance(call, ast.Call):
                called = ast.unparse(call.func)
                if called.rpartition(".")[2] in FORBIDDEN:
                    wrong.add(f"{file}: {called}")
    assert wrong - GEVENTS - HARMLESS == set()
    assert {file for file, _ in handlers()} >= {
        "pos_gateway/cli/events.py",
        "pos_gateway/cli/outbox_program.py",
        "pos_gateway/server/uvicorn_internals.py",
        "pos_gateway/simulated_merchants/__main__.py",
        "pos_gateway/worker/drain.py",
    }


def waiting(flag: Wakeup) -> None:
    flag.wait(0.0)
    flag.clear()
    flag.notify()
    flag.clear()
    flag.wait(0.0)


def interrupted_at(moment: int, flag: Wakeup, run: Callable[[Wakeup], None]) -> bool:
    """Run it with a signal at its n-th bytecode in the module; whether there was one."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != wakeup.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == moment:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    try:
        run(flag)
    finally:
        sys.settrace(None)
    return seen >= moment


@pytest.mark.timeout(60)
def test_a_signal_at_any_bytecode_of_a_wakeup_is_noticed() -> None:
    """A handler that sets ``threading.Event`` waits for ever at some of them."""
    moment = 1
    while True:
        flag = Wakeup()
        stopping = Wakeup()

        def stop(_number: int, _frame: FrameType | None, to: Any = (flag, stopping)) -> None:
            for each in to:
                each.notify()

        before = signal.signal(signal.SIGUSR1, stop)
        try:
            was_interrupted = interrupted_at(moment, flag, waiting)
        finally:
            signal.signal(signal.SIGUSR1, before)
        if not was_interrupted:
            break
        assert stopping.wait(0.0)
        flag.notify()
        assert flag.wait(0.0)
        flag.clear()
        assert not flag.wait(0.0)
        moment += 1
    assert moment > 50


def test_a_wakeup_wakes_every_thread_that_waits() -> None:
    from concurrent.futures import ThreadPoolExecutor

    flag = Wakeup()
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(flag.wait, 30.0) for _ in range(3)]
        flag.notify()
        assert [each.result() for each in waits] == [True] * 3


def test_a_signal_ends_a_wait_without_limit() -> None:
    flag = Wakeup()
    before = signal.signal(signal.SIGALRM, lambda *_: flag.notify())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert flag.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
