"""Publishes orders from lines of JSON to the broker, a few dozen at once."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pos_gateway.cli import jsonl
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.pipeline import in_order
from pos_gateway.client import OrderClient
from pos_gateway.domain.errors import FieldError, InvalidOrder, InvalidRecord, PublishError
from pos_gateway.domain.order import Order
from pos_gateway.domain.record import WHOLE

#: Orders that wait for the broker's confirm at once: each is a round trip.
IN_FLIGHT = 32


_LIST = FieldError(WHOLE, "is a list; wanted is one order a line (jq -c '.[]' makes that)")
_MANY_LINES = FieldError(
    WHOLE,
    "begins JSON over many lines, and nothing after it was read; wanted is one order a line "
    "(jq -c . makes that of objects, jq -c '.[]' of a list)",
)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the input: an order, or its errors; then whether it was sent."""

    number: int
    order: Order | None = None
    errors: tuple[FieldError, ...] = ()
    sent: bool = False


class OrderSending:
    """Sends the valid orders, counts the invalid ones, and stops when the broker is lost."""

    def __init__(self, client: OrderClient, *, again: bool = False) -> None:
        self.sent = 0
        self.refused = 0
        self._client = client
        self._again = again
        self._lock = threading.Lock()
        self._trouble: PublishError | None = None
        self._unreadable: OSError | None = None
        #: The first line not known to be sent, and whether a later one is.
        self._unsent: int | None = None
        self._sent_after = False

    def send(self, stream: BinaryIO, ctrl_c: CtrlC) -> Iterator[list[str]]:
        """Send every line; yields, in the lines' order, what to report for each."""
        for line in in_order(self._submit, self._read(stream, ctrl_c), width=IN_FLIGHT):
            if line.errors:
                self.refused += 1
                yield [f"line {line.number}: {error}" for error in line.errors]
            elif line.sent:
                self.sent += 1
                self._sent_after = self._unsent is not None
                yield []
            elif self._unsent is None:
                self._unsent = line.number

    @property
    def summary(self) -> str:
        """The counts, in a line."""
        return f"{self.sent} sent, {self.refused} refused"

    @property
    def broken_off(self) -> str | None:
        """Why sending stopped, and the line to resume from; None if everything was tried."""
        if self._unreadable is not None:
            return f"cannot read on: {self._unreadable.strerror}"
        if self._trouble is None:
            return None
        how_much = "not everything" if self._sent_after else "nothing"
        return (
            f"{str(self._trouble).rstrip('.')}; {self.sent} sent, {how_much} from line "
            f"{self._unsent} on; to send from there again, with --again, is harmless"
        )

    def _read(self, stream: BinaryIO, ctrl_c: CtrlC) -> Iterator[_Line]:
        nothing_read = True
        try:
            for number, text in ctrl_c.until_pressed(jsonl.lines(stream)):
                if self._trouble is not None:
                    return
                if nothing_read and _goes_on(text):
                    yield _Line(number, errors=(_MANY_LINES,))
                    return
                nothing_read = False
                yield self._parse(number, text)
        except OSError as error:
            self._unreadable = error

    def _parse(self, number: int, text: bytes | None) -> _Line:
        try:
            record = jsonl.decode(text)
            if isinstance(record, list):
                return _Line(number, errors=(_LIST,))
            return _Line(number, Order.parse(record))
        except InvalidRecord as error:
            return _Line(number, errors=error.errors)

    def _submit(self, line: _Line) -> _Line:
        """Runs in a pipeline thread."""
        if line.order is None or self._trouble is not None:
            return line
        try:
            self._client.submit(line.order, again=self._again)
        except InvalidOrder as error:
            return _Line(line.number, errors=error.errors)
        except PublishError as error:
            with self._lock:
                self._trouble = self._trouble or error
            # Fails the other threads' waits at once.
            self._client.close()
            return line
        return _Line(line.number, sent=True)


def _goes_on(text: bytes | None) -> bool:
    """Whether the first line begins a value that continues in the next ones."""
    if text is None or not (text == b"{" or text.startswith(b"[")):
        return False
    try:
        jsonl.decode(text)
    except InvalidRecord:
        return True
    return False
