"""What a profiler saw: stacks, and how often each."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)")

#: A worker that starts is not under load.
_IMPORTS = "<frozen importlib._bootstrap>"
#: Where native threads wait for work. To look at them the profiler interrupts their wait, and until
#: the core is theirs to wait on it takes them for busy.
_IDLE = {
    ("acquire_with_timeout", "gevent/_threading.py"),
    ("Writer._rest", "pos_gateway/telemetry/writer.py"),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A function that was under way."""

    function: str
    #: As it is imported: ``celery/app/trace.py``.
    file: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file})" if self.file else self.function


@dataclass(frozen=True, slots=True)
class Stack:
    """Functions, each called by the one before, and in how many samples they were under way."""

    frames: tuple[Frame, ...]
    samples: int


def read(lines: Iterable[str]) -> Iterator[Stack]:
    """The stacks of a collapsed profile: frames with ``;`` between them, a space, a number."""
    for line in lines:
        names, _, samples = line.rstrip().rpartition(" ")
        frames = tuple(_frame(name) for name in names.split(";") if name)
        if not _is_idle(frames) and all(frame.file != _IMPORTS for frame in frames):
            yield Stack(frames, int(samples))


def _frame(name: str) -> Frame:
    found = _FRAME.fullmatch(name)
    return Frame(found["function"], found["file"]) if found else Frame(name, "")


def _is_idle(frames: tuple[Frame, ...]) -> bool:
    return bool(frames) and (frames[-1].function, frames[-1].file) in _IDLE
