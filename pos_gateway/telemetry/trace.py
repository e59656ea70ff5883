"""What is kept of an exception until its line is written: where it was raised, and its message.

No frame is kept: nothing that a variable holds gets into a line, or lives longer for it. Of a message
the first line is: in the others databases and pydantic show the values that they did not take.
"""

import linecache
from traceback import walk_tb
from types import TracebackType
from typing import NamedTuple, Self

#: Characters of an exception's message, frames of its way (the last ones), and exceptions that led
#: to one another, at most.
MESSAGE, FRAMES, CHAIN = 500, 30, 5

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Frame(NamedTuple):
    """A place in the source."""

    file: str
    line: int
    function: str


class Raised(NamedTuple):
    """One exception, and how the one before it led to it."""

    kind: str
    message: str
    frames: tuple[Frame, ...]
    link: str

    @classmethod
    def of(cls, error: BaseException, link: str, *, messages: bool) -> Self:
        """What is to be known of it."""
        message = first_line(_message(error))[:MESSAGE] if messages else ""
        return cls(_name(type(error)), message, _frames(error.__traceback__), link)

    def text(self) -> str:
        """As Python shows it."""
        shown = ["Traceback (most recent call last):\n"] if self.frames else []
        for file, line, function in self.frames:
            source = linecache.getline(file, line).strip()
            shown.append(f'  File "{file}", line {line}, in {function}\n')
            shown.append(f"    {source}\n" if source else "")
        return "".join([*shown, f"{self.kind}: {self.message}" if self.message else self.kind])


class Trace(NamedTuple):
    """An exception and those that led to it, the first of them first."""

    raised: tuple[Raised, ...]

    @classmethod
    def of(cls, error: BaseException, *, messages: bool = True) -> Self:
        """Of an exception as it is now.

        Args:
            error: the exception.
            messages: whether they are shown; not those of code that has an order in its hands, for
                it may repeat what it has read there.
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
        """As Python shows it, without values. Reads the source's files."""
        first, *rest = self.raised
        shown = [first.text()]
        for each in rest:
            shown += ["\n", each.link, each.text()]
        return "".join(shown)


def first_line(text: str) -> str:
    """Of a message, what it says in general."""
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
    except Exception:  # noqa: BLE001  (its own mistake must not become the one that is told)
        return "(no message: it cannot be shown)"
