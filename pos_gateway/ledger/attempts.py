"""An order's last attempts, in the order's row: written with each outcome, read by operators.

The column is a JSON list with an attempt a line. A worker appends without parsing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.payloads import SEALED, Payloads
from pos_gateway.ledger.states import Action, Claim, Entry, Key

#: Maximum attempts kept, and maximum characters of the whole text: the oldest make room.
MAX_ATTEMPTS, MAX_LENGTH = 10, 8192
#: Characters kept of a reason's message.
MESSAGE_LIMIT = 200
#: Reason codes of attempts without an outcome: the worker's lease expired, or the green thread was
#: killed.
WORKER_LOST, ABANDONED = "worker_lost", "abandoned"
#: Whether the order, or its cancellation, was to be sent, or only looked up.
SEND, LOOK_UP = "send", "look_up"

#: The prefix of a message in clear.
_CLEAR = "clear:"
_SEPARATOR = ",\n"  # in no attempt: JSON escapes a line break
_MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """An attempt. Durations are in seconds; None: not reached, or not measured."""

    #: Start of the call to the POS, or without a call the attempt's end: Unix time, by the worker's
    #: clock.
    at: float
    #: ``send`` once SENDING was durable, ``look_up`` if the POS was only asked; None: neither.
    did: str | None
    #: From the message's arrival at the worker until the attempt began.
    waited: float | None
    #: From the attempt's beginning until the claim was durable.
    claim: float | None
    #: Connecting, with TLS; 0: over an open connection.
    connect: float | None
    #: From the call's beginning until the last reply began.
    first_byte: float | None
    #: The whole call.
    seconds: float | None
    #: HTTP status of the last reply; code of a failed call.
    came: int | str | None
    #: A value of ``Kind``; later releases may write further values.
    outcome: str
    reason_code: str | None
    #: At most ``MESSAGE_LIMIT`` characters.
    reason_message: str | None
    #: The worker's lease: host (a pod's name), process id, and a random part.
    worker: str

    def reason_kind(self, action: Action) -> str:
        """Kind of the reason, for masking: a retried cancellation may be refused by the POS."""
        is_refused = action is Action.CANCEL and isinstance(self.came, int)
        return Kind.REJECTED.value if is_refused else self.outcome


def with_outcome(claim: Claim, entry: Entry, message: str | None) -> str:
    """The column's text with this attempt appended.

    Args:
        claim: the attempt's claim.
        entry: the attempt's outcome, with the reason's code as stored in the row.
        message: the reason's message, from ``kept_message``.
    """
    at, took, came = entry.at, None, None
    did = SEND if claim.sending else None
    if (call := entry.call) is not None:
        came = call.came
        at -= call.seconds
        if did is None and came is not None:
            did = LOOK_UP
        took = [None if each is None else int(each * _MICROSECONDS) for each in call[:5]]
    reason = entry.reason
    code = None if reason is None else reason.code
    outcome = str(entry.outcome or entry.state)
    return _appended(
        claim.history.recorded, (at, did, took, came, outcome, code, message, claim.owner)
    )


def with_lost(text: str | None, *, at: float, sent: bool, code: str, owner: str) -> str:
    """The column's text with an attempt appended that ended without an outcome.

    Args:
        text: the column's text.
        at: time of the row's last write.
        sent: whether bytes may have been sent under the claim.
        code: ``WORKER_LOST`` or ``ABANDONED``.
        owner: the worker's lease.
    """
    did, outcome = (SEND, Kind.IN_DOUBT) if sent else (None, Kind.RETRY)
    return _appended(text, (at, did, None, None, outcome, code, None, owner))


def _appended(text: str | None, attempt: tuple[Any, ...]) -> str:
    new = to_json(attempt).decode()
    if text is None:
        return f"[{new}]"
    text = f"{text[:-1]}{_SEPARATOR}{new}]"
    while (earlier := text.count("\n")) >= MAX_ATTEMPTS or (earlier and len(text) > MAX_LENGTH):
        text = f"[{text[text.index(_SEPARATOR) + len(_SEPARATOR) :]}"
    return text


def kept_message(payloads: Payloads, key: Key, reason: Reason, stored: Reason) -> str:
    """The message to append: the row's own, since sealing again costs too much.

    Args:
        payloads: seals a long message again, cut.
        key: the order's key.
        reason: the attempt's reason.
        stored: the reason as stored in the row.
    """
    if len(reason.message) > MESSAGE_LIMIT:
        cut = Reason.of(reason.code, reason.message)
        stored = payloads.seal_reason(key, Reason(cut.code, cut.message[:MESSAGE_LIMIT]))
    return stored.message if payloads.prefix is not None else _CLEAR + stored.message


def read(text: str | None, key: Key, payloads: Payloads) -> list[RecordedAttempt]:
    """The attempts in a column's text, oldest first.

    An unreadable message says so. Raises ValueError for a text that no worker writes.
    """
    return [_attempt(each, key, payloads) for each in _parsed(text)]


def results(text: str | None) -> Iterator[tuple[float, str, float | None]]:
    """Start, outcome and seconds of each attempt's call; opens no message."""
    for at, _, took, _, outcome, *_ in _parsed(text):
        yield at, outcome, took[4] / _MICROSECONDS if took else None


def resealed(text: str, key: Key, payloads: Payloads) -> str:
    """The text, with messages sealed with the present key. Raises CannotOpen, ValueError."""
    if payloads.prefix is None:
        return text
    attempts = _parsed(text)
    for attempt in attempts:
        code, message = attempt[5:7]
        if message is not None:
            reason = payloads.resealed_reason(key, Reason(code, message.removeprefix(_CLEAR)))
            attempt[5:7] = reason.code, reason.message
    return f"[{_SEPARATOR.join(to_json(each).decode() for each in attempts)}]"


def stale_patterns(payloads: Payloads) -> tuple[str, tuple[str, ...]] | None:
    """Patterns of texts with a message in clear or under an earlier key.

    Returns:
        A text to remove from the column, and texts of which a stale column then still has any; None:
        there is no key. Each text begins with a quotation mark without a backslash before, so matches
        only where a JSON string begins.
    """
    if payloads.prefix is None:
        return None
    return f',"{SEALED}{payloads.prefix}', (f',"{SEALED}', f',"{_CLEAR}')


def _parsed(text: str | None) -> list[list[Any]]:
    attempts: list[list[Any]] = json.loads(text) if text else []
    return attempts


def _attempt(values: list[Any], key: Key, payloads: Payloads) -> RecordedAttempt:
    # A later release may append values.
    at, did, took, came, outcome, code, message, worker, *_ = values
    waited, claim, connect, first_byte, seconds, *_ = (
        None if each is None else each / _MICROSECONDS for each in took or [None] * 5
    )
    if message is not None:
        if message.startswith(_CLEAR):
            message = message.removeprefix(_CLEAR)
        else:
            reason = payloads.open_reason(key, Reason(code, message))
            code, message = reason.code, reason.message
    return RecordedAttempt(
        at, did, waited, claim, connect, first_byte, seconds, came, outcome, code, message, worker
    )
