"""An exception as kept for a log line: source locations, and the message.

No frame is kept: no variable's value gets into a line, or lives longer. Only a message's first line
is kept: in later lines databases and pydantic repeat rejected values.
"""

import linecache
from traceback import walk_tb
from types import TracebackType
from typing import NamedTuple, Self

#: Maximum characters of an exception's message, frames of a traceback (the last frames), and
#: exceptions of a chain.
MESSAGE, FRAMES, CHAIN = 500, 30, 5

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Frame(NamedTuple):
    """A source location."""

    file: str
    line: int
    function: str


class Raised(NamedTuple):
    """A chain's exception, and the link to the previous exception."""

    kind: str
    message: str
    frames: tuple[Frame, ...]
    link: str

    @classmethod
    def of(cls, error: BaseException, link: str, *, messages: bool) -> Self:
        """Copy the kept parts of an exception."""
        message = first_line(_message(error))[:MESSAGE] if messages else ""
        return cls(_name(type(error)), message, _frames(error.__traceback__), link)

    def text(self) -> str:
        """The exception in Python's format. Reads the source files."""
        shown = ["Traceback (most recent call last):\n"] if self.frames else []
        for file, line, function in self.frames:
            source = linecache.getline(file, line).strip()
            shown.append(f'  File "{file}", line {line}, in {function}\n')
            shown.append(f"    {source}\n" if source else "")
        return "".join([*shown, f"{self.kind}: {self.message}" if self.message else self.kind])


class Trace(NamedTuple):
    """An exception and all causes, the first cause first."""

    raised: tuple[Raised, ...]

    @classmethod
    def of(cls, error: BaseException, *, messages: bool = True) -> Self:
        """The trace of an exception.

        Args:
            error: the exception.
            messages: whether to keep messages; False for code with an order, since messages may
                repeat the order's data.
        """
        chain: list[Raised] = []
        present: BaseException | None = error
        while present is not None and len(chain) < CHAIN:
            cause, context = present.__cause__, present.__context__
            before = context if cause is None and not present.__suppress_context__ else cause
            link = "" if before is None else _link(cause)
            chain.append(Raised.of(present, link, messages=messages))
            present = before
        return cls(tuple(reversed(chain)))

    def text(self) -> str:
        """The chain in Python's format, without values. Reads the source files."""
        first, *rest = self.raised
        shown = [first.text()]
        for each in rest:
            shown += ["\n", each.link, each.text()]
        return "".join(shown)


def first_line(text: str) -> str:
    """A message's first line."""
    return text.partition("\n")[0]


def _link(cause: BaseException | None) -> str:
    return _CONTEXT if cause is None else _CAUSE


def _frames(traceback: TracebackType | None) -> tuple[Frame, ...]:
    walked = [Frame(f.f_code.co_filename, n, f.f_code.co_qualname) for f, n in walk_tb(traceback)]
    return tuple(walked[-FRAMES:])


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return (
        kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (must not replace the exception being logged)
        return "(no message: it cannot be shown)"
