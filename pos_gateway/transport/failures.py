"""What an exception during an exchange means for the order: one table.

The rule: before the first byte of the request left, the order was provably not processed;
afterwards, anything short of a complete valid reply leaves it in doubt. The table gives each
exception class its code, and says where the rule does not decide.
"""

import socket
import ssl
from enum import StrEnum
from typing import NamedTuple

from pos_gateway.transport.errors import (
    Misconfigured,
    NotBegun,
    NotSent,
    NoValidReply,
    TransportError,
)


class FailureVerdict(StrEnum):
    """What an exception means."""

    BY_PROGRESS = "not sent before the first byte left, in doubt after"
    CONFIGURATION = "a person must change something"
    HANDSHAKE = "a matter of configuration, unless the peer just broke off"


class FailureRow(NamedTuple):
    """A line of the table."""

    code: str
    verdict: FailureVerdict


_BY_PROGRESS, _CONFIGURATION = FailureVerdict.BY_PROGRESS, FailureVerdict.CONFIGURATION

#: The exception's most specific class in the table decides.
TABLE: dict[type[BaseException], FailureRow] = {
    # TLS
    ssl.SSLCertVerificationError: FailureRow("certificate", _CONFIGURATION),
    ssl.SSLEOFError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLZeroReturnError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLSyscallError: FailureRow("broken_off", _BY_PROGRESS),
    ssl.SSLError: FailureRow("tls", FailureVerdict.HANDSHAKE),
    # The network
    socket.gaierror: FailureRow("dns", _BY_PROGRESS),
    socket.herror: FailureRow("dns", _BY_PROGRESS),
    TimeoutError: FailureRow("timeout", _BY_PROGRESS),
    ConnectionRefusedError: FailureRow("refused", _BY_PROGRESS),
    ConnectionError: FailureRow("broken_off", _BY_PROGRESS),
    OSError: FailureRow("network", _BY_PROGRESS),
    ValueError: FailureRow("invalid_reply", _BY_PROGRESS),
}

#: Alerts of a peer that rejects our certificate: with TLS 1.3 they come after the request was sent,
#: which it has not read.
_REFUSES_US = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "ALERT_CERTIFICATE_",
    "ALERT_ACCESS_DENIED",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_UNRECOGNIZED_NAME",
    "ALERT_HANDSHAKE_FAILURE",
)


def row_of(kind: type[BaseException]) -> FailureRow:
    """The row for an exception class: its own, or that of its nearest ancestor.

    Raises:
        LookupError: there is none; it is no failure of an exchange.
    """
    for ancestor in kind.__mro__:
        if ancestor in TABLE:
            return TABLE[ancestor]
    raise LookupError(kind.__name__)


def failure(error: BaseException, *, sent: bool) -> TransportError:
    """What an exception of an exchange means.

    Args:
        error: the socket's, TLS's, or the resolver's.
        sent: a byte of the request may have left.
    """
    row = row_of(type(error))
    if row.verdict is FailureVerdict.CONFIGURATION or (
        row.verdict is FailureVerdict.HANDSHAKE and (not sent or _is_refusal(error))
    ):
        return Misconfigured(row.code, error)
    return by_progress(row.code, error, sent=sent)


def without_tracebacks(error: BaseException) -> BaseException:
    """The exception, with the tracebacks of all its causes and contexts removed.

    A frame that keeps the exception that it raises, which keeps the frame, is freed by the garbage
    collector alone, and that stops every order meanwhile.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += (each.__cause__, each.__context__)
    return error


def by_progress(
    code: str, problem: object, *, sent: bool, begun: bool = True
) -> NotSent | NoValidReply:
    """The rule itself."""
    if sent:
        return NoValidReply(code, problem)
    return NotSent(code, problem) if begun else NotBegun(code, problem)


def _is_refusal(error: BaseException) -> bool:
    said = getattr(error, "reason", None) or str(error)
    return any(word in said for word in _REFUSES_US) if isinstance(said, str) else False
