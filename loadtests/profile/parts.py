"""What a profiler saw: stacks, how often each, and the part that each works for."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pos_gateway.telemetry.writer import LogWriter

AMQP, CELERY, ADMISSION = "AMQP: take and acknowledge", "Celery's request", "admission"
LEDGER, MERCHANTS = "ledger", "merchants' records"
EXCHANGE, EVENTS, TELEMETRY = "adapter and transport", "events", "logs and metrics"
ORDER, LOOP, OTHER = "the order, and what to do with it", "gevent's loop and switches", "other"

#: Threads that work for all orders: by the first of our files from the root.
_THREADS = {
    "pos_gateway/ledger/": LEDGER,
    "pos_gateway/merchants/": MERCHANTS,
    "pos_gateway/events/": EVENTS,
    "pos_gateway/broker/": EVENTS,
    "pos_gateway/telemetry/": TELEMETRY,
}
#: Anywhere else the innermost file that is one of these decides the part. The standard library and
#: what all parts use (pydantic, sockets) work for their callers.
_FILES = {
    "pos_gateway/runtime/clock.py": None,
    "pos_gateway/admission/": ADMISSION,
    "pos_gateway/fleet/": ADMISSION,
    "pos_gateway/worker/dispatcher.py": ADMISSION,
    "pos_gateway/worker/in_flight.py": ADMISSION,
    "pos_gateway/worker/intake.py": CELERY,
    "pos_gateway/worker/request.py": CELERY,
    "celery/": CELERY,
    "amqp/": AMQP,
    "kombu/": AMQP,
    "pos_gateway/worker/loop.py": AMQP,
    "pos_gateway/broker/connection.py": AMQP,
    "pos_gateway/broker/amqp_internals.py": AMQP,
    "pos_gateway/broker/kombu_internals.py": AMQP,
    "pos_gateway/worker/gc_tuning.py": OTHER,
    "pos_gateway/ledger/": LEDGER,
    "pos_gateway/merchants/": MERCHANTS,
    "pos_gateway/transport/": EXCHANGE,
    "pos_gateway/adapters/": EXCHANGE,
    "pos_gateway/auth/": EXCHANGE,
    "requests/": EXCHANGE,
    "urllib3/": EXCHANGE,
    "http/client.py": EXCHANGE,
    "pos_gateway/events/": EVENTS,
    "pos_gateway/broker/": EVENTS,
    "pos_gateway/telemetry/": TELEMETRY,
    "prometheus_client/": TELEMETRY,
    "structlog/": TELEMETRY,
    "pos_gateway/": ORDER,
}
#: In the order of an order's way.
PARTS = (
    *(AMQP, CELERY, ADMISSION, MERCHANTS, ORDER, LEDGER, EXCHANGE, EVENTS, TELEMETRY),
    *(LOOP, OTHER),
)

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)")

#: A worker that starts is not under load.
_IMPORTS = "<frozen importlib._bootstrap>"
#: Where native threads wait for work. To look at them the profiler interrupts their wait, and until
#: the core is theirs to wait on it takes them for busy.
_IDLE = {
    ("acquire_with_timeout", "gevent/_threading.py"),
    (LogWriter._rest.__qualname__, "pos_gateway/telemetry/writer.py"),
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A running function."""

    function: str
    #: As it is imported: ``celery/app/trace.py``.
    file: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file})" if self.file else self.function


@dataclass(frozen=True, slots=True)
class Stack:
    """Functions, each called by the one before, and how many samples had them."""

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


def part_of(frames: tuple[Frame, ...]) -> str:
    """The part that the work is of."""
    ours = next((frame.file for frame in frames if frame.file.startswith("pos_gateway/")), "")
    for start, threads in _THREADS.items():
        if ours.startswith(start):
            return threads
    for frame in reversed(frames):
        part = next((part for start, part in _FILES.items() if frame.file.startswith(start)), None)
        if part is not None:
            return part
    return LOOP if not frames or any(each.file.startswith("gevent/") for each in frames) else OTHER


def shares(stacks: Iterable[Stack]) -> dict[str, float]:
    """The share of all samples that each part has."""
    samples = Counter(dict.fromkeys(PARTS, 0))
    for stack in stacks:
        samples[part_of(stack.frames)] += stack.samples
    total = max(1, samples.total())
    return {part: number / total for part, number in samples.items()}
